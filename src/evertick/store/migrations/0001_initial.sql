-- The first schema. Words are those of ARCHITECTURE.md. Hot tables (timers, lanes, attempts, leases, outcomes,
-- open_runs, gaps) have no foreign keys: each inserted child would lock its parent's row.

CREATE TYPE job_status AS ENUM ('active', 'paused', 'deleted');
CREATE TYPE timer_kind AS ENUM ('tick', 'queued', 'retry', 'manual', 'replay');
CREATE TYPE run_reason AS ENUM ('tick', 'late', 'catch_up', 'manual', 'replay');
CREATE TYPE gap_reason AS ENUM ('missed', 'paused', 'overlap', 'calendar', 'dst');
CREATE TYPE outcome_result AS ENUM ('success', 'failed', 'timed_out', 'lost', 'cancelled', 'deferred');

-- The one clock that decides. A function, so that the test kit can put a virtual one in its place.
CREATE FUNCTION clock_at() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE AS 'SELECT clock_timestamp()';

-- An instant as microseconds since 1970: the unit of seq, by whose days attempts and outcomes are partitioned.
CREATE FUNCTION microseconds(at timestamptz) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS 'SELECT (extract(epoch FROM at) * 1000000)::bigint';

-- A lane's id holds its queue, its partition in 8 bits, whether its attempts wait at gates in 1, and its priority in 2,
-- so that it is computed and never looked up. This is the one place in SQL that knows the layout,
-- `store/engine/lanes.py` the one in Python. The planner inlines these.
CREATE FUNCTION lane_id_of(queue_id bigint, partition bigint, priority bigint, is_gated boolean DEFAULT false)
    RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS 'SELECT (queue_id << 11) | (partition << 3) | (CASE WHEN is_gated THEN 4 ELSE 0 END) | priority';
CREATE FUNCTION lane_queue(lane_id bigint) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT lane_id >> 11';
CREATE FUNCTION lane_partition(lane_id bigint) RETURNS smallint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT ((lane_id >> 3) & 255)::smallint';
CREATE FUNCTION lane_is_gated(lane_id bigint) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT lane_id & 4 <> 0';
CREATE FUNCTION lane_priority(lane_id bigint) RETURNS smallint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT (lane_id & 3)::smallint';

-- An id is the time and a random number. So an id that a lost commit took away is not given to another tenant, and a
-- process that still has it in memory reaches no jobs.
CREATE TABLE tenants (
    tenant_id   bigint      PRIMARY KEY DEFAULT (microseconds(clock_at()) << 10) + floor(random() * 1024)::bigint,
    name        text        NOT NULL UNIQUE,
    weight      smallint    NOT NULL DEFAULT 1 CHECK (weight BETWEEN 1 AND 1000),
    created_at  timestamptz NOT NULL DEFAULT clock_at()
);
INSERT INTO tenants (tenant_id, name) VALUES (1, 'default');

-- Everything that decides when, normalised and shared by all jobs that fire alike. The id is the first 63 bits of the
-- digest: a rule that a lost commit took away has the same id when it is added again, and no other rule ever has it.
CREATE TABLE rules (
    rule_id     bigint PRIMARY KEY
                GENERATED ALWAYS AS ((('x' || encode(substr(digest, 1, 8), 'hex'))::bit(64) >> 1)::bigint) STORED,
    digest      bytea  NOT NULL UNIQUE,
    canonical   text   NOT NULL,
    unused_at   timestamptz             -- since when nothing refers to it; it is removed an hour later
);

-- Ids are random, so that one that a lost commit took away is not given to another queue: a worker may still ask for
-- it.
CREATE TABLE queues (
    queue_id    integer PRIMARY KEY DEFAULT 1 + floor(random() * 2147483645)::integer,
    tenant_id   bigint  NOT NULL,
    name        text    NOT NULL,
    unused_at   timestamptz,            -- as of rules
    max_running integer NOT NULL DEFAULT 2147483647 CHECK (max_running >= 0),  -- attempts at once; the default: no cap
    max_ready   integer NOT NULL DEFAULT 250000 CHECK (max_ready >= 1),  -- attempts that wait for a worker
    rate_limit  float CHECK (rate_limit > 0),   -- attempts per second; null: no limit
    rate_burst  integer CHECK (rate_burst > 0), -- at once; null: what a second allows
    is_dispatched boolean NOT NULL GENERATED ALWAYS AS (name = 'http') STORED,  -- by dispatchers, not by workers
    UNIQUE (tenant_id, name)
);

