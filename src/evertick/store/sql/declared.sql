-- What apps declare in their code. Called when an app registers its jobs.

-- name: version
-- Notes a start of a version of an app, and returns when it came first: now, if it is new. Index: app_versions_pkey.
INSERT INTO app_versions (tenant_id, app, digest, names)
VALUES (:tenant_id::bigint, :app::text, :digest::bytea, :names::text[])
    ON CONFLICT (tenant_id, app, digest) DO UPDATE SET started_at = clock_at(), names = EXCLUDED.names
RETURNING first_at;

-- name: jobs
-- All jobs that versions of an app have declared, and which of them a start has declared since a version came, and a
-- version with a living worker declares. A version that started since with an Evertick that did not note its names yet
-- counts as one that declares all of them. Indexes: declared_jobs_pkey, workers_of_tenant, app_versions_pkey.
WITH living AS MATERIALIZED (
    SELECT DISTINCT unnest(version.names) AS name
      FROM (SELECT DISTINCT app_digest
              FROM workers
             WHERE tenant_id = :tenant_id::bigint AND app = :app::text AND alive_until > clock_at()) AS worker
      JOIN app_versions version
        ON version.tenant_id = :tenant_id::bigint AND version.app = :app::text AND version.digest = worker.app_digest
)
SELECT name, version_at, digest,
       declared_at > :version_at::timestamptz
       AND (name IN (SELECT name FROM living) OR EXISTS (SELECT
                      FROM app_versions
                     WHERE tenant_id = :tenant_id::bigint AND app = :app::text AND names IS NULL
                       AND started_at > :version_at::timestamptz)) AS is_restored
  FROM declared_jobs
 WHERE tenant_id = :tenant_id::bigint AND app = :app::text;

-- name: declare
-- Notes that a version declares a job. Index: declared_jobs_pkey.
INSERT INTO declared_jobs AS known (tenant_id, app, name, version_at, digest)
VALUES (:tenant_id::bigint, :app::text, :name::text, :version_at::timestamptz, :digest::bytea)
    ON CONFLICT (tenant_id, app, name) DO UPDATE
   SET version_at = greatest(known.version_at, EXCLUDED.version_at), declared_at = clock_at(), digest = EXCLUDED.digest;

-- name: forget_old
-- Forgets versions of an app that have not started for 90 days, and jobs that no start has declared since. Indexes:
-- app_versions_pkey, declared_jobs_pkey.
WITH versions AS (
    DELETE FROM app_versions
     WHERE tenant_id = :tenant_id::bigint AND app = :app::text AND started_at < clock_at() - interval '90 days'
)
DELETE FROM declared_jobs
 WHERE tenant_id = :tenant_id::bigint AND app = :app::text AND declared_at < clock_at() - interval '90 days';

-- name: lock
-- Locks a job, unless a version newer than the given one declares it by now. Index: declared_jobs_pkey.
SELECT true
  FROM declared_jobs
 WHERE tenant_id = :tenant_id::bigint AND app = :app::text AND name = :name::text
   AND version_at <= :version_at::timestamptz
   FOR UPDATE;

-- name: forget
-- Forgets a job that is deleted because no version declares it. Index: declared_jobs_pkey.
DELETE FROM declared_jobs WHERE tenant_id = :tenant_id::bigint AND app = :app::text AND name = :name::text;
