-- API keys. Called by the use cases.

-- name: add
-- A new key.
INSERT INTO api_keys (tenant_id, expires_at, role, digest, prefix, name)
VALUES (:tenant_id::bigint, :expires_at::timestamptz, :role::text::key_role, :digest::bytea, :prefix::text, :name::text)
RETURNING key_id, tenant_id, role::text AS role, prefix, name, created_at, expires_at, revoked_at, last_used_at;

-- name: of_digests
-- The keys of some digests with their tenants, without those that were revoked or have expired.
-- Index: api_keys_digest_key.
SELECT key.key_id, key.digest, key.role::text AS role,
       extract(epoch FROM key.expires_at - clock_at())::float AS seconds_left,
       coalesce(key.last_used_at < clock_at() - interval '1 minute', true) AS is_unseen,
       tenant.tenant_id, tenant.name, tenant.weight, tenant.created_at, tenant.jobs_quota,
       tenant.submits_per_second, tenant.submit_burst, tenant.running_quota, tenant.ready_quota,
       tenant.shortest_interval_seconds, tenant.http_timeout_max_seconds, tenant.storage_quota_bytes,
       tenant.default_jitter_seconds, tenant.history_days, tenant.archive_days, tenant.is_host
  FROM api_keys key
  JOIN tenants tenant ON tenant.tenant_id = key.tenant_id
 WHERE key.digest = ANY(:digests::bytea[]) AND key.revoked_at IS NULL
   AND (key.expires_at IS NULL OR key.expires_at > clock_at());

-- name: touch
-- The key was used.
UPDATE api_keys SET last_used_at = clock_at() WHERE key_id = :key_id::bigint;

-- name: page
-- A tenant's keys, oldest first. Index: api_keys_of_tenant.
SELECT key_id, tenant_id, role::text AS role, prefix, name, created_at, expires_at, revoked_at, last_used_at
  FROM api_keys
 WHERE tenant_id = :tenant_id::bigint AND key_id > :after::bigint
 ORDER BY key_id
 LIMIT :most::integer;

-- name: find
-- One key. Index: api_keys_pkey.
SELECT key_id, tenant_id, role::text AS role, prefix, name, created_at, expires_at, revoked_at, last_used_at
  FROM api_keys
 WHERE key_id = :key_id::bigint;

-- name: revoke
-- Ends a key. Index: api_keys_pkey.
UPDATE api_keys
   SET revoked_at = coalesce(revoked_at, clock_at())
 WHERE key_id = :key_id::bigint
RETURNING key_id, tenant_id, role::text AS role, prefix, name, created_at, expires_at, revoked_at, last_used_at;

-- name: replace
-- Lets a key that is valid end after so many seconds, unless it ends before. Of two sessions that do so, one finds it
-- replaced. Index: api_keys_pkey.
UPDATE api_keys
   SET replaced_at = clock_at(),
       expires_at = least(expires_at, clock_at() + :seconds::float * interval '1 second')
 WHERE key_id = :key_id::bigint AND revoked_at IS NULL AND replaced_at IS NULL
   AND (expires_at IS NULL OR expires_at > clock_at())
RETURNING key_id;

-- name: lock_tenant
-- Locks the making of a tenant's first key. Index: tenants_pkey.
SELECT tenant_id FROM tenants WHERE tenant_id = :tenant_id::bigint FOR UPDATE;

-- name: live
-- How many keys of a tenant have not ended, counted up to a limit. Index: api_keys_of_tenant.
SELECT count(*) AS keys
  FROM (SELECT
          FROM api_keys
         WHERE tenant_id = :tenant_id::bigint AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > clock_at())
         LIMIT :most::integer) AS counted;

-- name: has_any
-- Whether a tenant has ever had a key. Index: api_keys_of_tenant.
SELECT EXISTS (SELECT FROM api_keys WHERE tenant_id = :tenant_id::bigint);