CREATE INDEX queues_dispatched ON queues (queue_id) WHERE is_dispatched;
CREATE INDEX queues_limited ON queues (queue_id) WHERE max_ready < 250000;

-- A job's id is its number and, in the low 8 bits, its partition.
CREATE SEQUENCE job_numbers AS bigint;

-- A job's name and state. What it does is in its version; firing writes to neither.
CREATE TABLE jobs (
    job_id          bigint      PRIMARY KEY,
    tenant_id       bigint      NOT NULL,
    created_at      timestamptz NOT NULL,
    updated_at      timestamptz NOT NULL,
    paused_at       timestamptz,
    deleted_at      timestamptz,
    resumed_at      timestamptz,            -- when its last pause ended
    noted_success_at timestamptz,           -- with `must_succeed_within`: a success, for when the history has none any more
    spec_version    integer     NOT NULL,
    status          job_status  NOT NULL DEFAULT 'active',
    has_alerts      boolean     NOT NULL DEFAULT false,     -- its spec has alert rules
    name            text        NOT NULL,
    queue           text        NOT NULL,
    labels          jsonb       NOT NULL DEFAULT '{}',
    pause_reason    text
);
-- A deleted job stays for its history, but its name is free again.
CREATE UNIQUE INDEX jobs_by_name ON jobs (tenant_id, name) WHERE status <> 'deleted';
CREATE INDEX jobs_of_tenant ON jobs (tenant_id, job_id) WHERE status <> 'deleted';
CREATE INDEX jobs_with_alerts ON jobs (job_id) WHERE has_alerts AND status <> 'deleted';
CREATE INDEX jobs_to_purge ON jobs (deleted_at) WHERE status = 'deleted';

-- Each spec with the instant from which it held: what an audit recomputes ticks from, and what its runs execute.
-- `spec` is the whole definition but for its payload and what has its default; the columns beside it are what executing
-- needs of it. They are json and not jsonb: each attempt reads them as text, and few statements look inside.
CREATE TABLE job_versions (
    job_id          bigint      NOT NULL,
    rule_id         bigint      NOT NULL,
    effective_at    timestamptz NOT NULL,
    gate_id         bigint,                 -- of its runs, as of timers; null: none, or that of a run's own payload
    spec_version    integer     NOT NULL,
    timeout_seconds integer     NOT NULL,
    gate_limit      integer,                -- how many runs may be inside the gate at once; null: it has none
    name            text        NOT NULL,
    timezone        text        NOT NULL,
    handler         text,                   -- of a worker; null: the target is in the spec
    key_template    text,                   -- null: the default one
    retry           json        NOT NULL,   -- max_retries, backoff, delay_seconds, max_delay_seconds
    payload         json,
    spec            json        NOT NULL,
    PRIMARY KEY (job_id, spec_version)
);
CREATE INDEX job_versions_of_rule ON job_versions (rule_id);

-- Versions that no new run will have: their job has a newer one, or was deleted. At `check_at` the janitor looks
-- whether a run still needs one: if not, it takes out the payload, labels and headers, and removes it after the
-- history. What is left until then tells which ticks the job had. `idle_at`: no run of it has waited or run since.
CREATE TABLE superseded_versions (
    job_id          bigint      NOT NULL,
    check_at        timestamptz NOT NULL,
    idle_at         timestamptz,
    spec_version    integer     NOT NULL,
    PRIMARY KEY (job_id, spec_version)
);
CREATE INDEX superseded_versions_to_check ON superseded_versions (check_at);

-- How many bytes tenants store: a statement that adds or removes something adds a row, and the janitor sums up each
-- minute. `bytes` is of versions, payloads of runs that were asked for, and the audit log; `answer_bytes` of kept
-- answers.
CREATE TABLE storage_changes (
    tenant_id       bigint      NOT NULL,
    bytes           bigint      NOT NULL DEFAULT 0,
    answer_bytes    bigint      NOT NULL DEFAULT 0
);
CREATE INDEX storage_changes_of_tenant ON storage_changes (tenant_id);

