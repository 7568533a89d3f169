-- Connections of tenants to message brokers. Called by the use cases, and by dispatchers, which open the secrets.

-- name: add
-- A new connection; nothing if its name is taken or its tenant has as many as it may. Indexes: broker_connections_pkey,
-- tenants_pkey.
WITH added AS (
    INSERT INTO broker_connections (tenant_id, name, type, settings, secrets, secret_names)
    SELECT :tenant_id::bigint, :name::text, :type::text, :settings::text::json, :secrets::bytea, :secret_names::text[]
     WHERE (SELECT count(*) FROM broker_connections WHERE tenant_id = :tenant_id::bigint) < :most::integer
        ON CONFLICT DO NOTHING
 RETURNING tenant_id, name, created_at, updated_at, revision, type, settings, secrets, secret_names
),
counted AS (
    INSERT INTO storage_changes (tenant_id, bytes)
    SELECT tenant_id, connection_bytes(settings::text, secrets) FROM added
)
SELECT tenant_id, name, created_at, updated_at, revision::text AS revision, type, settings::text AS settings, secrets,
       secret_names
  FROM added;

-- name: lock
-- A connection, locked. Index: broker_connections_pkey.
SELECT tenant_id, name, created_at, updated_at, revision::text AS revision, type, settings::text AS settings, secrets,
       secret_names
  FROM broker_connections
 WHERE tenant_id = :tenant_id::bigint AND name = :name::text
   FOR UPDATE;

-- name: replace
-- Another type, other settings and secrets for a connection that the caller has locked. Index: broker_connections_pkey.
WITH before AS (
    SELECT connection_bytes(settings::text, secrets) AS bytes
      FROM broker_connections
     WHERE tenant_id = :tenant_id::bigint AND name = :name::text
),
replaced AS (
    UPDATE broker_connections
       SET updated_at = clock_at(), revision = gen_random_uuid(), type = :type::text,
           settings = :settings::text::json, secrets = :secrets::bytea, secret_names = :secret_names::text[]
     WHERE tenant_id = :tenant_id::bigint AND name = :name::text
 RETURNING tenant_id, name, created_at, updated_at, revision, type, settings, secrets, secret_names
),
counted AS (
    INSERT INTO storage_changes (tenant_id, bytes)
    SELECT tenant_id, connection_bytes(settings::text, secrets) - (SELECT bytes FROM before) FROM replaced
)
SELECT tenant_id, name, created_at, updated_at, revision::text AS revision, type, settings::text AS settings, secrets,
       secret_names
  FROM replaced;

-- name: remove
-- Removes a connection. Index: broker_connections_pkey.
WITH removed AS (
    DELETE FROM broker_connections
     WHERE tenant_id = :tenant_id::bigint AND name = :name::text
 RETURNING tenant_id, connection_bytes(settings::text, secrets) AS bytes
)
INSERT INTO storage_changes (tenant_id, bytes) SELECT tenant_id, -bytes FROM removed;

-- name: page
-- A tenant's connections by name; one alone if it is given. Index: broker_connections_pkey.
SELECT tenant_id, name, created_at, updated_at, revision::text AS revision, type, settings::text AS settings, secrets,
       secret_names
  FROM broker_connections
 WHERE tenant_id = :tenant_id::bigint AND name > :after::text AND (:only::text IS NULL OR name = :only::text)
 ORDER BY name
 LIMIT :most::integer;

-- name: users
-- How many jobs use a connection, counted up to a number: those of the queue that is named like its type are read.
-- Indexes: jobs_of_tenant, job_versions_pkey.
SELECT count(*)
  FROM (SELECT 1
          FROM jobs job
          JOIN job_versions version ON version.job_id = job.job_id AND version.spec_version = job.spec_version
         WHERE job.tenant_id = :tenant_id::bigint AND job.status <> 'deleted' AND job.queue = :type::text
           AND version.spec -> 'target' ->> 'connection' = :name::text
         LIMIT :most::integer) AS first_jobs;

-- name: is_of_sink
-- Whether the sink of the tenant's events uses a connection. Index: event_sinks_pkey.
SELECT EXISTS (
    SELECT FROM event_sinks WHERE tenant_id = :tenant_id::bigint AND target ->> 'connection' = :name::text
);

-- name: types
-- The types of a tenant's connections. Index: broker_connections_pkey.
SELECT name, type FROM broker_connections WHERE tenant_id = :tenant_id::bigint;

-- name: types_in_use
-- The types that connections of any tenant have. Called by the doctor.
SELECT DISTINCT type FROM broker_connections ORDER BY type;

-- name: find
-- The given connections of any tenants, as they are now. Index: broker_connections_pkey.
SELECT found.tenant_id, found.name, found.created_at, found.updated_at, found.revision, found.type, found.settings,
       found.secrets, found.secret_names
  FROM unnest(:tenant_ids::bigint[], :names::text[]) AS given (tenant_id, name)
 CROSS JOIN LATERAL (
           SELECT tenant_id, name, created_at, updated_at, revision::text AS revision, type, settings::text AS settings,
                  secrets, secret_names
             FROM broker_connections connection
            WHERE connection.tenant_id = given.tenant_id AND connection.name = given.name
            LIMIT 1
       ) AS found;

-- name: revisions
-- Which of the given connections there are, and as of which change. Index: broker_connections_pkey.
SELECT found.tenant_id, found.name, found.revision
  FROM unnest(:tenant_ids::bigint[], :names::text[]) AS given (tenant_id, name)
 CROSS JOIN LATERAL (
           SELECT tenant_id, name, revision::text AS revision
             FROM broker_connections connection
            WHERE connection.tenant_id = given.tenant_id AND connection.name = given.name
            LIMIT 1
       ) AS found;

-- name: sealed_otherwise
-- Connections with secrets that do not begin with this stamp, in the order of their tenants and names after one of them.
-- Index: broker_connections_pkey.
SELECT tenant_id, name, created_at, updated_at, revision::text AS revision, type, settings::text AS settings, secrets,
       secret_names
  FROM broker_connections
 WHERE substring(secrets FROM 1 FOR length(:stamp::bytea)) <> :stamp
   AND (tenant_id, name) > (:after_tenant_id::bigint, :after_name::text)
 ORDER BY tenant_id, name
 LIMIT :most::integer;

-- name: reseal
-- Puts the same secrets, sealed anew, in place of what was read; not where they have changed since. Sealed, they are as
-- long as before. Index: broker_connections_pkey.
UPDATE broker_connections connection
   SET secrets = given.secrets
  FROM unnest(:tenant_ids::bigint[], :names::text[], :revisions::text[], :secrets::bytea[])
       AS given (tenant_id, name, revision, secrets)
 WHERE connection.tenant_id = given.tenant_id AND connection.name = given.name
   AND connection.revision = given.revision::uuid
RETURNING connection.name;
