-- Jobs: their state, their versions, and their tick's timer. Called by the use cases.
--
-- A change of a job locks its row first and its timers after, and reads them in a later statement, which sees what the
-- transaction that it waited for has committed.

-- name: numbers
-- Numbers for new jobs, the database's time, and what jobs may name: the tenant's connections, each as its type, a
-- space and its name. Index: broker_connections_pkey.
SELECT clock_at() AS now_at,
       ARRAY(SELECT nextval('job_numbers') FROM generate_series(1, :count::integer)) AS numbers,
       ARRAY(SELECT type || ' ' || name FROM broker_connections WHERE tenant_id = :tenant_id::bigint) AS connections;

-- name: create
-- New jobs, each with its first version, its timer, and the ticks that the clocks will jump over before the first one;
-- nothing for a name that is taken. Jobs that have much in common are of one kind, which is given once, numbered from
-- 0. Nothing at all is written while a rule, a queue or a lane is missing that one of them refers to.
-- Indexes: jobs_by_name, rules_digest_key, queues_tenant_id_name_key, *_pkey.
WITH kinds AS MATERIALIZED (
    -- Looked up one by one: a join might read all rules, or all queues of the tenant. What the janitor is about to
    -- remove counts as missing, so that adding it tells the janitor.
    SELECT k.*, (SELECT rules.rule_id FROM rules WHERE rules.digest = k.digest AND rules.unused_at IS NULL) AS rule_id,
           (SELECT queues.queue_id FROM queues
             WHERE queues.tenant_id = :tenant_id::bigint AND queues.name = k.queue
               AND queues.unused_at IS NULL) AS queue_id
      FROM unnest(
               :queues::text[], :labels::text[]::jsonb[], :digests::bytea[], :timeouts::integer[],
               :timezones::text[], :handlers::text[], :key_templates::text[], :retries::text[]::json[],
               :fire_ats::timestamptz[], :due_ats::timestamptz[], :priorities::smallint[], :gate_limits::integer[],
               :has_alerts::boolean[]
           ) WITH ORDINALITY AS k (queue, labels, digest, timeout_seconds, timezone, handler, key_template, retry,
                                   fire_at, due_at, priority, gate_limit, has_alerts, number)
),
needed AS (
    SELECT (SELECT queues.queue_id FROM queues
             WHERE queues.tenant_id = :tenant_id::bigint AND queues.name = place.queue)::bigint AS queue_id,
           place.partition, place.priority, place.is_gated
      FROM unnest(:lane_queues::text[], :lane_partitions::smallint[], :lane_priorities::smallint[],
                  :lane_gated::boolean[]) AS place (queue, partition, priority, is_gated)
),
complete AS MATERIALIZED (
    SELECT NOT EXISTS (SELECT FROM kinds WHERE rule_id IS NULL OR queue_id IS NULL)
           AND NOT EXISTS (
                   SELECT FROM needed
                    WHERE (SELECT lanes.lane_id FROM lanes
                            WHERE lanes.lane_id
                                  = lane_id_of(needed.queue_id, needed.partition, needed.priority, needed.is_gated))
                          IS NULL) AS is_complete
),
given AS (
    SELECT *
      FROM unnest(:job_ids::bigint[], :names::text[], :payloads::text[], :specs::text[], :gate_ids::bigint[],
                  :trace_parents::text[], :kinds::bigint[])
               AS g (job_id, name, payload, spec, gate_id, trace_parent, kind)
      JOIN kinds ON kinds.number = g.kind + 1
     WHERE (SELECT is_complete FROM complete)
),
created AS (
    INSERT INTO jobs (job_id, tenant_id, created_at, updated_at, spec_version, name, queue, labels, has_alerts)
    SELECT job_id, :tenant_id::bigint, :now_at::timestamptz, :now_at::timestamptz, 1, name, queue, labels, has_alerts
      FROM given
     ORDER BY job_id  -- of two with one name the first gets it
        ON CONFLICT (tenant_id, name) WHERE status <> 'deleted' DO NOTHING
 RETURNING job_id
),
versions AS (
    INSERT INTO job_versions (job_id, rule_id, effective_at, gate_id, spec_version, timeout_seconds, gate_limit, name,
                              timezone, handler, key_template, retry, payload, spec, trace_parent)
    SELECT job_id, rule_id, :now_at::timestamptz, gate_id, 1, timeout_seconds, gate_limit, name, timezone, handler,
           key_template, retry, payload::json, spec::json, trace_parent
      FROM given
      JOIN created USING (job_id)
),
set AS (
    INSERT INTO timers (job_id, fire_at, due_at, tenant_id, rule_id, gate_id, queue_id, spec_version, kind, partition,
                        priority)
    SELECT job_id, fire_at, due_at, :tenant_id::bigint, rule_id, gate_id, queue_id, 1, 'tick',
           (job_id & 255)::smallint, priority
      FROM given
      JOIN created USING (job_id)
     WHERE fire_at IS NOT NULL
),
counted AS (
    INSERT INTO storage_changes (tenant_id, bytes)
    SELECT :tenant_id::bigint, sum(version_bytes(payload, spec)) FROM given JOIN created USING (job_id)
    HAVING count(*) > 0
),
noted AS (
    INSERT INTO gaps (job_id, first_at, last_at, ticks, spec_version, reason)
    SELECT job_id, first_at, last_at, ticks, 1, reason::gap_reason
      FROM unnest(:gap_job_ids::bigint[], :gap_first_ats::timestamptz[], :gap_last_ats::timestamptz[],
                  :gap_ticks::bigint[], :gap_reasons::text[]) AS gap (job_id, first_at, last_at, ticks, reason)
      JOIN created USING (job_id)
)
SELECT complete.is_complete, ARRAY(SELECT job_id FROM created) AS job_ids FROM complete;