CREATE TABLE storage_sums (
    tenant_id       bigint      PRIMARY KEY,
    bytes           bigint      NOT NULL,
    answer_bytes    bigint      NOT NULL
) WITH (fillfactor = 50);

-- The bytes that one version counts for. The constant is about what its other columns and its share of the indexes
-- take.
CREATE FUNCTION version_bytes(payload text, spec text) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS 'SELECT 500 + coalesce(octet_length(payload), 0)::bigint + octet_length(spec)';

-- The bytes that a manual run or a replay counts for.
CREATE FUNCTION requested_bytes(payload text) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS 'SELECT 250 + coalesce(octet_length(payload), 0)::bigint';

-- Jobs whose last tick was fired: they are removed when they have been kept for long enough.
CREATE TABLE finished_jobs (
    job_id      bigint      PRIMARY KEY,
    finished_at timestamptz NOT NULL
);
CREATE INDEX finished_jobs_by_age ON finished_jobs (finished_at);

-- Pending due times, narrow and hot. A job has one `tick` timer until its last tick was fired; while it is paused that
-- one is due at infinity. `last_lane, last_seq` is the latest attempt that a tick led to: overlap asks about it.
-- A gate is what all runs with one concurrency key or one ordering key pass. Its id is a hash of the key, negative for an
-- ordering key.
CREATE TABLE timers (
    job_id          bigint      NOT NULL,
    fire_at         timestamptz NOT NULL,
    due_at          timestamptz NOT NULL,
    tenant_id       bigint      NOT NULL,
    rule_id         bigint      NOT NULL,
    last_lane       bigint,
    last_seq        bigint,
    gate_id         bigint,                 -- of its run; null: none
    queue_id        integer     NOT NULL,
    spec_version    integer     NOT NULL,
    kind            timer_kind  NOT NULL,
    reason          run_reason,             -- of the run that waits; a tick's is decided when it fires
    partition       smallint    NOT NULL,
    attempt         smallint    NOT NULL DEFAULT 1,
    priority        smallint    NOT NULL,   -- 0 high, 1 normal, 2 low
    PRIMARY KEY (partition, job_id, kind, fire_at)
) PARTITION BY HASH (partition);
CREATE INDEX timers_due ON timers (partition, due_at);
-- By stream: behind any number of one tenant's due timers the first of another's is found.
CREATE INDEX timers_of_tenant ON timers (partition, tenant_id, priority, queue_id, due_at);
-- What comes before a run in the order of a key, and has not fired yet.
CREATE INDEX timers_in_order ON timers (gate_id, fire_at, job_id)
    WHERE gate_id < 0 AND due_at < 'infinity' AND kind <> 'retry';

DO $$
BEGIN
    FOR slot IN 0..7 LOOP
        -- Each firing rewrites its row: room on the page for it, and vacuum before much piles up.
        EXECUTE format(
            'CREATE TABLE timers_%s PARTITION OF timers FOR VALUES WITH (MODULUS 8, REMAINDER %s)
             WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0)',
            slot, slot);
    END LOOP;
END $$;

-- What was asked for by hand, a manual run or a replay, beside its timer: its own payload, what it repeats, and the
-- trace context of the request.
CREATE TABLE requested_runs (
    job_id          bigint      NOT NULL,
    fire_at         timestamptz NOT NULL,
    requested_at    timestamptz NOT NULL,
    replays_at      timestamptz,            -- the fire time of the first run that it repeats
    has_payload     boolean     NOT NULL,
    payload         json,
    gate_id         bigint,                 -- by its own payload; null: that of its version
    trace_parent    text,                   -- W3C's header of the request, if it had a valid one
    PRIMARY KEY (job_id, fire_at)
);
CREATE INDEX requested_runs_by_age ON requested_runs (fire_at);

-- `head`: the last seq leased out; no attempt at or below it waits to be leased for the first time. 0 in lanes whose
-- attempts wait at gates: what passes has a free lease.
-- `swept`: every attempt up to here has an outcome; a sweep for attempts without a lease begins after it.
CREATE TABLE lanes (
    lane_id     bigint   PRIMARY KEY,
    head        bigint   NOT NULL DEFAULT 0,
    swept       bigint   NOT NULL DEFAULT 0,
    queue_id    integer  NOT NULL,
    partition   smallint NOT NULL,
    priority    smallint NOT NULL
) WITH (fillfactor = 50);
CREATE INDEX lanes_of_queue ON lanes (queue_id, priority, partition);
CREATE INDEX lanes_of_partition ON lanes (partition);

