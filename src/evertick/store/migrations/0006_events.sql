-- The event stream: finished runs, gaps, changes of jobs and entries of the audit log, in one order.
--
-- Triggers add what is new to `new_events`, in the transaction that writes it, for tenants that have a stream. One
-- janitor at a time moves these rows to `events`, and gives them their positions there. So a position is never visible
-- before a smaller one, and what a transaction did after another has the larger position.

-- Whose events are kept. `is_of_all`: those of all tenants.
CREATE TABLE event_streams (
    tenant_id       bigint      PRIMARY KEY REFERENCES tenants,
    created_at      timestamptz NOT NULL,
    since           bigint      NOT NULL,   -- its events have larger positions
    is_of_all       boolean     NOT NULL
);

-- Where the events of a stream are sent, and how far that came. Apart from the streams, which triggers read: this changes
-- with every delivery.
CREATE TABLE event_sinks (
    tenant_id       bigint      PRIMARY KEY REFERENCES event_streams ON DELETE CASCADE,
    cursor          bigint      NOT NULL,   -- the position of the last event that was delivered
    latest          bigint      NOT NULL,   -- the position of the last event that there is
    epoch           bigint      NOT NULL DEFAULT 0,     -- fences the lease
    leased_until    timestamptz NOT NULL DEFAULT '-infinity',
    next_try_at     timestamptz NOT NULL DEFAULT '-infinity',
    delivered_at    timestamptz,            -- last
    failing_since   timestamptz,            -- null: the last delivery succeeded
    failures        integer     NOT NULL DEFAULT 0,     -- since then
    last_error      text,
    types           text[],                 -- null: all
    target          json        NOT NULL
) WITH (fillfactor = 50);
CREATE INDEX event_sinks_behind ON event_sinks (next_try_at) WHERE cursor < latest;

-- As `contract/events` has them.
CREATE TYPE event_type AS ENUM (
    'run.finished', 'gap.recorded', 'gap.removed', 'job.created', 'job.edited', 'job.paused', 'job.resumed',
    'job.finished', 'job.reopened', 'job.deleted', 'audit.recorded'
);

-- Events without a position yet. Of two about the same rows the later one has the larger number.
CREATE TABLE new_events (
    number          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_id       bigint      NOT NULL,
    at              timestamptz NOT NULL DEFAULT clock_at(),
    job_id          bigint,                 -- not of an entry of the audit log, nor of a run that has its attempt
    fire_at         timestamptz,            -- of a run; the first tick of a gap
    last_at         timestamptz,            -- of a gap
    ticks           bigint,                 -- of a gap
    lane_id         bigint,                 -- of a run's last attempt; null: it was withdrawn
    seq             bigint,
    entry_id        bigint,                 -- of the audit log
    spec_version    integer,
    type            event_type  NOT NULL,
    detail          text                    -- a gap's reason; why a job is paused
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_insert_threshold = -1,
        autovacuum_vacuum_cost_delay = 0);

-- A day's events are one partition. A position is the time in microseconds when it was given, or one more than the last.
CREATE TABLE events (
    position        bigint      NOT NULL,
    tenant_id       bigint      NOT NULL,
    at              timestamptz NOT NULL,
    job_id          bigint,
    fire_at         timestamptz,
    last_at         timestamptz,
    ticks           bigint,
    lane_id         bigint,
    seq             bigint,
    entry_id        bigint,
    spec_version    integer,
    type            event_type  NOT NULL,
    detail          text,
    PRIMARY KEY (position)
) PARTITION BY RANGE (position);
CREATE INDEX events_of_tenant ON events (tenant_id, position);

-- One row. Who locks it gives positions.
CREATE TABLE event_positions (
    is_only         boolean     PRIMARY KEY DEFAULT true CHECK (is_only),
    last_position   bigint      NOT NULL,
    kept_from       bigint      NOT NULL    -- events before it may have been dropped
) WITH (fillfactor = 50);
INSERT INTO event_positions (last_position, kept_from) VALUES (0, 0);

CREATE FUNCTION add_event_day(day date) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    first_us bigint := microseconds(day::timestamp AT TIME ZONE 'UTC');
    part     text   := 'events_' || to_char(day, 'YYYYMMDD');
BEGIN
    IF to_regclass(part) IS NULL THEN
        EXECUTE format('CREATE TABLE %I (LIKE events INCLUDING ALL)', part);
        EXECUTE format('ALTER TABLE events ATTACH PARTITION %I FOR VALUES FROM (%s) TO (%s)',
                       part, first_us, first_us + 86400000000);
    END IF;
END $$;

CREATE FUNCTION drop_event_day(day date) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('DROP TABLE IF EXISTS events_%s', to_char(day, 'YYYYMMDD'));
END $$;

-- The triggers. Without any stream each costs one look into an empty table.
CREATE FUNCTION is_streamed(tenant_id bigint) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM event_streams stream WHERE stream.tenant_id = is_streamed.tenant_id OR stream.is_of_all)
$$;

