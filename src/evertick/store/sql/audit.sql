-- The audit log: who changed what. Called by the use cases, in the transaction of the change.

-- name: record
-- One change.
INSERT INTO audit_log (tenant_id, actor, action, subject, request_id)
VALUES (:tenant_id::bigint, :actor::text, :action::text, :subject::text, :request_id::text);

-- name: page
-- A tenant's changes, newest first. Index: audit_log_of_tenant.
SELECT entry_id, changed_at, actor, action, subject, request_id
  FROM audit_log
 WHERE tenant_id = :tenant_id::bigint AND entry_id < :before::bigint
 ORDER BY entry_id DESC
 LIMIT :most::integer;
