-- Tenants: owners of jobs, quota and fair share; what they use, and what their jobs did lately. Called by the use
-- cases; storage is summed up by the janitor.

-- name: add
-- A new tenant, unless the name is taken. Index: tenants_name_key.
INSERT INTO tenants (name, weight)
VALUES (:name::text, :weight::smallint)
    ON CONFLICT DO NOTHING
RETURNING tenant_id, name, weight, created_at, jobs_quota, submits_per_second, submit_burst, running_quota,
          ready_quota, shortest_interval_seconds, http_timeout_max_seconds, storage_quota_bytes,
       default_jitter_seconds, history_days, archive_days, is_host;

-- name: find
-- The tenant of an id. Index: tenants_pkey.
SELECT tenant_id, name, weight, created_at, jobs_quota, submits_per_second, submit_burst, running_quota,
       ready_quota, shortest_interval_seconds, http_timeout_max_seconds, storage_quota_bytes,
       default_jitter_seconds, history_days, archive_days, is_host
  FROM tenants
 WHERE tenant_id = :tenant_id::bigint;

-- name: named
-- The tenant of a name. Index: tenants_name_key.
SELECT tenant_id, name, weight, created_at, jobs_quota, submits_per_second, submit_burst, running_quota,
       ready_quota, shortest_interval_seconds, http_timeout_max_seconds, storage_quota_bytes,
       default_jitter_seconds, history_days, archive_days, is_host
  FROM tenants
 WHERE name = :name::text;

-- name: all
-- Every tenant.
SELECT tenant_id, name, weight, created_at, jobs_quota, submits_per_second, submit_burst, running_quota,
       ready_quota, shortest_interval_seconds, http_timeout_max_seconds, storage_quota_bytes,
       default_jitter_seconds, history_days, archive_days, is_host
  FROM tenants
 ORDER BY tenant_id;

-- name: count
-- How many there are.
SELECT count(*) FROM tenants;

-- name: dispatched
-- Queues that dispatchers serve, in the order of their ids, with the weights of their tenants. Indexes: queues_dispatched,
-- tenants_pkey.
SELECT queue.queue_id, queue.tenant_id, tenant.weight
  FROM (SELECT queue_id, tenant_id
          FROM queues
         WHERE is_dispatched AND queue_id > :after::integer
         ORDER BY queue_id
         LIMIT :most::integer) AS queue
  JOIN tenants tenant ON tenant.tenant_id = queue.tenant_id
 ORDER BY queue.queue_id;

-- name: limits
-- What delivering for tenants has to keep. Index: tenants_pkey.
SELECT tenant_id, weight, http_timeout_max_seconds FROM tenants WHERE tenant_id = ANY(:tenant_ids::bigint[]);

-- name: page
-- Tenants in the order of their ids; one alone if it is given. Index: tenants_pkey.
SELECT tenant_id, name, weight, created_at, jobs_quota, submits_per_second, submit_burst, running_quota,
       ready_quota, shortest_interval_seconds, http_timeout_max_seconds, storage_quota_bytes,
       default_jitter_seconds, history_days, archive_days, is_host
  FROM tenants
 WHERE tenant_id > :after::bigint AND (:only::bigint IS NULL OR tenant_id = :only::bigint)
 ORDER BY tenant_id
 LIMIT :most::integer;

-- name: edit
-- Changes what is given of a tenant; null leaves as it is. Index: tenants_pkey.
UPDATE tenants
   SET weight = coalesce(:weight::smallint, weight),
       jobs_quota = coalesce(:jobs_quota::integer, jobs_quota),
       submits_per_second = coalesce(:submits_per_second::integer, submits_per_second),
       submit_burst = coalesce(:submit_burst::integer, submit_burst),
       running_quota = coalesce(:running_quota::integer, running_quota),
       ready_quota = coalesce(:ready_quota::integer, ready_quota),
       shortest_interval_seconds = coalesce(:shortest_interval_seconds::float, shortest_interval_seconds),
       http_timeout_max_seconds = coalesce(:http_timeout_max_seconds::integer, http_timeout_max_seconds),
       storage_quota_bytes = coalesce(:storage_quota_bytes::bigint, storage_quota_bytes),
       default_jitter_seconds = coalesce(:default_jitter_seconds::float, default_jitter_seconds),
       history_days = coalesce(:history_days::integer, history_days),
       archive_days = coalesce(:archive_days::integer, archive_days)
 WHERE tenant_id = :tenant_id::bigint
RETURNING tenant_id, name, weight, created_at, jobs_quota, submits_per_second, submit_burst, running_quota,
          ready_quota, shortest_interval_seconds, http_timeout_max_seconds, storage_quota_bytes,
       default_jitter_seconds, history_days, archive_days, is_host;

-- name: weights
-- The share of each tenant.
SELECT tenant_id, weight FROM tenants WHERE tenant_id = ANY(:tenant_ids::bigint[]);

-- name: count_jobs
-- How many jobs a tenant has, counted up to a limit. Index: jobs_of_tenant.
SELECT count(*) AS jobs
  FROM (SELECT FROM jobs WHERE tenant_id = :tenant_id::bigint AND status <> 'deleted' LIMIT :most::bigint) AS counted;

