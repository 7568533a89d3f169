-- Which versions of apps have a worker that is alive, and the jobs that each version declares.

-- The names of all jobs that a version declares. Null of versions that have not started since.
ALTER TABLE app_versions ADD COLUMN names text[];

-- The app whose handlers a worker runs, and the digest of its version. Null of dispatchers and of workers over HTTP,
-- which register no versions.
ALTER TABLE workers ADD COLUMN app text, ADD COLUMN app_digest bytea;
