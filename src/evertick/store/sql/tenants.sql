-- Tenants: owners of jobs, quota and fair share. Called by the use cases.

-- name: add
-- A new tenant, unless the name is taken. Index: tenants_name_key.
INSERT INTO tenants (name, weight, fanout)
VALUES (:name::text, :weight::smallint, :fanout::smallint)
    ON CONFLICT DO NOTHING
RETURNING tenant_id, name, weight, fanout, created_at, jobs_quota, submits_per_second, submit_burst, running_quota,
          ready_quota, shortest_interval_seconds, http_timeout_max_seconds, storage_quota_bytes, is_host;

-- name: find
-- The tenant of an id. Index: tenants_pkey.
SELECT tenant_id, name, weight, fanout, created_at, jobs_quota, submits_per_second, submit_burst, running_quota,
       ready_quota, shortest_interval_seconds, http_timeout_max_seconds, storage_quota_bytes, is_host
  FROM tenants
 WHERE tenant_id = :tenant_id::bigint;

-- name: named
-- The tenant of a name. Index: tenants_name_key.
SELECT tenant_id, name, weight, fanout, created_at, jobs_quota, submits_per_second, submit_burst, running_quota,
       ready_quota, shortest_interval_seconds, http_timeout_max_seconds, storage_quota_bytes, is_host
  FROM tenants
 WHERE name = :name::text;

-- name: all
-- Every tenant.
SELECT tenant_id, name, weight, fanout, created_at, jobs_quota, submits_per_second, submit_burst, running_quota,
       ready_quota, shortest_interval_seconds, http_timeout_max_seconds, storage_quota_bytes, is_host
  FROM tenants
 ORDER BY tenant_id;

-- name: count
-- How many there are.
SELECT count(*) FROM tenants;

-- name: dispatched
-- How many queues dispatchers serve. Index: queues_dispatched.
SELECT count(*) FROM queues WHERE is_dispatched;

-- name: dispatched_after
-- Queues that dispatchers serve, in the order of their ids. Index: queues_dispatched.
SELECT queue_id, tenant_id
  FROM queues
 WHERE is_dispatched AND queue_id > :after::integer
 ORDER BY queue_id
 LIMIT :most::integer;

-- name: limits
-- What delivering for tenants has to keep. Index: tenants_pkey.
SELECT tenant_id, weight, http_timeout_max_seconds FROM tenants WHERE tenant_id = ANY(:tenant_ids::bigint[]);

-- name: page
-- Tenants in the order of their ids; one alone if it is given. Index: tenants_pkey.
SELECT tenant_id, name, weight, fanout, created_at, jobs_quota, submits_per_second, submit_burst, running_quota,
       ready_quota, shortest_interval_seconds, http_timeout_max_seconds, storage_quota_bytes, is_host
  FROM tenants
 WHERE tenant_id > :after::bigint AND (:only::bigint IS NULL OR tenant_id = :only::bigint)
 ORDER BY tenant_id
 LIMIT :most::integer;

-- name: edit
-- Changes what is given of a tenant; null leaves as it is. Index: tenants_pkey.
UPDATE tenants
   SET weight = coalesce(:weight::smallint, weight),
       fanout = coalesce(:fanout::smallint, fanout),
       jobs_quota = coalesce(:jobs_quota::integer, jobs_quota),
       submits_per_second = coalesce(:submits_per_second::integer, submits_per_second),
       submit_burst = coalesce(:submit_burst::integer, submit_burst),
       running_quota = coalesce(:running_quota::integer, running_quota),
       ready_quota = coalesce(:ready_quota::integer, ready_quota),
       shortest_interval_seconds = coalesce(:shortest_interval_seconds::float, shortest_interval_seconds),
       http_timeout_max_seconds = coalesce(:http_timeout_max_seconds::integer, http_timeout_max_seconds),
       storage_quota_bytes = coalesce(:storage_quota_bytes::bigint, storage_quota_bytes)
 WHERE tenant_id = :tenant_id::bigint
RETURNING tenant_id, name, weight, fanout, created_at, jobs_quota, submits_per_second, submit_burst, running_quota,
          ready_quota, shortest_interval_seconds, http_timeout_max_seconds, storage_quota_bytes, is_host;

-- name: weights
-- The share of each tenant.
SELECT tenant_id, weight FROM tenants WHERE tenant_id = ANY(:tenant_ids::bigint[]);
