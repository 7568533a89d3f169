-- Answers that are kept for repeated requests. Called by the use cases, in the transaction of what they answer.

-- name: begin
-- Those of these keys that no other transaction has claimed. The locks end with the transaction, however that ends. They
-- have the schema, as that of the janitor.
SELECT key
  FROM unnest(:keys::text[]) AS given (key)
 WHERE pg_try_advisory_xact_lock(
           hashtextextended(key, :tenant_id::bigint)
           # CASE current_schema() WHEN 'evertick' THEN 0 ELSE hashtextextended(current_schema()::text, 0) END);

-- name: find
-- The answers that were given. Index: idempotency_keys_pkey.
SELECT key, request, status, headers::text AS headers, body
  FROM idempotency_keys
 WHERE tenant_id = :tenant_id::bigint AND key = ANY(:keys::text[]);

-- name: store
-- Answers of earlier requests with the same key.
WITH given AS MATERIALIZED (
    SELECT *
      FROM unnest(:keys::text[], :requests::bytea[], :statuses::smallint[], :headers::text[], :bodies::bytea[])
           AS g (key, request, status, headers, body)
),
counted AS (
    INSERT INTO storage_changes (tenant_id, answer_bytes)
    SELECT :tenant_id::bigint, sum(answer_bytes(body)) FROM given
)
INSERT INTO idempotency_keys (tenant_id, key, request, status, headers, body)
SELECT :tenant_id::bigint, key, request, status, headers::jsonb, body FROM given;
