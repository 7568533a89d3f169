-- Reads the progress and the results of a measurement, and prepares tables for it. Called by the bench.
-- Statements that run during a measurement are cheap. Those that read whole tables run after it.

-- name: counters
-- Attempts and outcomes written so far, by the server's statistics: not exact, but no row is read.
SELECT coalesce(sum(pg_stat_get_tuples_inserted(inhrelid)) FILTER (WHERE inhparent = 'attempts'::regclass), 0)::bigint
           AS attempts,
       coalesce(sum(pg_stat_get_tuples_inserted(inhrelid)) FILTER (WHERE inhparent = 'outcomes'::regclass), 0)::bigint
           AS outcomes
  FROM pg_inherits
 WHERE inhparent IN ('attempts'::regclass, 'outcomes'::regclass);

-- name: leases
-- Whether anything is leased, and when the earliest lease expires. Leases are few.
SELECT count(*) > 0 AS is_any, min(expires_at) AS expires_at, clock_at() AS now_at FROM leases;

-- name: is_ready
-- Whether any attempt waits to be leased.
SELECT EXISTS (SELECT FROM ready_batches);

-- name: add_tenants
-- Tenants without jobs.
INSERT INTO tenants (name) SELECT 'bench-' || gen_random_uuid() FROM generate_series(1, :count::integer)
    ON CONFLICT DO NOTHING
RETURNING tenant_id;

-- name: held
-- How many partitions have a holder.
SELECT count(*) FROM partitions WHERE holder IS NOT NULL;

-- name: runs
-- The runs of one queue, of some tenants or of all (NULL), with a fire time in an interval: how many succeeded, how many
-- starts were duplicates, the first start, the last end, and the lags. An attempt's seq is never before its fire time. A
-- deferred attempt was not started. Indexes: attempts_pkey, outcomes_pkey.
WITH tried AS MATERIALIZED (
    SELECT attempt.job_id, attempt.fire_at, attempt.due_at, outcome.result, outcome.started_at, outcome.finished_at
      FROM queues queue
      JOIN attempts attempt
        ON attempt.lane_id >= lane_id_of(queue.queue_id, 0, 0) AND attempt.lane_id < lane_id_of(queue.queue_id + 1, 0, 0)
      LEFT JOIN outcomes outcome
        ON outcome.lane_id = attempt.lane_id AND outcome.seq = attempt.seq AND outcome.result <> 'deferred'
     WHERE queue.name = :queue::text AND (:tenant_ids::bigint[] IS NULL OR queue.tenant_id = ANY (:tenant_ids::bigint[]))
       AND attempt.seq >= microseconds(:from_at::timestamptz)
       AND attempt.fire_at >= :from_at::timestamptz AND attempt.fire_at < :until_at::timestamptz
),
runs AS MATERIALIZED (
    SELECT count(*) FILTER (WHERE result = 'success') AS successes,
           count(started_at) AS starts,
           min(started_at) AS started_at, max(finished_at) AS finished_at,
           (extract(epoch FROM min(started_at) - min(due_at)) * 1000)::float AS lag_ms
      FROM tried
     GROUP BY job_id, fire_at
)
SELECT count(*) AS runs,
       count(*) FILTER (WHERE successes > 0) AS succeeded,
       coalesce(sum(starts - 1) FILTER (WHERE starts > 1), 0)::bigint AS duplicates,
       min(started_at) AS first_started_at,
       max(finished_at) AS last_finished_at,
       percentile_cont(ARRAY[0.5, 0.95, 0.99, 1]::float[]) WITHIN GROUP (ORDER BY lag_ms) AS lags_ms
  FROM runs;

-- name: gaps
-- How many ticks in an interval became gaps. Index: gaps_by_age.
SELECT coalesce(sum(ticks), 0)::bigint AS ticks
  FROM gaps
 WHERE last_at >= :from_at::timestamptz AND first_at < :until_at::timestamptz;

-- name: skipped
-- How many ticks of one queue, of some tenants or of all (NULL), are in gaps that begin in an interval, by reason. A gap
-- ends no earlier than it begins. Index: gaps_by_age.
SELECT gaps.reason::text AS reason, sum(gaps.ticks)::bigint AS ticks
  FROM gaps
  JOIN jobs USING (job_id)
 WHERE gaps.last_at >= :from_at::timestamptz AND gaps.first_at >= :from_at::timestamptz AND gaps.first_at < :until_at::timestamptz
   AND jobs.queue = :queue::text AND (:tenant_ids::bigint[] IS NULL OR jobs.tenant_id = ANY (:tenant_ids::bigint[]))
 GROUP BY gaps.reason
 ORDER BY gaps.reason;