-- A run is finished by a final outcome …
CREATE FUNCTION stream_outcomes() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM event_streams) THEN
        INSERT INTO new_events (type, tenant_id, lane_id, seq)
        SELECT 'run.finished', queue.tenant_id, added.lane_id, added.seq
          FROM added
          JOIN queues queue ON queue.queue_id = lane_queue(added.lane_id)::integer
         WHERE added.is_final AND is_streamed(queue.tenant_id);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER stream_outcomes AFTER INSERT ON outcomes REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION stream_outcomes();

-- … or by its withdrawal.
CREATE FUNCTION stream_withdrawals() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM event_streams) THEN
        INSERT INTO new_events (type, tenant_id, job_id, fire_at, spec_version)
        SELECT 'run.finished', job.tenant_id, added.job_id, added.fire_at, added.spec_version
          FROM added
          JOIN jobs job ON job.job_id = added.job_id
         WHERE is_streamed(job.tenant_id);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER stream_withdrawals AFTER INSERT ON withdrawals REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION stream_withdrawals();

-- A gap is told again, whole, when it changes.
CREATE FUNCTION stream_gaps() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM event_streams) THEN
        INSERT INTO new_events (type, tenant_id, job_id, fire_at, last_at, ticks, spec_version, detail)
        SELECT 'gap.recorded', job.tenant_id, gap.job_id, gap.first_at, gap.last_at, gap.ticks, gap.spec_version,
               gap.reason::text
          FROM added gap
          JOIN jobs job ON job.job_id = gap.job_id
         WHERE is_streamed(job.tenant_id);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER stream_gaps AFTER INSERT ON gaps REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION stream_gaps();
CREATE TRIGGER stream_changed_gaps AFTER UPDATE ON gaps REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION stream_gaps();

-- A gap is removed because its ticks will not come, or will come after all: they lie ahead. One that is removed because
-- it is old is no event.
CREATE FUNCTION stream_removed_gaps() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM event_streams) THEN
        INSERT INTO new_events (type, tenant_id, job_id, fire_at, last_at, ticks, spec_version, detail)
        SELECT 'gap.removed', job.tenant_id, gap.job_id, gap.first_at, gap.last_at, gap.ticks, gap.spec_version,
               gap.reason::text
          FROM removed gap
          JOIN jobs job ON job.job_id = gap.job_id
         WHERE is_streamed(job.tenant_id) AND gap.last_at > clock_at() - interval '1 hour';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER stream_removed_gaps AFTER DELETE ON gaps REFERENCING OLD TABLE AS removed
    FOR EACH STATEMENT EXECUTE FUNCTION stream_removed_gaps();

CREATE FUNCTION stream_jobs() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM event_streams) THEN
        INSERT INTO new_events (type, tenant_id, job_id, spec_version)
        SELECT 'job.created', tenant_id, job_id, spec_version FROM added WHERE is_streamed(tenant_id) ORDER BY job_id;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER stream_jobs AFTER INSERT ON jobs REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION stream_jobs();

CREATE FUNCTION stream_changed_jobs() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM event_streams) THEN
        INSERT INTO new_events (type, tenant_id, job_id, spec_version, detail)
        SELECT change.type::event_type, changed.tenant_id, changed.job_id, changed.spec_version, changed.pause_reason
          FROM changed
          JOIN former ON former.job_id = changed.job_id
         CROSS JOIN LATERAL (
                   SELECT 'job.edited' AS type WHERE changed.spec_version <> former.spec_version
                    UNION ALL
                   SELECT CASE changed.status
                              WHEN 'paused' THEN 'job.paused' WHEN 'deleted' THEN 'job.deleted' ELSE 'job.resumed'
                          END
                    WHERE changed.status <> former.status
               ) AS change
         WHERE is_streamed(changed.tenant_id);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER stream_changed_jobs AFTER UPDATE ON jobs REFERENCING NEW TABLE AS changed OLD TABLE AS former
    FOR EACH STATEMENT EXECUTE FUNCTION stream_changed_jobs();

CREATE FUNCTION stream_finished_jobs() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM event_streams) THEN
        INSERT INTO new_events (type, tenant_id, job_id, spec_version)
        SELECT CASE TG_OP WHEN 'INSERT' THEN 'job.finished' ELSE 'job.reopened' END::event_type, job.tenant_id, job.job_id,
               job.spec_version
          FROM changed
          JOIN jobs job ON job.job_id = changed.job_id
         WHERE is_streamed(job.tenant_id) AND job.status <> 'deleted';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER stream_finished_jobs AFTER INSERT ON finished_jobs REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION stream_finished_jobs();
CREATE TRIGGER stream_reopened_jobs AFTER DELETE ON finished_jobs REFERENCING OLD TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION stream_finished_jobs();

CREATE FUNCTION stream_audit_log() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM event_streams) THEN
        INSERT INTO new_events (type, tenant_id, entry_id)
        SELECT 'audit.recorded', tenant_id, entry_id FROM added WHERE is_streamed(tenant_id) ORDER BY entry_id;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER stream_audit_log AFTER INSERT ON audit_log REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION stream_audit_log();
