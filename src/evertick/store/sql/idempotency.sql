-- Answers that are kept for who asks twice. Called by the use cases, in the transaction of what they answer.

-- name: begin
-- Those of these keys that nobody else is answering. The locks end with the transaction, however that ends.
SELECT key
  FROM unnest(:keys::text[]) AS given (key)
 WHERE pg_try_advisory_xact_lock(hashtextextended(key, :tenant_id::bigint));

-- name: find
-- The answers that were given. Index: idempotency_keys_pkey.
SELECT key, request, status, headers::text AS headers, body
  FROM idempotency_keys
 WHERE tenant_id = :tenant_id::bigint AND key = ANY(:keys::text[]);

-- name: keep
-- Answers, for who asks again.
INSERT INTO idempotency_keys (tenant_id, key, request, status, headers, body)
SELECT :tenant_id::bigint, key, request, status, headers::jsonb, body
  FROM unnest(:keys::text[], :requests::bytea[], :statuses::smallint[], :headers::text[], :bodies::bytea[])
       AS given (key, request, status, headers, body);

-- name: prune
-- Forgets answers that are older than so many seconds, by the time that is trusted. Index: idempotency_keys_by_age.
DELETE FROM idempotency_keys
 WHERE answered_at < (SELECT least(trusted_at, clock_at()) FROM clock_marks) - :seconds::float * interval '1 second';
