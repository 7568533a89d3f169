-- Replays of many dead letters: started, read and cancelled by the use cases, worked off by the janitor.

-- name: scan
-- Some dead letters of a tenant before a position, newest first, and which of them are wanted. The number of letters
-- that it looks at is limited, not the number that it finds: a filter that fits few of a million must not read them all
-- at once. Indexes: dead_letters_of_tenant, dead_letters_of_job, jobs_pkey, outcomes_pkey.
WITH scanned AS MATERIALIZED (
    -- Two searches, of which one is empty: one plan cannot serve both from an index.
    (SELECT job_id, fire_at, died_at, lane_id, seq
       FROM dead_letters
      WHERE :job_id::bigint IS NULL AND tenant_id = :tenant_id::bigint
        AND died_at >= :from_at::timestamptz AND died_at <= :before_at::timestamptz
        AND (died_at, job_id, fire_at)
            < (:before_at::timestamptz, :before_job_id::bigint, :before_fire_at::timestamptz)
      ORDER BY died_at DESC, job_id DESC, fire_at DESC
      LIMIT :most::integer)
     UNION ALL
    (SELECT job_id, fire_at, died_at, lane_id, seq
       FROM dead_letters
      WHERE job_id = :job_id::bigint AND tenant_id = :tenant_id::bigint
        AND died_at >= :from_at::timestamptz AND died_at <= :before_at::timestamptz
        AND (died_at, job_id, fire_at)
            < (:before_at::timestamptz, :before_job_id::bigint, :before_fire_at::timestamptz)
      ORDER BY died_at DESC, fire_at DESC
      LIMIT :most::integer)
)
SELECT scanned.job_id, scanned.fire_at, scanned.died_at,
       -- One by one: as a join, a plan that is made on empty tables reads them whole when they are full.
       coalesce((SELECT job.status <> 'deleted'  -- what is to be replayed needs its job
                        AND (:queue::text IS NULL OR job.queue = :queue::text)
                        AND (:label::text IS NULL OR job.labels @> jsonb_build_object(
                                 split_part(:label::text, ':', 1), substr(:label::text, strpos(:label::text, ':') + 1)))
                   FROM jobs job
                  WHERE job.job_id = scanned.job_id
                  LIMIT 1), false)
       AND (:error::text IS NULL
            OR coalesce((SELECT strpos(lower(outcome.error), lower(:error::text)) > 0
                           FROM outcomes outcome
                          WHERE outcome.lane_id = scanned.lane_id AND outcome.seq = scanned.seq
                          LIMIT 1), false)) AS is_wanted
  FROM scanned
 ORDER BY died_at DESC, job_id DESC, fire_at DESC;

-- name: lock_jobs
-- Locks the jobs of some letters against deletion, always in the same order, but waits for nobody: jobs that a user has
-- locked are left out. Index: jobs_pkey.
SELECT job_id, status = 'deleted' AS is_deleted
  FROM jobs
 WHERE job_id = ANY(:job_ids::bigint[]) AND tenant_id = :tenant_id::bigint
 ORDER BY job_id
   FOR NO KEY UPDATE SKIP LOCKED;

-- name: wait_for_jobs
-- The same for a user, who waits for other users. Index: jobs_pkey.
SELECT job_id, status = 'deleted' AS is_deleted
  FROM jobs
 WHERE job_id = ANY(:job_ids::bigint[]) AND tenant_id = :tenant_id::bigint
 ORDER BY job_id
   FOR NO KEY UPDATE;

-- name: restart
-- Lets a running replay of the tenant with the same filter begin again at the newest letter, so that it has those that died
-- since it was started; none if there is no such replay. Indexes: replays_running_of_tenant, replays_pkey.
UPDATE replays
   SET reached_died_at = least(died_before, clock_at() + interval '1 microsecond'), reached_job_id = -1,
       reached_fire_at = '1970-01-01 00:00:00+00'
 WHERE replay_id = (
           SELECT replay_id
             FROM replays
            WHERE tenant_id = :tenant_id::bigint AND status = 'running' AND died_from = :died_from::timestamptz
              AND (died_before, job_id, queue, error, label) IS NOT DISTINCT FROM
                  (:died_before::timestamptz, :job_id::bigint, :queue::text, :error::text, :label::text)
            LIMIT 1)
   -- It may have ended since.
   AND status = 'running'