-- name: add_gaps
-- Ticks of a locked job that did not run, or that the clocks will jump over. Index: gaps_pkey.
INSERT INTO gaps (job_id, first_at, last_at, ticks, spec_version, reason)
SELECT :job_id::bigint, first_at, last_at, ticks, :spec_version::integer, reason::gap_reason
  FROM unnest(:first_ats::timestamptz[], :last_ats::timestamptz[], :ticks::bigint[], :reasons::text[])
       AS given (first_at, last_at, ticks, reason)
    ON CONFLICT DO NOTHING;

-- name: forget_ahead
-- Gaps that were noted ahead, for ticks that a schedule will not have any more. Index: gaps_pkey.
DELETE FROM gaps WHERE job_id = :job_id::bigint AND first_at > :now_at::timestamptz AND reason = 'dst';

-- name: view
-- Jobs as their owners see them, each with its latest run, and how many runs of it failed since the last that succeeded:
-- looked for among its newest attempts, unless the latest has succeeded.
-- Indexes: jobs_pkey, job_versions_pkey, timers_pkey, attempts_of_run, outcomes_pkey, lanes_pkey, leases_of_attempt.
SELECT job.job_id, job.status::text AS status, finished.job_id IS NOT NULL AS is_finished, timer.fire_at,
       job.spec_version, job.created_at, job.updated_at, job.paused_at, job.pause_reason,
       (rule.canonical::jsonb ->> 'grace_us')::bigint AS grace_us,
       version.spec::text AS spec, version.payload::text AS payload,
       latest.fire_at AS last_fire_at, outcome.result::text AS last_result,
       lease.is_leased AS is_last_leased,
       (SELECT true FROM timers waiting
         WHERE waiting.partition = (job.job_id & 255)::smallint AND waiting.job_id = job.job_id
           AND waiting.kind <> 'tick' AND waiting.fire_at = latest.fire_at
         LIMIT 1) IS NOT NULL AS has_last_timer,
       (SELECT true FROM withdrawals
         WHERE withdrawals.job_id = job.job_id AND withdrawals.fire_at = latest.fire_at
         LIMIT 1) IS NOT NULL AS is_last_withdrawn,
       coalesce(failed.failures, 0) AS consecutive_failures
  FROM jobs job
  JOIN job_versions version ON version.job_id = job.job_id AND version.spec_version = job.spec_version
  JOIN rules rule ON rule.rule_id = version.rule_id
  LEFT JOIN timers timer
    ON timer.partition = (job.job_id & 255)::smallint AND timer.job_id = job.job_id AND timer.kind = 'tick'
  LEFT JOIN finished_jobs finished ON finished.job_id = job.job_id
  LEFT JOIN LATERAL (
           SELECT attempts.fire_at, attempts.lane_id, attempts.seq
             FROM attempts
            WHERE attempts.job_id = job.job_id
              -- Spares the days before the latest tick. A day before it: other runs may have been fired before it.
              AND attempts.seq >= coalesce(timer.last_seq, 0) - 86400000000
            ORDER BY attempts.fire_at DESC, attempts.seq DESC
            LIMIT 1
       ) AS latest ON true
  LEFT JOIN LATERAL (
           SELECT outcomes.result
             FROM outcomes
            WHERE outcomes.lane_id = latest.lane_id AND outcomes.seq = latest.seq
            LIMIT 1
       ) AS outcome ON true
  LEFT JOIN LATERAL lease_of_attempt(latest.lane_id, latest.seq) AS lease ON true
  -- Not asked of a job whose latest run has succeeded, or that has none.
  LEFT JOIN LATERAL failures_of_job(
           CASE WHEN outcome.result IS DISTINCT FROM 'success' AND latest.seq IS NOT NULL THEN job.job_id END,
           :most_attempts::integer) AS failed ON true
 WHERE job.job_id = ANY(:job_ids::bigint[]) AND job.tenant_id = :tenant_id::bigint AND job.status <> 'deleted'
 ORDER BY job.job_id;

