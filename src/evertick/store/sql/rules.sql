-- Rules and queues: small tables that roles read once and remember.

-- name: rules
-- The canonical texts of rules. Index: rules_pkey.
SELECT rule_id, canonical FROM rules WHERE rule_id = ANY(:rule_ids::bigint[]);

-- name: weights
-- The share of each tenant.
SELECT tenant_id, weight FROM tenants WHERE tenant_id = ANY(:tenant_ids::bigint[]);

-- name: queues
-- The queues of these names, of one tenant or of all. Index: queues_tenant_id_name_key.
SELECT queue_id, tenant_id, name
  FROM queues
 WHERE name = ANY(:names::text[]) AND (:tenant_id::bigint IS NULL OR tenant_id = :tenant_id::bigint);
