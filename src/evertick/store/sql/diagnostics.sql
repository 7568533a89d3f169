-- Diagnostics: the facts behind `evertick doctor` and the status of the engine. Called seldom. What the server itself
-- notes is compared with the server's own clock.

-- name: server
-- The server as such. Other users' sessions count, though without pg_read_all_stats nothing else is told about them.
SELECT current_setting('server_version') AS version,
       clock_timestamp() AS clock_at,
       current_setting('max_connections')::integer AS most_connections,
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')::integer AS connections;

-- name: oldest_snapshot
-- What keeps vacuum from removing dead rows: the longest transaction of this database, a prepared transaction, or a
-- replication slot that is not read. Autovacuum and other maintenance count too; they end by themselves.
SELECT holder.pid, holder.what, extract(epoch FROM clock_timestamp() - holder.since_at)::float AS seconds,
       holder.transactions
  FROM (SELECT pid,
               format('%s of %s, %s', coalesce(nullif(application_name, ''), 'a session'), usename, state) AS what,
               xact_start AS since_at,
               age(coalesce(backend_xmin, backend_xid))::bigint AS transactions
          FROM pg_stat_activity
         WHERE coalesce(backend_xmin, backend_xid) IS NOT NULL
           AND pid <> pg_backend_pid() AND backend_type = 'client backend'
         UNION ALL
        SELECT NULL, format('the prepared transaction %L', gid), prepared, age(transaction)::bigint
          FROM pg_prepared_xacts
         UNION ALL
        SELECT active_pid, format('the replication slot %s', slot_name), NULL, age(coalesce(xmin, catalog_xmin))::bigint
          FROM pg_replication_slots
         WHERE coalesce(xmin, catalog_xmin) IS NOT NULL) AS holder
 ORDER BY holder.transactions DESC, holder.since_at
 LIMIT 1;

-- name: stuck_leases
-- Leases that ran out long ago and were not reaped. Leases are few, and read whole.
SELECT count(*) AS leases, min(expires_at) AS oldest_at, clock_at() AS now_at
  FROM leases
 WHERE worker IS NOT NULL AND expires_at < clock_at() - :seconds::float * interval '1 second';

-- name: unserved
-- Attempts that were put back and have been ready for long, by handler: no worker that has the handler leases them.
-- Index: leases_free.
SELECT tenant.name AS tenant, queue.name AS queue, waiting.handler, waiting.attempts, waiting.oldest_at,
       clock_at() AS now_at
  FROM (SELECT lane_queue(lane_id)::integer AS queue_id, handler, count(*) AS attempts, min(expires_at) AS oldest_at
          FROM leases
         WHERE worker IS NULL AND expires_at < clock_at() - :seconds::float * interval '1 second'
         GROUP BY lane_queue(lane_id), handler) AS waiting
  JOIN queues queue ON queue.queue_id = waiting.queue_id
  JOIN tenants tenant ON tenant.tenant_id = queue.tenant_id
 ORDER BY waiting.oldest_at;

-- name: oldest_due
-- The timer that should have been fired first. Those of runs that wait for the one before are left out. Index:
-- timers_due. The clock is read once: one that may change from row to row could not bound the index.
WITH clock AS MATERIALIZED (
    SELECT clock_at() AS now_at
)
SELECT earliest.job_id, earliest.due_at, clock.now_at
  FROM clock
 CROSS JOIN generate_series(0, 255) AS every (partition)
 CROSS JOIN LATERAL (
           SELECT job_id, due_at
             FROM timers
            WHERE timers.partition = every.partition::smallint AND timers.due_at < clock.now_at
              AND timers.kind <> 'queued'
            ORDER BY timers.due_at
            LIMIT 1
       ) AS earliest
 ORDER BY earliest.due_at
 LIMIT 1;

-- name: ready_queues
-- How many attempts wait in each queue, counted up to a limit per lane, and since when the oldest; those that were put
-- back count when they are ready. Indexes: attempts_pkey, leases_free.
SELECT tenant.name AS tenant, queue.name AS queue, sum(waiting.attempts)::bigint AS attempts,
       min(waiting.oldest_at) AS oldest_at, clock_at() AS now_at
  FROM (SELECT lane.queue_id, fresh.attempts, fresh.oldest_at
          FROM lanes lane
         CROSS JOIN LATERAL (
                   SELECT count(*) AS attempts, min(due_at) AS oldest_at
                     FROM (SELECT due_at FROM attempts
                            WHERE attempts.lane_id = lane.lane_id AND attempts.seq > lane.head
                            ORDER BY seq
                            LIMIT :most::integer) AS first
               ) AS fresh
         -- Else the days since the lane was idle would be searched.
         WHERE (SELECT true FROM ready_batches
                 WHERE ready_batches.lane_id = lane.lane_id AND ready_batches.last_seq > lane.head LIMIT 1)
         UNION ALL
        SELECT lane_queue(lane_id)::integer, count(*), min(expires_at)
          FROM leases
         WHERE worker IS NULL AND expires_at <= clock_at()
         GROUP BY lane_queue(lane_id)) AS waiting
  JOIN queues queue ON queue.queue_id = waiting.queue_id
  JOIN tenants tenant ON tenant.tenant_id = queue.tenant_id
 WHERE waiting.attempts > 0
 GROUP BY tenant.name, queue.name
 ORDER BY min(waiting.oldest_at);

-- name: dead_letters
-- How many dead letters there are, counted up to a limit.
SELECT count(*) AS letters FROM (SELECT FROM dead_letters LIMIT :most::integer) AS counted;

-- name: dead_tuples
-- The dead and the live rows of the timers.
SELECT coalesce(sum(n_dead_tup), 0)::bigint AS dead, coalesce(sum(n_live_tup), 0)::bigint AS live
  FROM pg_inherits
  JOIN pg_stat_all_tables part ON part.relid = pg_inherits.inhrelid
 WHERE pg_inherits.inhparent = 'timers'::regclass;

-- name: leases
-- How many leases workers have.
SELECT count(*) AS leases FROM leases WHERE worker IS NOT NULL;