-- `epoch` is that of the holder that wrote it: it never falls as seq grows, unless the fence has failed.
CREATE TABLE attempts (
    lane_id         bigint      NOT NULL,
    seq             bigint      NOT NULL,
    job_id          bigint      NOT NULL,
    fire_at         timestamptz NOT NULL,
    due_at          timestamptz NOT NULL,
    spec_version    integer     NOT NULL,
    epoch           integer     NOT NULL,
    reason          run_reason  NOT NULL,
    attempt         smallint    NOT NULL,
    is_listed       boolean     NOT NULL DEFAULT true,  -- its run has a row in open_runs
    PRIMARY KEY (lane_id, seq)
) PARTITION BY RANGE (seq);
CREATE INDEX attempts_of_run ON attempts (job_id, fire_at);

-- Which lanes have attempts that wait to be leased for the first time: one row for what one firing appended to one lane.
-- The lease that moves the lane's head to `last_seq` or past it removes the row. So work is found in time that grows with
-- the lanes that have some, and a look into one lane starts after its head, past the rows that vacuum has yet to remove.
-- The search for its attempts begins at `first_seq`, not in the days since the lane was idle. `due_at` is the earliest;
-- `attempts` counts those that were appended, of which some may be leased.
CREATE TABLE ready_batches (
    lane_id         bigint      NOT NULL,
    last_seq        bigint      NOT NULL,
    first_seq       bigint      NOT NULL,
    due_at          timestamptz NOT NULL,
    attempts        integer     NOT NULL,
    is_dispatched   boolean     NOT NULL,   -- as of its queue
    PRIMARY KEY (lane_id, last_seq)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_insert_threshold = -1,
        autovacuum_vacuum_cost_delay = 0);
CREATE INDEX ready_batches_dispatched ON ready_batches (lane_id) WHERE is_dispatched;

-- The primary key is the commit point of an attempt: the first to insert decides how it ended.
-- `is_final`: neither a retry nor a deferred attempt follows, so the run is over.
CREATE TABLE outcomes (
    lane_id         bigint          NOT NULL,
    seq             bigint          NOT NULL,
    started_at      timestamptz,
    finished_at     timestamptz     NOT NULL,
    result          outcome_result  NOT NULL,
    code            integer,
    is_final        boolean         NOT NULL,
    worker          text,
    error           text,
    excerpt         text,
    PRIMARY KEY (lane_id, seq)
) PARTITION BY RANGE (seq);

-- Which worker has which attempts, at or below their lane's head. Of the leases that cover an attempt the narrowest
-- counts: one with first_seq = last_seq is the attempt's own. A lease without a worker is free: its attempt was put
-- back before it was started, or has passed its gate, and waits to be leased from `expires_at` on. Ids are random: a
-- standby that lost the newest commits and was promoted must not give out an id that a worker holds.
CREATE TABLE leases (
    lease_id        bigint      PRIMARY KEY,
    lane_id         bigint      NOT NULL,
    first_seq       bigint      NOT NULL,
    last_seq        bigint      NOT NULL,
    expires_at      timestamptz NOT NULL,
    lease_seconds   real        NOT NULL,   -- its length: one that lies further ahead is from before the clock was set back
    partition       smallint    NOT NULL,
    deferrals       smallint    NOT NULL DEFAULT 0,  -- how often its attempt was put back
    worker          text,                   -- null: free
    handler         text,                   -- of a free lease; '' for HTTP
    started         bigint[]                -- seqs whose start was marked
);
CREATE INDEX leases_of_worker ON leases (worker);
CREATE INDEX leases_expired ON leases (partition, expires_at) WHERE worker IS NOT NULL;
-- By `lane_queue`, as the planner sees it.
CREATE INDEX leases_free ON leases ((lane_id >> 11), handler, expires_at) WHERE worker IS NULL;
CREATE INDEX leases_held ON leases ((lane_id >> 11)) WHERE worker IS NOT NULL;
CREATE INDEX leases_dispatched ON leases ((lane_id >> 11), expires_at) WHERE worker IS NULL AND handler = '';
CREATE UNIQUE INDEX leases_of_attempt ON leases (lane_id, first_seq) WHERE first_seq = last_seq;