-- name: stored
-- How many bytes a tenant stores: what the janitor has summed up, and what has changed since.
-- Indexes: storage_sums_pkey, storage_changes_of_tenant.
SELECT greatest(sum(bytes), 0)::bigint AS bytes, greatest(sum(answer_bytes), 0)::bigint AS answer_bytes
  FROM (SELECT bytes, answer_bytes FROM storage_sums WHERE tenant_id = :tenant_id::bigint
         UNION ALL
        SELECT bytes, answer_bytes FROM storage_changes WHERE tenant_id = :tenant_id::bigint) AS every;

-- name: sum_storage
-- Sums up what has changed of tenants' storage. Index: storage_sums_pkey.
WITH first AS (
    SELECT ctid FROM storage_changes LIMIT :most::integer FOR UPDATE SKIP LOCKED
),
taken AS (
    DELETE FROM storage_changes USING first WHERE storage_changes.ctid = first.ctid
 RETURNING tenant_id, bytes, answer_bytes
),
added AS (
    INSERT INTO storage_sums (tenant_id, bytes, answer_bytes)
    SELECT tenant_id, sum(bytes), sum(answer_bytes) FROM taken GROUP BY tenant_id ORDER BY tenant_id
        ON CONFLICT (tenant_id) DO UPDATE
       SET bytes = storage_sums.bytes + excluded.bytes, answer_bytes = storage_sums.answer_bytes + excluded.answer_bytes
)
SELECT count(*) AS summed FROM taken;

-- name: activity
-- How many attempts of a tenant run, and how many wait, each counted up to a limit per lane. Indexes: lanes_of_queue,
-- attempts_pkey, outcomes_pkey; leases are few and read whole. One that was put back waits.
WITH mine AS MATERIALIZED (
    SELECT lane.lane_id, lane.head
      FROM queues queue
      JOIN lanes lane ON lane.queue_id = queue.queue_id
     WHERE queue.tenant_id = :tenant_id::bigint
)
SELECT (SELECT count(*)
          FROM leases lease
          JOIN mine ON mine.lane_id = lease.lane_id
          JOIN attempts ON attempts.lane_id = lease.lane_id AND attempts.seq BETWEEN lease.first_seq AND lease.last_seq
         WHERE lease.worker IS NOT NULL
           AND NOT EXISTS (SELECT FROM outcomes
                            WHERE outcomes.lane_id = attempts.lane_id AND outcomes.seq = attempts.seq)
           AND NOT EXISTS (SELECT FROM leases own
                            WHERE own.lane_id = attempts.lane_id AND own.first_seq = attempts.seq
                              AND own.first_seq = own.last_seq AND own.lease_id <> lease.lease_id)) AS running,
       (SELECT count(*) FROM leases free JOIN mine ON mine.lane_id = free.lane_id WHERE free.worker IS NULL)
       + (SELECT coalesce(sum(waiting.attempts), 0)::bigint
          FROM mine
         CROSS JOIN LATERAL (
                   SELECT count(*) AS attempts
                     FROM (SELECT FROM attempts
                            WHERE attempts.lane_id = mine.lane_id AND attempts.seq > mine.head
                            LIMIT :most::bigint) AS first
               ) AS waiting
         -- Else the days since the lane was idle would be searched.
         WHERE (SELECT true FROM ready_batches
                 WHERE ready_batches.lane_id = mine.lane_id AND ready_batches.last_seq > mine.head LIMIT 1)) AS ready;

-- name: count_due
-- How many due timers of a tenant are not fired yet, up to a limit per lane. By lane, because those of other tenants, and
-- any number that are due later, are not passed. Indexes: queues_tenant_id_name_key, lanes_of_queue, timers_of_tenant.
WITH clock AS MATERIALIZED (
    SELECT clock_at() AS now_at
),
mine AS MATERIALIZED (
    SELECT queue_id, tenant_id FROM queues WHERE tenant_id = :tenant_id::bigint
)
SELECT count(*) AS timers
  FROM clock
 CROSS JOIN mine
 -- OFFSET: as a join, the lanes of all queues would be read.
 CROSS JOIN LATERAL (
           SELECT partition, priority FROM lanes WHERE lanes.queue_id = mine.queue_id OFFSET 0
       ) AS lane
 CROSS JOIN LATERAL (
           SELECT kind
             FROM timers
            WHERE timers.partition = lane.partition
              AND (timers.tenant_id, timers.priority, timers.queue_id, timers.due_at)
                  >= (mine.tenant_id, lane.priority, mine.queue_id, '-infinity'::timestamptz)
              AND (timers.tenant_id, timers.priority, timers.queue_id, timers.due_at)
                  <= (mine.tenant_id, lane.priority, mine.queue_id, clock.now_at)
            ORDER BY timers.tenant_id, timers.priority, timers.queue_id, timers.due_at
            LIMIT :most::integer
       ) AS due
 WHERE due.kind <> 'queued';

