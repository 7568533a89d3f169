-- Workers and dispatchers, and what they serve. Written by their heartbeats and, for those that pull over HTTP, by API
-- processes; read by the use cases.

-- name: announce
-- A heartbeat of a worker with its own connection. Index: workers_pkey.
INSERT INTO workers (worker, queue, tenant_id, alive_until, role, version, handlers, app, app_digest,
                     finished_per_second)
SELECT :worker::text, queue, :tenant_id::bigint, clock_at() + :seconds::float * interval '1 second', :role::text,
       :version::text, :handlers::text[], :app::text, :app_digest::bytea, :finished_per_second::real
  FROM (SELECT DISTINCT queue FROM unnest(:queues::text[]) AS given (queue)) AS served
 ORDER BY queue  -- as every statement that locks several: no deadlocks
    ON CONFLICT (worker, queue) DO UPDATE
   SET seen_at = clock_at(), alive_until = excluded.alive_until, handlers = excluded.handlers,
       finished_per_second = excluded.finished_per_second;

-- name: note
-- Workers that asked an API process for attempts, with their handlers as JSON. A tenant that has too many gets no more
-- rows. Indexes: workers_pkey, workers_of_tenant.
WITH given AS MATERIALIZED (
    SELECT tenant_id, worker, queue, handlers
      FROM unnest(:tenant_ids::bigint[], :workers::text[], :queues::text[], :handlers::text[])
           AS given (tenant_id, worker, queue, handlers)
),
counted AS MATERIALIZED (
    SELECT tenant.tenant_id, mine.rows
      FROM (SELECT DISTINCT tenant_id FROM given) AS tenant
     CROSS JOIN LATERAL (
               SELECT count(*) AS rows
                 FROM (SELECT FROM workers WHERE workers.tenant_id = tenant.tenant_id LIMIT :most::integer) AS known
           ) AS mine
)
INSERT INTO workers (worker, queue, tenant_id, alive_until, role, handlers)
SELECT given.worker, given.queue, given.tenant_id, clock_at() + :seconds::float * interval '1 second', 'remote_worker',
       CASE WHEN given.handlers IS NOT NULL
            THEN ARRAY(SELECT json_array_elements_text(given.handlers::json)) END
  FROM given
  JOIN counted USING (tenant_id)
 WHERE counted.rows < :most::integer
    OR (SELECT true FROM workers WHERE workers.worker = given.worker AND workers.queue = given.queue)
 ORDER BY given.worker, given.queue
    ON CONFLICT (worker, queue) DO UPDATE
   SET seen_at = clock_at(), alive_until = excluded.alive_until, handlers = excluded.handlers;

-- name: note_heartbeats
-- Workers that sent an API process a heartbeat: they serve what they served. Index: workers_pkey.
WITH known AS MATERIALIZED (
    SELECT worker, queue FROM workers WHERE worker = ANY(:workers::text[]) ORDER BY worker, queue FOR UPDATE
)
UPDATE workers
   SET seen_at = clock_at(), alive_until = clock_at() + :seconds::float * interval '1 second'
  FROM known
 WHERE workers.worker = known.worker AND workers.queue = known.queue;

-- name: leave
-- A worker stops. Index: workers_pkey.
DELETE FROM workers WHERE worker = :worker::text;

-- name: forget
-- Removes workers that have not been seen for long.
DELETE FROM workers WHERE alive_until < clock_at() - :seconds::float * interval '1 second';

-- name: page
-- The workers that serve a tenant, by name, queue by queue: the tenant's own and those of all. Leases of a worker that
-- pulls over HTTP have the tenant before its name. How much a worker of all finishes, only their host is told. Indexes:
-- workers_of_tenant, tenants_pkey.
WITH mine AS MATERIALIZED (
    SELECT regexp_replace(worker, '^[0-9]+/', '') AS name, queue, role, version, handlers, started_at, seen_at,
           alive_until > clock_at() AS is_alive,
           CASE WHEN tenant_id IS NOT NULL
                  OR (SELECT is_host FROM tenants WHERE tenants.tenant_id = :tenant_id::bigint)
                THEN finished_per_second::float END AS finished_per_second
      FROM workers
     WHERE tenant_id = :tenant_id::bigint OR tenant_id IS NULL
)
SELECT name, queue, role, version, handlers, started_at, seen_at, is_alive, finished_per_second
  FROM mine
 WHERE name IN (SELECT DISTINCT name FROM mine WHERE name > :after::text ORDER BY name LIMIT :most::integer)
 ORDER BY name, queue;

-- name: serving
-- What is served for a tenant right now: queues and handlers, and by how many workers; each queue in all, too. Index:
-- workers_of_tenant.
SELECT queue, handler, count(DISTINCT worker) AS workers, grouping(handler) = 1 AS is_total
  FROM workers
 CROSS JOIN LATERAL unnest(coalesce(handlers, ARRAY[NULL::text])) AS each (handler)
 WHERE (tenant_id = :tenant_id::bigint OR tenant_id IS NULL) AND alive_until > clock_at()
 GROUP BY GROUPING SETS ((queue, handler), (queue));

-- name: handlers_seen
-- The handlers that a tenant's jobs name, by queue: of its newest jobs, and of attempts that were put back. Indexes:
-- jobs_of_tenant, job_versions_pkey, queues_tenant_id_name_key, leases_free.
WITH newest AS MATERIALIZED (
    SELECT job_id, queue, spec_version
      FROM jobs
     WHERE tenant_id = :tenant_id::bigint AND status <> 'deleted'
     ORDER BY job_id DESC
     LIMIT :most::integer
)
SELECT newest.queue, version.handler
  FROM newest
 CROSS JOIN LATERAL (
           SELECT handler
             FROM job_versions
            WHERE job_versions.job_id = newest.job_id AND job_versions.spec_version = newest.spec_version
            LIMIT 1
       ) AS version
 WHERE version.handler IS NOT NULL
 UNION
SELECT queue.name, waiting.handler
  FROM queues queue
 CROSS JOIN LATERAL (
           SELECT handler FROM leases
            WHERE worker IS NULL AND lane_queue(lane_id) = queue.queue_id AND handler <> ''
            LIMIT :most::integer
       ) AS waiting
 WHERE queue.tenant_id = :tenant_id::bigint;

-- name: alive
-- How many workers of each role are alive, of all tenants, and on which queues.
SELECT role, count(DISTINCT worker) AS workers, array_agg(DISTINCT queue ORDER BY queue) AS queues
  FROM workers
 WHERE alive_until > clock_at()
 GROUP BY role
 ORDER BY role;

-- name: idle_queues
-- Queues with attempts that have waited for long although no worker serves the queue. Indexes: ready_batches_pkey,
-- workers_of_tenant.
SELECT tenant.name AS tenant, queue.name AS queue, waiting.attempts, waiting.oldest_at
  FROM (SELECT lane_queue(lane_id)::integer AS queue_id, sum(attempts)::bigint AS attempts, min(due_at) AS oldest_at
          FROM ready_batches
         GROUP BY lane_queue(lane_id)) AS waiting
  JOIN queues queue ON queue.queue_id = waiting.queue_id
  JOIN tenants tenant ON tenant.tenant_id = queue.tenant_id
 WHERE waiting.oldest_at < clock_at() - :seconds::float * interval '1 second'
   AND NOT EXISTS (SELECT FROM workers
                    WHERE workers.queue = queue.name AND alive_until > clock_at()
                      AND (workers.tenant_id = queue.tenant_id OR workers.tenant_id IS NULL))
 ORDER BY waiting.oldest_at;