-- Unfinished runs that a tick's timer does not speak for: all runs of jobs whose policy is not SKIP, manual runs and
-- replays, all runs with a gate, and whatever waits for or is in a further attempt. `lane_id, seq` is the latest attempt.
-- `gate_id`: the run waits at this gate, in the order (fire_at, job_id), or is inside; null: neither. A run that waits for
-- a retry has left, but stays inside if the gate keeps an order. Only who has the gate's advisory lock lets a run in.
CREATE TABLE open_runs (
    job_id      bigint      NOT NULL,
    fire_at     timestamptz NOT NULL,
    lane_id     bigint      NOT NULL,
    seq         bigint      NOT NULL,
    gate_id     bigint,
    is_inside   boolean     NOT NULL DEFAULT false,
    PRIMARY KEY (job_id, fire_at)
);
CREATE INDEX open_runs_at_gate ON open_runs (is_inside, gate_id, fire_at, job_id) WHERE gate_id IS NOT NULL;

-- Runs that were cancelled while they waited for a timer: no attempt was open that could take the outcome.
CREATE TABLE withdrawals (
    job_id          bigint      NOT NULL,
    fire_at         timestamptz NOT NULL,
    withdrawn_at    timestamptz NOT NULL,
    spec_version    integer     NOT NULL,
    reason          run_reason  NOT NULL,
    PRIMARY KEY (job_id, fire_at)
);
CREATE INDEX withdrawals_by_age ON withdrawals (withdrawn_at);

-- Ticks that did not run, contiguous ones as one row. `blocked_by` is the seq of the attempt because of which they did
-- not run: ticks with the same one are contiguous.
CREATE TABLE gaps (
    job_id          bigint      NOT NULL,
    first_at        timestamptz NOT NULL,
    last_at         timestamptz NOT NULL,
    ticks           bigint      NOT NULL,
    blocked_by      bigint,
    spec_version    integer     NOT NULL,
    reason          gap_reason  NOT NULL,
    PRIMARY KEY (job_id, first_at, reason)
);
CREATE INDEX gaps_by_age ON gaps (last_at);

-- Runs whose attempts are used up, until they are replayed or dismissed.
CREATE TABLE dead_letters (
    job_id          bigint      NOT NULL,
    fire_at         timestamptz NOT NULL,
    tenant_id       bigint      NOT NULL,
    lane_id         bigint      NOT NULL,
    seq             bigint      NOT NULL,
    died_at         timestamptz NOT NULL,
    spec_version    integer     NOT NULL,
    attempt         smallint    NOT NULL,
    reason          text        NOT NULL,   -- exhausted, not_retryable
    PRIMARY KEY (job_id, fire_at)
);
CREATE INDEX dead_letters_of_tenant ON dead_letters (tenant_id, died_at);
CREATE INDEX dead_letters_of_job ON dead_letters (job_id, died_at);
-- In the order of time as they are, and of no use to a search for one tenant's, which would read through those of all.
CREATE INDEX dead_letters_by_age ON dead_letters USING brin (died_at);

