-- The audit log: who changed what. Called in the transaction of the change, by use cases and dispatchers.

-- name: record
-- One change.
WITH counted AS (
    INSERT INTO storage_changes (tenant_id, bytes) VALUES (:tenant_id::bigint, audit_bytes())
)
INSERT INTO audit_log (tenant_id, actor, action, subject, request_id)
VALUES (:tenant_id::bigint, :actor::text, :action::text, :subject::text, :request_id::text);

-- name: record_all
-- Changes that were made together.
WITH given AS MATERIALIZED (
    SELECT *
      FROM unnest(:tenant_ids::bigint[], :actors::text[], :actions::text[], :subjects::text[], :request_ids::text[])
           AS g (tenant_id, actor, action, subject, request_id)
),
counted AS (
    INSERT INTO storage_changes (tenant_id, bytes)
    SELECT tenant_id, count(*) * audit_bytes() FROM given GROUP BY tenant_id
)
INSERT INTO audit_log (tenant_id, actor, action, subject, request_id)
SELECT tenant_id, actor, action, subject, request_id FROM given;

-- name: page
-- A tenant's changes, newest first. Index: audit_log_of_tenant.
SELECT entry_id, changed_at, actor, action, subject, request_id
  FROM audit_log
 WHERE tenant_id = :tenant_id::bigint AND entry_id < :before::bigint
 ORDER BY entry_id DESC
 LIMIT :most::integer;
