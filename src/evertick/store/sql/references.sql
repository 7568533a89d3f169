-- Rules, queues and lanes: what jobs refer to. Read by roles, which cache them, and added by the use cases.

-- name: rules
-- The canonical texts of rules. Index: rules_pkey.
SELECT rule_id, canonical FROM rules WHERE rule_id = ANY(:rule_ids::bigint[]);

-- name: queues
-- The queues of these names, of one tenant or of all, whether a cap limits what runs of them at once, and
-- their rate limits.
-- Indexes: queues_tenant_id_name_key, tenants_pkey.
SELECT queue.queue_id, queue.tenant_id, queue.name,
       least(queue.max_running, tenant.running_quota) < 2147483647 AS is_capped, queue.rate_limit, queue.rate_burst
  FROM queues queue
  JOIN tenants tenant ON tenant.tenant_id = queue.tenant_id
 WHERE queue.name = ANY(:names::text[]) AND (:tenant_id::bigint IS NULL OR queue.tenant_id = :tenant_id::bigint);

-- name: queue_page
-- A tenant's queues by name, those that nothing refers to left out unless they have a limit; one alone if it is given.
-- How many attempts of each wait is counted as `ready.depths` does, of all queues: the tenant may be full.
-- Indexes: queues_tenant_id_name_key, ready_batches_pkey, leases_free, tenants_pkey.
WITH mine AS MATERIALIZED (
    SELECT queue.name, queue.unused_at, queue.max_running, queue.max_ready, queue.rate_limit, queue.rate_burst,
           fresh.oldest_due_at,
           coalesce(fresh.attempts, 0)
           + (SELECT count(*) FROM leases WHERE worker IS NULL AND lane_queue(lane_id) = queue.queue_id) AS ready
      FROM queues queue
     CROSS JOIN LATERAL (
               SELECT sum(attempts)::bigint AS attempts, min(due_at) AS oldest_due_at
                 FROM ready_batches
                WHERE lane_id >= lane_id_of(queue.queue_id, 0, 0)
                  AND lane_id < lane_id_of(queue.queue_id + 1::bigint, 0, 0)
           ) AS fresh
     WHERE queue.tenant_id = :tenant_id::bigint
)
SELECT name, max_running, max_ready, rate_limit, rate_burst, ready, oldest_due_at,
       -- As `ReadyDepth.is_full` in the domain.
       ready >= max_ready
       OR ready >= 3 * ((SELECT ready_quota FROM tenants WHERE tenant_id = :tenant_id::bigint)
                        - (SELECT sum(ready) FROM mine)) AS is_full
  FROM mine
 WHERE name > :after::text AND (:only::text IS NULL OR name = :only::text)
   AND (unused_at IS NULL OR max_running < 2147483647 OR max_ready <> 250000 OR rate_limit IS NOT NULL)
 ORDER BY name
 LIMIT :most::integer;

-- name: limit_queue
-- Sets how many attempts of a queue run at once, may wait, and start per second. Index: queues_tenant_id_name_key.
UPDATE queues
   SET max_running = :max_running::integer, max_ready = :max_ready::integer, rate_limit = :rate_limit::float,
       rate_burst = :rate_burst::integer
 WHERE tenant_id = :tenant_id::bigint AND name = :name::text;

-- name: add_rules
-- Rules that are not there yet, in an order that keeps two sessions that add the same from a deadlock. A rule whose id
-- another one has already is not added, and statements that refer to it do not find it. One that the janitor wants to
-- remove stays. Index: rules_digest_key.
WITH reused AS (
    UPDATE rules SET unused_at = NULL WHERE digest = ANY(:digests::bytea[]) AND unused_at IS NOT NULL
)
INSERT INTO rules (digest, canonical)
SELECT digest, canonical
  FROM unnest(:digests::bytea[], :canonicals::text[]) AS given (digest, canonical)
 ORDER BY digest
    ON CONFLICT DO NOTHING;

-- name: referred
-- The ids of a rule and a queue; null for one that is not there, or that the janitor is about to remove.
-- Indexes: rules_digest_key, queues_tenant_id_name_key.
SELECT (SELECT rule_id FROM rules WHERE digest = :digest::bytea AND unused_at IS NULL) AS rule_id,
       (SELECT queue_id FROM queues
         WHERE tenant_id = :tenant_id::bigint AND name = :queue::text AND unused_at IS NULL) AS queue_id;

-- name: queues_with
-- How many queues a tenant would have together with these. Index: queues_tenant_id_name_key.
SELECT count(*)
  FROM (SELECT name FROM queues WHERE tenant_id = :tenant_id::bigint UNION SELECT unnest(:names::text[])) AS together;

-- name: add_queues
-- Queues that are not there yet. One whose random id is taken is not added; the next try draws another. One that the
-- janitor wants to remove stays. Index: queues_tenant_id_name_key.
WITH reused AS (
    UPDATE queues
       SET unused_at = NULL
     WHERE tenant_id = :tenant_id::bigint AND name = ANY(:names::text[]) AND unused_at IS NOT NULL
)
INSERT INTO queues (tenant_id, name)
SELECT :tenant_id::bigint, name
  FROM unnest(:names::text[]) AS given (name)
 ORDER BY name
    ON CONFLICT DO NOTHING;

-- name: add_lanes
-- Lanes of queues that are there, if they are not there yet. Indexes: queues_tenant_id_name_key, lanes_pkey.
INSERT INTO lanes (lane_id, queue_id, partition, priority)
SELECT lane_id_of(queue.queue_id, given.partition, given.priority, given.is_gated), queue.queue_id,
       given.partition, given.priority
  FROM unnest(:queues::text[], :partitions::smallint[], :priorities::smallint[], :gated::boolean[])
           AS given (queue, partition, priority, is_gated)
  JOIN queues queue ON queue.tenant_id = :tenant_id::bigint AND queue.name = given.queue
 ORDER BY 1
    ON CONFLICT DO NOTHING;