-- name: named
-- The job of a name. Index: jobs_by_name.
SELECT job_id
  FROM jobs
 WHERE tenant_id = :tenant_id::bigint AND name = :name::text AND status <> 'deleted';

-- name: owned
-- Whether the tenant has or had the job: a deleted one keeps its history. Index: jobs_pkey.
SELECT EXISTS (SELECT FROM jobs WHERE job_id = :job_id::bigint AND tenant_id = :tenant_id::bigint);

-- name: lock
-- Locks a job against other changes. Outcomes of its attempts are recorded meanwhile. Index: jobs_pkey.
SELECT job_id
  FROM jobs
 WHERE job_id = :job_id::bigint AND tenant_id = :tenant_id::bigint AND status <> 'deleted'
   FOR NO KEY UPDATE;

-- name: lock_to_delete
-- The same, and against retries, which the deletion would not see. Index: jobs_pkey.
SELECT job_id
  FROM jobs
 WHERE job_id = :job_id::bigint AND tenant_id = :tenant_id::bigint AND status <> 'deleted'
   FOR UPDATE;

-- name: locked
-- The state of a locked job. Locks its tick's timer too: a firing that has it locked ends first, and the state shows
-- it. Indexes: *_pkey.
WITH timer AS MATERIALIZED (
    SELECT fire_at, last_lane, last_seq
      FROM timers
     WHERE partition = (:job_id::bigint & 255)::smallint AND job_id = :job_id::bigint AND kind = 'tick'
       FOR UPDATE
)
SELECT job.job_id, job.created_at, job.status::text AS status, job.spec_version, version.rule_id, rule.canonical,
       version.spec::text AS spec, version.payload::text AS payload, timer.fire_at, timer.last_lane, timer.last_seq,
       clock_at() AS now_at
  FROM jobs job
  JOIN job_versions version ON version.job_id = job.job_id AND version.spec_version = job.spec_version
  JOIN rules rule ON rule.rule_id = version.rule_id
  LEFT JOIN timer ON true
 WHERE job.job_id = :job_id::bigint;

-- name: stored
-- The current version of a job, without its payload. Indexes: jobs_pkey, job_versions_pkey.
SELECT version.spec::text AS spec, version.gate_id, version.payload IS NOT NULL AS has_payload
  FROM jobs job
  JOIN job_versions version ON version.job_id = job.job_id AND version.spec_version = job.spec_version
 WHERE job.job_id = :job_id::bigint;

-- name: has_payload
-- Whether a job's version has this payload, as JSON compares: true is not 1, but 1.0 is. Index: job_versions_pkey.
SELECT payload::jsonb IS NOT DISTINCT FROM :payload::text::jsonb
  FROM job_versions
 WHERE job_id = :job_id::bigint AND spec_version = :spec_version::integer;

