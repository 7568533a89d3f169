-- Webhook secrets, sealed. Called by the use cases and dispatchers.

-- name: find
-- The secrets of these tenants. Index: webhook_secrets_pkey.
SELECT tenant_id, current, previous, rotated_at
  FROM webhook_secrets
 WHERE tenant_id = ANY(:tenant_ids::bigint[]);

-- name: add
-- Gives tenants that have none their first secret. Index: webhook_secrets_pkey.
INSERT INTO webhook_secrets (tenant_id, current)
SELECT tenant_id, current
  FROM unnest(:tenant_ids::bigint[], :currents::bytea[]) AS given (tenant_id, current)
 ORDER BY tenant_id
    ON CONFLICT DO NOTHING;

-- name: rotate
-- Puts a new secret before the one in use, unless two are valid already. Index: webhook_secrets_pkey.
UPDATE webhook_secrets
   SET previous = current, current = :current::bytea, rotated_at = clock_at()
 WHERE tenant_id = :tenant_id::bigint AND previous IS NULL
RETURNING tenant_id, current, previous, rotated_at;

-- name: count
-- How many tenants have secrets that do not all begin with this stamp.
SELECT count(*)
  FROM webhook_secrets
 WHERE substring(current FROM 1 FOR length(:stamp::bytea)) <> :stamp
    OR substring(previous FROM 1 FOR length(:stamp)) <> :stamp;

-- name: sealed_otherwise
-- The next of them, by tenant. Index: webhook_secrets_pkey.
SELECT tenant_id, current, previous, rotated_at
  FROM webhook_secrets
 WHERE tenant_id > :after::bigint
   AND (substring(current FROM 1 FOR length(:stamp::bytea)) <> :stamp
        OR substring(previous FROM 1 FOR length(:stamp)) <> :stamp)
 ORDER BY tenant_id
 LIMIT :most::integer;

-- name: reseal
-- Puts the same secrets, sealed anew, in place of what was read; not where they have changed since.
-- Index: webhook_secrets_pkey.
UPDATE webhook_secrets secret
   SET current = given.current, previous = given.previous
  FROM unnest(:tenant_ids::bigint[], :old_currents::bytea[], :old_previouses::bytea[], :currents::bytea[],
              :previouses::bytea[]) AS given (tenant_id, old_current, old_previous, current, previous)
 WHERE secret.tenant_id = given.tenant_id
   AND secret.current = given.old_current AND secret.previous IS NOT DISTINCT FROM given.old_previous
RETURNING secret.tenant_id;

-- name: drop_previous
-- Ends a rotation: from now on one secret is valid. Index: webhook_secrets_pkey.
UPDATE webhook_secrets
   SET previous = NULL
 WHERE tenant_id = :tenant_id::bigint;
