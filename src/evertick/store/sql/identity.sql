-- The cluster's identity: whether the database is the one that its schedulers worked in, or perhaps a restored copy.
-- Read by schedulers after a server has started, by the doctor and by probes. The table has one row.

-- name: facts
-- What was confirmed last, what the server is now, and the newest trace of a scheduler at work. Only schedulers on a
-- confirmed server leave one.
SELECT identity.confirmed_at, identity.suspected_at, identity.suspicion, identity.name,
       identity.server_started_at AS confirmed_start, identity.system_identifier AS confirmed_system,
       identity.timeline AS confirmed_timeline,
       identity.database_oid::bigint AS confirmed_database, identity.table_oid::bigint AS confirmed_table,
       pg_postmaster_start_time() AS server_started_at, server.system_identifier, server.timeline,
       (SELECT oid FROM pg_database WHERE datname = current_database())::bigint AS database_oid,
       identity.tableoid::bigint AS table_oid,
       greatest((SELECT max(seen_at) FROM nodes), (SELECT max(greatest(taken_at, released_at)) FROM partitions))
           AS active_at,
       clock_at() AS now_at,
       EXISTS (SELECT FROM confirmed_server) AS is_confirmed
  FROM cluster_identity identity
 CROSS JOIN server_identity() AS server;

-- name: confirm
-- Lets work go on here. Not if the server is another by now, or somebody else has decided since: the server that was
-- confirmed before, and the suspicion, are still those that were read.
UPDATE cluster_identity
   SET confirmed_at = clock_at(), suspected_at = NULL, suspicion = NULL,
       server_started_at = pg_postmaster_start_time(),
       system_identifier = server.system_identifier, timeline = server.timeline,
       database_oid = (SELECT oid FROM pg_database WHERE datname = current_database()),
       table_oid = cluster_identity.tableoid
  FROM server_identity() AS server
 WHERE pg_postmaster_start_time() = :server_started_at::timestamptz
   AND cluster_identity.server_started_at IS NOT DISTINCT FROM :confirmed_start::timestamptz
   AND cluster_identity.suspected_at IS NOT DISTINCT FROM :suspected_at::timestamptz
RETURNING true AS is_done;

-- name: suspect
-- Lets nothing be done here until an operator confirms. Conditions as of `confirm`.
UPDATE cluster_identity
   SET suspected_at = clock_at(), suspicion = :suspicion::text
 WHERE pg_postmaster_start_time() = :server_started_at::timestamptz
   AND server_started_at IS NOT DISTINCT FROM :confirmed_start::timestamptz
   AND suspected_at IS NULL
RETURNING true AS is_done;

-- name: set_name
UPDATE cluster_identity SET name = :name::text;

-- name: name
SELECT name FROM cluster_identity;

-- name: suspicion
-- Why an operator has to confirm; null: none has to, or no scheduler has looked yet.
SELECT suspicion FROM cluster_identity;

-- name: may_work
SELECT EXISTS (SELECT FROM confirmed_server) AS may_work;
