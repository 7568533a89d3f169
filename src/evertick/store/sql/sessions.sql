-- Sessions of browsers, and links that log in once. Called by the use cases.

-- name: add
-- A new session or link of a key. Sessions that have expired are deleted, some at a time. Indexes: sessions_by_age,
-- sessions_pkey.
WITH expired AS (
    DELETE FROM sessions
     WHERE digest IN (SELECT digest FROM sessions WHERE expires_at < clock_at() ORDER BY expires_at LIMIT 100
                         FOR UPDATE SKIP LOCKED)
)
INSERT INTO sessions (digest, key_id, expires_at, is_link)
VALUES (:digest::bytea, :key_id::bigint, clock_at() + :seconds::float * interval '1 second', :is_link::boolean);

-- name: of_digests
-- The keys of some sessions with their tenants, each with the session's digest; without those of sessions or keys that
-- have ended. Indexes: sessions_pkey, api_keys_pkey.
SELECT key.key_id, session.digest, key.role::text AS role,
       extract(epoch FROM least(key.expires_at, session.expires_at) - clock_at())::float AS seconds_left,
       coalesce(key.last_used_at < clock_at() - interval '1 minute', true) AS is_unseen,
       tenant.tenant_id, tenant.name, tenant.weight, tenant.created_at, tenant.jobs_quota,
       tenant.submits_per_second, tenant.submit_burst, tenant.running_quota, tenant.ready_quota,
       tenant.shortest_interval_seconds, tenant.http_timeout_max_seconds, tenant.storage_quota_bytes,
       tenant.default_jitter_seconds, tenant.history_days, tenant.archive_days, tenant.is_host
  FROM sessions session
  JOIN api_keys key ON key.key_id = session.key_id
  JOIN tenants tenant ON tenant.tenant_id = key.tenant_id
 WHERE session.digest = ANY(:digests::bytea[]) AND NOT session.is_link AND session.expires_at > clock_at()
   AND key.revoked_at IS NULL AND (key.expires_at IS NULL OR key.expires_at > clock_at());

-- name: use_link
-- Takes a link, if it is valid: of two that use it, one gets its key. Indexes: sessions_pkey, api_keys_pkey.
DELETE FROM sessions
 USING api_keys key
 WHERE sessions.digest = :digest::bytea AND sessions.is_link AND sessions.expires_at > clock_at()
   AND key.key_id = sessions.key_id AND key.revoked_at IS NULL
RETURNING key.key_id, key.tenant_id;

-- name: end
-- Ends a session. Index: sessions_pkey.
DELETE FROM sessions WHERE digest = :digest::bytea AND NOT is_link;

-- name: admin_key
-- The oldest valid key of a tenant's admins. Index: api_keys_of_tenant.
SELECT key_id
  FROM api_keys
 WHERE tenant_id = :tenant_id::bigint AND role = 'admin' AND revoked_at IS NULL
   AND (expires_at IS NULL OR expires_at > clock_at())
 ORDER BY key_id
 LIMIT 1;