-- name: backlog
-- What waits: attempts of batches that are not completely leased, and timers that are due, with the lag of the oldest.
-- A look into each partition passes no timer that is not due. Index: timers_due.
SELECT (SELECT coalesce(sum(batch.attempts), 0)::bigint FROM ready_batches batch) AS ready,
       coalesce(sum(due.timers), 0)::bigint AS overdue,
       coalesce(extract(epoch FROM clock_at() - min(due.oldest_at)), 0)::float AS oldest_seconds
  FROM generate_series(0, 255) AS each (partition)
 CROSS JOIN LATERAL (
           SELECT count(*) AS timers, min(timers.due_at) AS oldest_at
             FROM timers
            WHERE timers.partition = each.partition AND timers.due_at <= clock_at()
       ) due;

-- name: queue_jobs
-- How many jobs a queue has. Reads them all.
SELECT count(*) FROM jobs WHERE queue = :queue::text;

-- name: sizes
-- Bytes of the tables of jobs, with indexes and TOAST.
SELECT pg_total_relation_size('jobs')::bigint AS jobs,
       pg_total_relation_size('job_versions')::bigint AS job_versions,
       (SELECT sum(pg_total_relation_size(inhrelid)) FROM pg_inherits WHERE inhparent = 'timers'::regclass)::bigint
           AS timers;

-- name: activity
-- Transactions in this database so far, and the time. A statement outside of a transaction block is one.
SELECT xact_commit + xact_rollback AS transactions, clock_timestamp() AS now_at
  FROM pg_stat_database
 WHERE datname = current_database();

-- name: server
-- The server's version and the settings that affect its speed.
SELECT current_setting('server_version') AS version,
       (SELECT json_object_agg(name, current_setting(name) ORDER BY name)
          FROM pg_settings
         WHERE name IN ('synchronous_commit', 'fsync', 'full_page_writes', 'shared_buffers', 'max_wal_size',
                        'wal_buffers', 'wal_compression', 'wal_level', 'checkpoint_timeout', 'max_connections',
                        'work_mem', 'autovacuum', 'random_page_cost', 'jit', 'wal_sync_method'))::text AS settings;

-- name: vacuum
-- After a bulk load, so that autovacuum does not run during the measurement.
VACUUM (ANALYZE) jobs, job_versions, timers, rules, lanes;

-- name: checkpoint
CHECKPOINT;

-- name: make_due
-- Moves the tick timers of a queue in one partition, of some tenants or of all (NULL), to an instant: each job runs once
-- more, and its timer then follows its schedule again. No scheduler runs meanwhile. Index: timers_due.
UPDATE timers
   SET fire_at = :fire_at::timestamptz, due_at = :fire_at::timestamptz
 WHERE timers.partition = :partition::smallint
   AND timers.kind = 'tick' AND timers.due_at < 'infinity'
   AND timers.queue_id IN (SELECT queue_id FROM queues WHERE name = :queue::text)
   AND (:tenant_ids::bigint[] IS NULL OR timers.tenant_id = ANY (:tenant_ids::bigint[]));

-- name: footprint
-- Bytes, with indexes, of tables that grow with each run and of tables that must not grow.
SELECT (SELECT coalesce(sum(pg_total_relation_size(inhrelid)), 0) FROM pg_inherits
         WHERE inhparent = 'attempts'::regclass)::bigint AS attempts,
       (SELECT coalesce(sum(pg_total_relation_size(inhrelid)), 0) FROM pg_inherits
         WHERE inhparent = 'outcomes'::regclass)::bigint AS outcomes,
       (SELECT coalesce(sum(pg_total_relation_size(inhrelid)), 0) FROM pg_inherits
         WHERE inhparent = 'timers'::regclass)::bigint AS timers,
       pg_total_relation_size('lanes')::bigint AS lanes,
       pg_total_relation_size('leases')::bigint AS leases;

-- name: hold_snapshot
-- Takes the transaction's snapshot, and allows the transaction to be idle without a limit.
SELECT set_config('idle_in_transaction_session_timeout', '0', true);