-- name: edit
-- The next version of a locked job, and the ids of its rule and queue for its timer. Nothing while its rule, queue or
-- lane is missing. Indexes: jobs_pkey, jobs_by_name, rules_digest_key, queues_tenant_id_name_key, lanes_pkey.
WITH referred AS MATERIALIZED (
    SELECT rule.rule_id, queue.queue_id
      FROM rules rule
      JOIN queues queue
        ON queue.tenant_id = :tenant_id::bigint AND queue.name = :queue::text AND queue.unused_at IS NULL
      JOIN lanes lane
        ON lane.lane_id = lane_id_of(queue.queue_id, :job_id::bigint & 255, :priority::smallint)
     WHERE rule.digest = :digest::bytea AND rule.unused_at IS NULL
       AND (:gate_limit::integer IS NULL
            OR EXISTS (SELECT FROM lanes gated
                        WHERE gated.lane_id
                              = lane_id_of(queue.queue_id, :job_id::bigint & 255, :priority::smallint, true)))
),
edited AS (
    UPDATE jobs
       SET spec_version = :spec_version::integer, updated_at = :now_at::timestamptz, name = :name::text,
           queue = :queue::text, labels = :labels::text::jsonb, has_alerts = :has_alerts::boolean
      FROM referred
     WHERE job_id = :job_id::bigint
),
version AS (
    INSERT INTO job_versions (job_id, rule_id, effective_at, gate_id, spec_version, timeout_seconds, gate_limit, name,
                              timezone, handler, key_template, retry, payload, spec, trace_parent)
    SELECT :job_id::bigint, rule_id, :now_at::timestamptz, :gate_id::bigint, :spec_version::integer, :timeout::integer,
           :gate_limit::integer, :name::text, :timezone::text, :handler::text, :key_template::text, :retry::text::json,
           :payload::text::json, :spec::text::json, :trace_parent::text
      FROM referred
),
superseded AS (
    INSERT INTO superseded_versions (job_id, spec_version, check_at)
    SELECT :job_id::bigint, :spec_version::integer - 1, :now_at::timestamptz FROM referred
        ON CONFLICT DO NOTHING
),
counted AS (
    INSERT INTO storage_changes (tenant_id, bytes)
    SELECT :tenant_id::bigint, version_bytes(:payload::text, :spec::text) FROM referred
)
SELECT rule_id, queue_id FROM referred;

-- name: move_timer
-- Moves the tick's timer of a locked job, in place: what its last tick led to stays known. Index: timers_pkey.
UPDATE timers
   SET fire_at = :fire_at::timestamptz,
       due_at = CASE WHEN :is_paused::boolean THEN 'infinity' ELSE :due_at::timestamptz END,
       rule_id = :rule_id::bigint, queue_id = :queue_id::integer, spec_version = :spec_version::integer,
       priority = :priority::smallint, gate_id = :gate_id::bigint
 WHERE partition = (:job_id::bigint & 255)::smallint AND job_id = :job_id::bigint AND kind = 'tick';

-- name: add_timer
-- Gives a locked job that has none a timer for its ticks again. What its last tick led to may still be open.
-- Indexes: timers_pkey, attempts_of_run, finished_jobs_pkey.
WITH unfinished AS (
    DELETE FROM finished_jobs WHERE job_id = :job_id::bigint
)
INSERT INTO timers (job_id, fire_at, due_at, tenant_id, rule_id, last_lane, last_seq, gate_id, queue_id, spec_version,
                    kind, partition, priority)
SELECT :job_id::bigint, :fire_at::timestamptz,
       CASE WHEN :is_paused::boolean THEN 'infinity' ELSE :due_at::timestamptz END,
       :tenant_id::bigint, :rule_id::bigint, latest.lane_id, latest.seq, :gate_id::bigint, :queue_id::integer,
       :spec_version::integer, 'tick', (:job_id::bigint & 255)::smallint, :priority::smallint
  FROM (VALUES (true)) AS always
  LEFT JOIN LATERAL (
           SELECT lane_id, seq
             FROM attempts
            WHERE job_id = :job_id::bigint AND reason NOT IN ('manual', 'replay')
            ORDER BY fire_at DESC, seq DESC
            LIMIT 1
       ) AS latest ON true;

-- name: drop_timer
-- Takes the tick's timer of a locked job away; `is_finished`: its last tick has passed. Index: timers_pkey.
WITH dropped AS (
    DELETE FROM timers
     WHERE partition = (:job_id::bigint & 255)::smallint AND job_id = :job_id::bigint AND kind = 'tick'
)
INSERT INTO finished_jobs (job_id, finished_at)
SELECT :job_id::bigint, :now_at::timestamptz WHERE :is_finished::boolean
    ON CONFLICT DO NOTHING;

-- name: unfinish
-- A job that only triggers run never finishes. Index: finished_jobs_pkey.
DELETE FROM finished_jobs WHERE job_id = :job_id::bigint;

-- name: pause
-- Pauses a locked job: its timer stays at the first tick that the pause swallows, and queued runs stay queued.
-- Indexes: jobs_pkey, timers_pkey.
WITH paused AS (
    UPDATE jobs
       SET status = 'paused', paused_at = clock_at(), updated_at = clock_at(), pause_reason = :reason::text
     WHERE job_id = :job_id::bigint
)
UPDATE timers
   SET due_at = 'infinity'
 WHERE partition = (:job_id::bigint & 255)::smallint AND job_id = :job_id::bigint AND kind IN ('tick', 'queued');