-- Replays of many dead letters, which janitors work off in batches, the newest letter first. A batch and the position
-- that it has reached are one transaction: after a crash the next batch goes on there, and no letter is replayed twice.
-- Letters that die after `created_at` are not part of it. Ids are random, as of tenants.
CREATE TYPE replay_status AS ENUM ('running', 'done', 'cancelled');
CREATE TABLE replays (
    replay_id       bigint        PRIMARY KEY DEFAULT (microseconds(clock_at()) << 10) + floor(random() * 1024)::bigint,
    tenant_id       bigint        NOT NULL,
    created_at      timestamptz   NOT NULL,
    finished_at     timestamptz,
    next_batch_at   timestamptz   NOT NULL,
    died_from       timestamptz   NOT NULL,   -- the filter: letters that died from here on, and before `created_at`
    died_before     timestamptz,              -- or before this
    reached_died_at timestamptz   NOT NULL,   -- the position: the letters before it, in this order, are left
    reached_job_id  bigint        NOT NULL,
    reached_fire_at timestamptz   NOT NULL,
    job_id          bigint,
    replayed        bigint        NOT NULL DEFAULT 0,
    looked_at       bigint        NOT NULL DEFAULT 0,
    rate_per_second float         NOT NULL,
    status          replay_status NOT NULL DEFAULT 'running',
    queue           text,
    error           text,                     -- a part of the error's text
    label           text,                     -- name:value
    actor           text          NOT NULL    -- as in the audit log
);
CREATE INDEX replays_of_tenant ON replays (tenant_id, replay_id);
CREATE INDEX replays_running ON replays (next_batch_at) WHERE status = 'running';
CREATE INDEX replays_running_of_tenant ON replays (tenant_id) WHERE status = 'running';
CREATE INDEX replays_by_age ON replays (finished_at) WHERE finished_at IS NOT NULL;

-- The bytes that a replay counts for.
CREATE FUNCTION replay_bytes() RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT 500::bigint';

CREATE TABLE nodes (
    node        text        PRIMARY KEY,
    region      text        NOT NULL,
    version     text        NOT NULL,
    started_at  timestamptz NOT NULL,
    seen_at     timestamptz NOT NULL
);

CREATE TABLE partitions (
    partition   smallint    PRIMARY KEY,
    epoch       integer     NOT NULL DEFAULT 0,
    holder      text,
    taken_at    timestamptz,
    released_at timestamptz,  -- when its last holder gave it up
    outage_at   timestamptz   -- what was due before is left from an outage: for long nobody held the partition
) WITH (fillfactor = 50);
INSERT INTO partitions (partition) SELECT generate_series(0, 255);

-- What is known of the database's clock, in one row: a clock that was set wrong must not remove history, and one that
-- was set back must not leave timers far ahead. docs/decisions/0009-clock-steps.md has the reasons.
CREATE TABLE clock_marks (
    is_only         boolean     PRIMARY KEY DEFAULT true CHECK (is_only),
    marked_at       timestamptz NOT NULL DEFAULT clock_at(),    -- the last look at the clock
    trusted_at      timestamptz NOT NULL DEFAULT clock_at(),    -- ages count from here; follows the clock at a limited rate
    steady_at       timestamptz NOT NULL DEFAULT clock_at(),    -- about what the time would be without steps
    furthest_at     timestamptz NOT NULL DEFAULT clock_at(),    -- the latest time that any look saw
    ran_from_at     timestamptz,    -- ticks in this stretch may have run already, while the clock was ahead
    ran_until_at    timestamptz,
    replan_from     smallint,       -- since the clock was set back: the partition to re-plan next; null: all are done
    replan_after_at timestamptz,    -- ticks after this are yet to come
    is_replan_cut   boolean     NOT NULL DEFAULT false          -- some rows were locked: another pass follows
) WITH (fillfactor = 50);
INSERT INTO clock_marks DEFAULT VALUES;

-- Makes a day a partition of both ledgers; false if it is one. A function, because names and bounds of partitions
-- cannot be parameters of a statement. Tables are made apart and attached: creating them in place would stop all firing
-- meanwhile.
CREATE FUNCTION add_day(day date) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    first_us bigint := microseconds(day::timestamp AT TIME ZONE 'UTC');
    ledger   text;
    part     text;
BEGIN
    IF to_regclass('outcomes_' || to_char(day, 'YYYYMMDD')) IS NOT NULL THEN
        RETURN false;
    END IF;
    FOREACH ledger IN ARRAY ARRAY['attempts', 'outcomes'] LOOP
        part := ledger || '_' || to_char(day, 'YYYYMMDD');
        EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING ALL)', part, ledger);
        EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%s) TO (%s)',
                       ledger, part, first_us, first_us + 86400000000);
    END LOOP;
    RETURN true;
END $$;

CREATE FUNCTION drop_day(day date) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('DROP TABLE IF EXISTS attempts_%1$s, outcomes_%1$s', to_char(day, 'YYYYMMDD'));
END $$;

SELECT add_day((clock_at() AT TIME ZONE 'UTC')::date + ahead) FROM generate_series(-1, 3) AS ahead;