-- name: recent
-- What was fired in the last seconds, up to a limit per lane: how late, and what became of it. A tenant of null is all.
-- Indexes: lanes_of_queue, ready_batches_pkey, attempts_pkey, outcomes_pkey.
WITH clock AS MATERIALIZED (
    SELECT microseconds(clock_at()) - (:seconds::float * 1000000)::bigint AS since_us
),
active AS MATERIALIZED (
    SELECT lane.lane_id
      FROM queues queue
      JOIN lanes lane ON lane.queue_id = queue.queue_id
     WHERE (:tenant_id::bigint IS NULL OR queue.tenant_id = :tenant_id::bigint)
       -- What was fired into a lane is at or below its head, or ready: others need not be searched.
       AND (lane.head > (SELECT since_us FROM clock)
            OR (SELECT true FROM ready_batches
                 WHERE ready_batches.lane_id = lane.lane_id AND ready_batches.last_seq > lane.head LIMIT 1)
            OR lane_is_gated(lane.lane_id))
),
fired AS MATERIALIZED (
    SELECT recent.lane_id, recent.seq, greatest(recent.seq - microseconds(recent.due_at), 0) / 1000.0::float AS lag_ms
      FROM active
     CROSS JOIN LATERAL (
               SELECT attempts.lane_id, seq, due_at
                 FROM attempts
                WHERE attempts.lane_id = active.lane_id AND seq > (SELECT since_us FROM clock)
                ORDER BY seq DESC
                LIMIT :most::integer
           ) AS recent
),
ended AS MATERIALIZED (
    SELECT outcome.result
      FROM fired
      JOIN outcomes outcome ON outcome.lane_id = fired.lane_id AND outcome.seq = fired.seq
)
SELECT (SELECT count(*) FROM fired) AS fired,
       (SELECT count(*) FROM ended) AS finished,
       (SELECT count(*) FROM ended WHERE result = 'success') AS succeeded,
       (SELECT coalesce(percentile_disc(ARRAY[0.5, 0.95, 0.99, 0.999, 1.0]) WITHIN GROUP (ORDER BY lag_ms), '{0,0,0,0,0}')
          FROM fired) AS lags_ms;

-- name: oldest_due
-- A tenant's timer that should have been fired first, looked for among the first that are due on each partition where
-- it has lanes: others live there too, and no index is the tenant's own. Indexes: lanes_of_queue, timers_due.
WITH clock AS MATERIALIZED (
    SELECT clock_at() AS now_at
),
home AS MATERIALIZED (
    SELECT DISTINCT lane.partition
      FROM queues queue
      JOIN lanes lane ON lane.queue_id = queue.queue_id
     WHERE queue.tenant_id = :tenant_id::bigint
)
SELECT earliest.due_at, clock.now_at
  FROM clock
 CROSS JOIN home
 CROSS JOIN LATERAL (
           SELECT overdue.due_at
             FROM (SELECT tenant_id, kind, due_at
                     FROM timers
                    WHERE timers.partition = home.partition AND timers.due_at < clock.now_at
                    ORDER BY timers.due_at
                    LIMIT :most::integer) AS overdue
            -- A run that waits for the one before is not late.
            WHERE overdue.tenant_id = :tenant_id::bigint AND overdue.kind <> 'queued'
            ORDER BY overdue.due_at
            LIMIT 1
       ) AS earliest
 ORDER BY earliest.due_at
 LIMIT 1;

-- name: upcoming
-- A tenant's timers that are due next. By lane, because those of other tenants are not passed.
-- Indexes: queues_tenant_id_name_key, lanes_of_queue, timers_of_tenant, jobs_pkey.
WITH clock AS MATERIALIZED (
    SELECT clock_at() AS now_at
),
mine AS MATERIALIZED (
    SELECT queue_id, tenant_id, name FROM queues WHERE tenant_id = :tenant_id::bigint
),
first AS MATERIALIZED (
    SELECT coming.job_id, coming.fire_at, coming.due_at, coming.kind, mine.name AS queue
      FROM clock
     CROSS JOIN mine
     CROSS JOIN LATERAL (
               SELECT partition, priority FROM lanes WHERE lanes.queue_id = mine.queue_id OFFSET 0
           ) AS lane
     CROSS JOIN LATERAL (
               SELECT job_id, fire_at, due_at, kind
                 FROM timers
                WHERE timers.partition = lane.partition
                  AND (timers.tenant_id, timers.priority, timers.queue_id, timers.due_at)
                      >= (mine.tenant_id, lane.priority, mine.queue_id, clock.now_at)
                  AND (timers.tenant_id, timers.priority, timers.queue_id, timers.due_at)
                      < (mine.tenant_id, lane.priority, mine.queue_id, 'infinity'::timestamptz)
                ORDER BY timers.tenant_id, timers.priority, timers.queue_id, timers.due_at
                LIMIT :most::integer
           ) AS coming
     ORDER BY coming.due_at
     LIMIT :most::integer
)
SELECT first.job_id, job.name, first.queue, first.fire_at, first.due_at, first.kind::text AS kind
  FROM first
  JOIN jobs job ON job.job_id = first.job_id
 ORDER BY first.due_at, first.job_id;