-- name: resume
-- Makes a locked job active again, and its queued runs due; another statement sets its tick's timer.
-- Indexes: jobs_pkey, timers_pkey.
WITH due AS (
    UPDATE timers
       SET due_at = :now_at::timestamptz
     WHERE partition = (:job_id::bigint & 255)::smallint AND job_id = :job_id::bigint AND kind = 'queued'
)
UPDATE jobs
   SET status = 'active', paused_at = NULL, pause_reason = NULL, updated_at = :now_at::timestamptz,
       resumed_at = :now_at::timestamptz
 WHERE job_id = :job_id::bigint;

-- name: set_due
-- Lets the tick's timer of a locked job fall due again. Index: timers_pkey.
UPDATE timers
   SET fire_at = :fire_at::timestamptz, due_at = :due_at::timestamptz
 WHERE partition = (:job_id::bigint & 255)::smallint AND job_id = :job_id::bigint AND kind = 'tick';

-- name: catch_up
-- Lets ticks of a locked job run after all, one after the other: each waits until there is room. The latest attempt
-- that a tick led to goes with them, for what is open of it. Indexes: timers_pkey, queues_tenant_id_name_key.
INSERT INTO timers (job_id, fire_at, due_at, tenant_id, rule_id, last_lane, last_seq, gate_id, queue_id, spec_version,
                    kind, reason, partition, priority)
SELECT job.job_id, tick.fire_at,
       -- Due now, and yet in the order of their ticks.
       :now_at::timestamptz - (cardinality(:fire_ats::timestamptz[]) - tick.number) * interval '1 microsecond',
       job.tenant_id, version.rule_id, :last_lane::bigint, :last_seq::bigint, version.gate_id, queue.queue_id,
       job.spec_version, 'queued', 'catch_up',
       (job.job_id & 255)::smallint,
       CASE version.spec ->> 'priority' WHEN 'high' THEN 0 WHEN 'low' THEN 2 ELSE 1 END
  FROM jobs job
  JOIN job_versions version ON version.job_id = job.job_id AND version.spec_version = job.spec_version
  JOIN queues queue ON queue.tenant_id = job.tenant_id AND queue.name = job.queue
 CROSS JOIN unnest(:fire_ats::timestamptz[]) WITH ORDINALITY AS tick (fire_at, number)
 WHERE job.job_id = :job_id::bigint
    ON CONFLICT DO NOTHING;

-- name: delete
-- Deletes a job that is locked with its tick's timer, at the instant up to which its ticks were settled. Runs that
-- waited for their timers are withdrawn; open attempts run on, and `record` lets nothing follow
-- them. Indexes: jobs_pkey, timers_pkey, open_runs_pkey.
WITH gone AS (
    UPDATE jobs
       SET status = 'deleted', deleted_at = :now_at::timestamptz, updated_at = :now_at::timestamptz
     WHERE job_id = :job_id::bigint
 RETURNING job_id, spec_version
),
superseded AS (
    INSERT INTO superseded_versions (job_id, spec_version, check_at)
    SELECT job_id, spec_version, :now_at::timestamptz FROM gone
        ON CONFLICT DO NOTHING
),
dropped AS (
    DELETE FROM timers
     WHERE partition = (:job_id::bigint & 255)::smallint AND job_id = :job_id::bigint
 RETURNING job_id, fire_at, kind, spec_version, reason
),
withdrawn AS (
    INSERT INTO withdrawals (job_id, fire_at, withdrawn_at, spec_version, reason)
    SELECT job_id, fire_at, :now_at::timestamptz, spec_version, reason FROM dropped WHERE kind <> 'tick'
        ON CONFLICT DO NOTHING
),
closed AS (
    DELETE FROM open_runs
     USING dropped
     WHERE dropped.kind <> 'tick' AND open_runs.job_id = dropped.job_id AND open_runs.fire_at = dropped.fire_at
)
DELETE FROM finished_jobs WHERE job_id = :job_id::bigint;

-- name: lock_available
-- Edits, triggers and deletions of these wait until the transaction ends; jobs that other transactions have locked are
-- left out. What is decided about them is read by statements after this one, which see what those have committed.
-- Index: jobs_pkey.
SELECT job_id FROM jobs WHERE job_id = ANY(:job_ids::bigint[]) ORDER BY job_id FOR UPDATE SKIP LOCKED;
