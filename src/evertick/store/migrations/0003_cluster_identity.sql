-- The cluster's identity: on which server and database its work was last confirmed. A restored copy of the database has
-- this row too, but not the rest, so that nothing runs in it until that is confirmed.
-- docs/decisions/0027-restored-copies.md has the reasons.

CREATE TABLE cluster_identity (
    is_only             boolean     PRIMARY KEY DEFAULT true CHECK (is_only),
    confirmed_at        timestamptz,    -- null: never, as in a new database; nothing is compared yet
    server_started_at   timestamptz,    -- when the server was started on which it was confirmed
    suspected_at        timestamptz,    -- since when an operator has to confirm; null: nobody has to
    system_identifier   bigint,         -- of the server; null: it could not be read
    timeline            bigint,         -- of its write-ahead log; null: it could not be read
    database_oid        oid,
    table_oid           oid,            -- of this table: one that was restored from a dump has another
    name                text,           -- EVERTICK_CLUSTER of all its processes; null: they have none
    suspicion           text            -- why an operator has to confirm, as of domain/cluster_identity
);
INSERT INTO cluster_identity DEFAULT VALUES;

-- One row if work may be done here, else none. A server that was started anew is to be confirmed first, whatever the
-- reason: schedulers do it by themselves, unless the database may be a copy. Statements that take partitions, fire or
-- lease read this. A view and not a function, so that it becomes a part of their plans.
CREATE VIEW confirmed_server AS
SELECT identity.confirmed_at IS NOT NULL AS is_known
  FROM cluster_identity identity
 WHERE identity.suspected_at IS NULL
   AND (identity.confirmed_at IS NULL
        OR identity.server_started_at = pg_postmaster_start_time()
           AND identity.table_oid = identity.tableoid
           AND identity.database_oid = (SELECT oid FROM pg_database WHERE datname = current_database()));

-- What the server says of itself. A part that it does not tell to this role is null.
CREATE FUNCTION server_identity(OUT system_identifier bigint, OUT timeline bigint) LANGUAGE plpgsql AS $$
BEGIN
    BEGIN
        SELECT control.system_identifier INTO server_identity.system_identifier FROM pg_control_system() AS control;
    EXCEPTION WHEN OTHERS THEN  -- services refuse it with errors of their own
        server_identity.system_identifier := NULL;
    END;
    BEGIN
        -- Not that of the last checkpoint, which a promotion changes only later.
        server_identity.timeline := ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint;
    EXCEPTION WHEN OTHERS THEN
        server_identity.timeline := NULL;
    END;
END $$;
