-- How many attempts wait for a worker: in queues that are filling up, in those of a catch-up, and in all. The first and
-- the last read the whole of ready_batches and of the free leases, which is all there is to count; callers bound how
-- often.

-- name: depths
-- Queues of which so many attempts wait that their room may become short, for schedulers: a quarter of a limit or more,
-- and all queues with less than the default limits. Indexes: leases_free, queues_limited, tenants_limited, queues_pkey,
-- queues_tenant_id_name_key, tenants_pkey.
WITH waiting AS MATERIALIZED (
    SELECT queue_id, sum(attempts)::bigint AS attempts
      FROM (SELECT lane_queue(lane_id)::integer AS queue_id, sum(attempts) AS attempts
              FROM ready_batches
             GROUP BY lane_queue(lane_id)
             UNION ALL
            SELECT lane_queue(lane_id)::integer, count(*)
              FROM leases
             WHERE worker IS NULL
             GROUP BY lane_queue(lane_id)) AS every
     GROUP BY queue_id
),
candidates AS (
    SELECT queue_id FROM waiting
     UNION
    SELECT queue_id FROM queues WHERE max_ready < 250000
     UNION
    SELECT queue.queue_id
      FROM tenants tenant
      JOIN queues queue ON queue.tenant_id = tenant.tenant_id
     WHERE tenant.ready_quota < 1000000
),
depths AS (
    SELECT queue.queue_id, queue.tenant_id, coalesce(waiting.attempts, 0) AS ready, queue.max_ready,
           (sum(coalesce(waiting.attempts, 0)) OVER (PARTITION BY queue.tenant_id))::bigint AS tenant_ready,
           tenant.ready_quota, queue.name
      FROM candidates
      JOIN queues queue ON queue.queue_id = candidates.queue_id
      JOIN tenants tenant ON tenant.tenant_id = queue.tenant_id
      LEFT JOIN waiting ON waiting.queue_id = queue.queue_id
)
SELECT queue_id, tenant_id, ready, max_ready, tenant_ready, ready_quota, name
  FROM depths
 WHERE 4 * ready >= max_ready OR 4 * tenant_ready >= ready_quota OR max_ready < 250000 OR ready_quota < 1000000;

-- name: in_lanes
-- How many attempts of some queues wait in their lanes, which is what later ones wait for, for schedulers that catch up;
-- queues without any are left out. Index: ready_batches_pkey.
SELECT given.queue_id, waiting.attempts
  FROM unnest(:queue_ids::integer[]) AS given (queue_id)
 CROSS JOIN LATERAL (
           SELECT sum(ready_batches.attempts)::bigint AS attempts
             FROM ready_batches
            WHERE ready_batches.lane_id >= lane_id_of(given.queue_id, 0, 0)
              AND ready_batches.lane_id < lane_id_of(given.queue_id + 1::bigint, 0, 0)
       ) AS waiting
 WHERE waiting.attempts > 0;

-- name: queue_depths
-- How many attempts wait by the name of their queue, and for how long the oldest has been due: of the names that are
-- given, of so many others at most, and of the rest in one row without a name. A batch counts until its last attempt is
-- leased. Indexes: leases_free, queues_pkey.
WITH waiting AS MATERIALIZED (
    SELECT queue_id, sum(attempts) AS attempts, min(oldest_at) AS oldest_at
      FROM (SELECT lane_queue(lane_id)::integer AS queue_id, sum(attempts) AS attempts, min(due_at) AS oldest_at
              FROM ready_batches
             GROUP BY lane_queue(lane_id)
             UNION ALL
            SELECT lane_queue(lane_id)::integer, count(*), min(expires_at)
              FROM leases
             WHERE worker IS NULL AND expires_at <= clock_at()
             GROUP BY lane_queue(lane_id)) AS every
     GROUP BY queue_id
),
named AS (
    SELECT queue.name, sum(waiting.attempts) AS attempts, min(waiting.oldest_at) AS oldest_at,
           row_number() OVER (ORDER BY queue.name = ANY (:names::text[]) DESC, sum(waiting.attempts) DESC) AS place
      FROM waiting
      JOIN queues queue ON queue.queue_id = waiting.queue_id
     GROUP BY queue.name
)
SELECT CASE WHEN place <= cardinality(:names::text[]) + :most::integer THEN name END AS name,
       sum(attempts)::bigint AS attempts,
       greatest(extract(epoch FROM clock_at() - min(oldest_at)), 0)::float AS oldest_seconds
  FROM named
 GROUP BY 1;

-- name: load
-- How many attempts wait in all, also at gates; and if they are at least so many, the tenants that have no less than
-- their part of them by weight. Indexes: leases_free, open_runs_at_gate, queues_pkey, tenants_pkey.
WITH waiting AS MATERIALIZED (
    SELECT queue_id, sum(attempts)::bigint AS attempts
      FROM (SELECT lane_queue(lane_id)::integer AS queue_id, sum(attempts) AS attempts
              FROM ready_batches
             GROUP BY lane_queue(lane_id)
             UNION ALL
            SELECT lane_queue(lane_id)::integer, count(*)
              FROM leases
             WHERE worker IS NULL
             GROUP BY lane_queue(lane_id)
             UNION ALL
            SELECT lane_queue(lane_id)::integer, count(*)
              FROM open_runs
             WHERE gate_id IS NOT NULL AND NOT is_inside
             GROUP BY lane_queue(lane_id)) AS every
     GROUP BY queue_id
),
total AS MATERIALIZED (
    SELECT coalesce(sum(attempts), 0)::bigint AS attempts FROM waiting
),
shares AS (
    SELECT tenant.tenant_id, sum(waiting.attempts) AS attempts, max(tenant.weight) AS weight,
           sum(max(tenant.weight)) OVER () AS weights
      FROM waiting
      JOIN queues queue ON queue.queue_id = waiting.queue_id
      JOIN tenants tenant ON tenant.tenant_id = queue.tenant_id
     WHERE (SELECT attempts FROM total) >= :least::bigint
     GROUP BY tenant.tenant_id
)
SELECT total.attempts AS ready,
       ARRAY(SELECT tenant_id FROM shares WHERE shares.attempts * weights >= total.attempts * weight) AS tenant_ids
  FROM total;
