-- Dead letters: runs whose attempts are used up, until they are replayed or dismissed. Called by the use cases.

-- name: page
-- A tenant's dead letters, newest first, with the last attempt's error. Indexes: dead_letters_of_tenant, outcomes_pkey.
SELECT letter.job_id, letter.fire_at, job.name, letter.died_at, letter.attempt, letter.reason, letter.spec_version,
       outcome.code, outcome.error
  FROM dead_letters letter
  JOIN jobs job ON job.job_id = letter.job_id
  LEFT JOIN outcomes outcome ON outcome.lane_id = letter.lane_id AND outcome.seq = letter.seq
 WHERE letter.tenant_id = :tenant_id::bigint
   AND letter.died_at >= :from_at::timestamptz AND letter.died_at <= :before_at::timestamptz
   AND (letter.died_at, letter.job_id, letter.fire_at)
       < (:before_at::timestamptz, :before_job_id::bigint, :before_fire_at::timestamptz)
   AND (:job_id::bigint IS NULL OR letter.job_id = :job_id::bigint)
   -- What is to be replayed needs its job.
   AND (NOT :of_live_jobs::boolean OR job.status <> 'deleted')
 ORDER BY letter.died_at DESC, letter.job_id DESC, letter.fire_at DESC
 LIMIT :most::integer;

-- name: take
-- Removes a dead letter and tells which version its run had. Index: dead_letters_pkey.
DELETE FROM dead_letters
 WHERE job_id = :job_id::bigint AND fire_at = :fire_at::timestamptz AND tenant_id = :tenant_id::bigint
RETURNING spec_version;

-- name: lock_jobs
-- Locks the jobs of some dead letters, in one order for all who do so, against deletion. Index: jobs_pkey.
SELECT job_id
  FROM jobs
 WHERE job_id = ANY(:job_ids::bigint[]) AND tenant_id = :tenant_id::bigint AND status <> 'deleted'
 ORDER BY job_id
   FOR NO KEY UPDATE;

-- name: replay
-- Makes runs of some dead letters of locked jobs, one after the other at a rate, and removes the letters.
-- Each has an instant of its own, by its number; should a run of its job stand there already, the letter stays.
-- Indexes: *_pkey, attempts_of_run, queues_tenant_id_name_key.
WITH clock AS MATERIALIZED (
    SELECT clock_at() AS now_at
),
wanted AS MATERIALIZED (
    SELECT given.job_id, given.fire_at, clock.now_at,
           clock.now_at + given.number * interval '1 microsecond' AS new_at,
           :start_at::timestamptz + given.number * :seconds_apart::float * interval '1 second' AS due_at
      FROM unnest(:job_ids::bigint[], :fire_ats::timestamptz[], :numbers::integer[]) AS given (job_id, fire_at, number)
     CROSS JOIN clock
),
free AS MATERIALIZED (
    SELECT wanted.*
      FROM wanted
     WHERE NOT EXISTS (SELECT FROM requested_runs asked
                        WHERE asked.job_id = wanted.job_id AND asked.fire_at = wanted.new_at)
       AND NOT EXISTS (SELECT FROM timers timer
                        WHERE timer.partition = (wanted.job_id & 255)::smallint AND timer.job_id = wanted.job_id
                          AND timer.fire_at = wanted.new_at)
       AND NOT EXISTS (SELECT FROM attempts attempt
                        WHERE attempt.job_id = wanted.job_id AND attempt.fire_at = wanted.new_at
                          AND attempt.seq >= microseconds(wanted.now_at))
       AND NOT EXISTS (SELECT FROM gaps gap
                        WHERE gap.job_id = wanted.job_id AND gap.first_at = wanted.new_at)
),
taken AS (
    DELETE FROM dead_letters letter
     USING free
     WHERE letter.job_id = free.job_id AND letter.fire_at = free.fire_at AND letter.tenant_id = :tenant_id::bigint
 RETURNING letter.job_id, letter.fire_at, letter.spec_version, free.now_at, free.new_at,
           greatest(free.due_at, free.new_at) AS due_at
),
noted AS (
    INSERT INTO requested_runs (job_id, fire_at, requested_at, replays_at, has_payload, payload)
    SELECT taken.job_id, taken.new_at, taken.now_at, taken.fire_at, true,
           CASE WHEN asked.has_payload THEN asked.payload ELSE version.payload END
      FROM taken
      LEFT JOIN job_versions version
        ON version.job_id = taken.job_id AND version.spec_version = taken.spec_version
      LEFT JOIN requested_runs asked ON asked.job_id = taken.job_id AND asked.fire_at = taken.fire_at
 RETURNING requested_bytes(payload::text) AS bytes
),
counted AS (
    INSERT INTO storage_changes (tenant_id, bytes)
    SELECT :tenant_id::bigint, sum(bytes) FROM noted HAVING count(*) > 0
)
INSERT INTO timers (job_id, fire_at, due_at, tenant_id, rule_id, queue_id, spec_version, kind, reason, partition,
                    priority)
SELECT job.job_id, taken.new_at, taken.due_at, job.tenant_id, version.rule_id, queue.queue_id, job.spec_version,
       'replay', 'replay', (job.job_id & 255)::smallint,
       CASE version.spec ->> 'priority' WHEN 'high' THEN 0 WHEN 'low' THEN 2 ELSE 1 END
  FROM taken
  JOIN jobs job ON job.job_id = taken.job_id
  JOIN job_versions version ON version.job_id = job.job_id AND version.spec_version = job.spec_version
  JOIN queues queue ON queue.tenant_id = job.tenant_id AND queue.name = job.queue
RETURNING job_id, fire_at, due_at;
