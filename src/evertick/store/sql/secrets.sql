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

-- name: drop_previous
-- Ends a rotation: from now on one secret is valid. Index: webhook_secrets_pkey.
UPDATE webhook_secrets
   SET previous = NULL
 WHERE tenant_id = :tenant_id::bigint;