RETURNING replay_id;

-- name: count_running
-- How many replays of a tenant are running. Index: replays_running_of_tenant.
SELECT count(*) FROM replays WHERE tenant_id = :tenant_id::bigint AND status = 'running';

-- name: start
-- A new replay of the letters that have died until now. Index: replays_pkey.
WITH clock AS MATERIALIZED (
    SELECT clock_at() AS now_at
),
counted AS (
    INSERT INTO storage_changes (tenant_id, bytes) VALUES (:tenant_id::bigint, replay_bytes())
)
INSERT INTO replays (tenant_id, created_at, next_batch_at, died_from, died_before, reached_died_at, reached_job_id,
                     reached_fire_at, job_id, rate_per_second, queue, error, label, actor)
SELECT :tenant_id::bigint, clock.now_at, greatest(:start_at::timestamptz, clock.now_at), :died_from::timestamptz,
       -- Those that died at this very instant are part of it, unless `died_before` excludes them.
       :died_before::timestamptz, least(:died_before::timestamptz, clock.now_at + interval '1 microsecond'), -1,
       '1970-01-01 00:00:00+00', :job_id::bigint, :rate_per_second::float, :queue::text, :error::text, :label::text, :actor::text
  FROM clock
RETURNING replay_id;

-- name: page
-- A tenant's replays, newest first, or one. Indexes: replays_of_tenant, replays_pkey.
SELECT replay_id, tenant_id, created_at, finished_at, next_batch_at, died_from, died_before, reached_died_at,
       reached_job_id, reached_fire_at, job_id, replayed, looked_at, rate_per_second, status::text AS status, queue,
       error, label, actor
  FROM replays
 WHERE tenant_id = :tenant_id::bigint AND replay_id < :before::bigint
   AND (:only::bigint IS NULL OR replay_id = :only::bigint)
 ORDER BY replay_id DESC
 LIMIT :most::integer;

-- name: cancel
-- Ends a running replay. It waits for the batch under way, which is short. Index: replays_pkey.
UPDATE replays
   SET status = 'cancelled', finished_at = clock_at()
 WHERE replay_id = :replay_id::bigint AND tenant_id = :tenant_id::bigint AND status = 'running'
RETURNING replay_id;

-- name: take
-- Locks the replay whose next batch begins first, if it begins soon, unless another janitor has it.
-- Indexes: replays_running, tenants_pkey.
SELECT replay.replay_id, replay.tenant_id, replay.next_batch_at, replay.died_from, replay.reached_died_at,
       replay.reached_job_id, replay.reached_fire_at, replay.job_id, replay.rate_per_second, replay.queue,
       replay.error, replay.label, clock_at() AS now_at, tenant.submits_per_second, tenant.submit_burst,
       tenant.storage_quota_bytes
  FROM replays replay
  JOIN tenants tenant ON tenant.tenant_id = replay.tenant_id
 WHERE replay.status = 'running' AND replay.next_batch_at <= (SELECT clock_at() + :ahead::interval)
 ORDER BY replay.next_batch_at
 LIMIT 1
   FOR UPDATE OF replay SKIP LOCKED;

-- name: advance
-- What a batch of a locked replay has done, and when the next one follows. Index: replays_pkey.
UPDATE replays
   SET reached_died_at = :reached_died_at::timestamptz, reached_job_id = :reached_job_id::bigint,
       reached_fire_at = :reached_fire_at::timestamptz, next_batch_at = :next_batch_at::timestamptz,
       replayed = replayed + :replayed::integer, looked_at = looked_at + :looked_at::integer,
       status = CASE WHEN :is_done::boolean THEN 'done' ELSE status END,
       finished_at = CASE WHEN :is_done::boolean THEN clock_at() END
 WHERE replay_id = :replay_id::bigint;

-- name: postpone
-- Lets the others come first after a batch that failed. Index: replays_pkey.
UPDATE replays
   SET next_batch_at = clock_at() + :seconds::float * interval '1 second'
 WHERE replay_id = :replay_id::bigint AND status = 'running';
