-- Answers that are kept for who asks twice. Called by the use cases, in the transaction of what they answer.

-- name: begin
-- Whether nobody else is answering this key. The lock ends with the transaction, however that ends.
SELECT pg_try_advisory_xact_lock(hashtextextended(:key::text, :tenant_id::bigint)) AS is_ours;

-- name: find
-- The answer that was given. Index: idempotency_keys_pkey.
SELECT request, status, headers::text AS headers, body
  FROM idempotency_keys
 WHERE tenant_id = :tenant_id::bigint AND key = :key::text;

-- name: keep
-- An answer, for who asks again.
INSERT INTO idempotency_keys (tenant_id, key, request, status, headers, body)
VALUES (:tenant_id::bigint, :key::text, :request::bytea, :status::smallint, :headers::text::jsonb, :body::bytea);

-- name: prune
-- Forgets answers that are older than so many seconds. Index: idempotency_keys_by_age.
DELETE FROM idempotency_keys WHERE answered_at < clock_at() - :seconds::float * interval '1 second';
