-- The archive: which days of the history were exported to files, and which files they are. A day is dropped only when
-- the database knows that its files hold all of it.

-- How long a tenant's history is listed, and how long its archive is kept; the default is without an end of its own.
ALTER TABLE tenants
    ADD COLUMN history_days integer NOT NULL DEFAULT 36500 CHECK (history_days >= 1),
    ADD COLUMN archive_days integer NOT NULL DEFAULT 36500 CHECK (archive_days >= 0);

-- Whether days must be archived before they are dropped. A process with an archive turns it on; only a command turns it
-- off. `error`: why the last export failed.
CREATE TABLE archive_marks (
    is_only         boolean     PRIMARY KEY DEFAULT true CHECK (is_only),
    is_on           boolean     NOT NULL DEFAULT false,
    url             text,
    failed_at       timestamptz,
    error           text
);
INSERT INTO archive_marks DEFAULT VALUES;

-- The exports. Rows that come to a day after it was dropped become another part of it. `token` is of the export at work:
-- one that lost its claim changes nothing any more. The counts and digests are of the tables, before the export.
CREATE TYPE archive_state AS ENUM ('exporting', 'verified', 'dropped');
CREATE TABLE archived_days (
    day                 date          NOT NULL,
    part                integer       NOT NULL DEFAULT 0,
    state               archive_state NOT NULL DEFAULT 'exporting',
    token               text          NOT NULL,
    claimed_at          timestamptz   NOT NULL,
    verified_at         timestamptz,
    dropped_at          timestamptz,
    attempts            bigint        NOT NULL DEFAULT 0,
    outcomes            bigint        NOT NULL DEFAULT 0,
    gaps                bigint        NOT NULL DEFAULT 0,
    withdrawals         bigint        NOT NULL DEFAULT 0,
    gaps_digest         numeric       NOT NULL DEFAULT 0,
    withdrawals_digest  numeric       NOT NULL DEFAULT 0,
    PRIMARY KEY (day, part)
);

-- The files. A row is written before its file, so that no file is unknown. `is_checked`: it was read back, and what it
-- holds is what the tables had. `is_released`: its day was dropped, and is read from here.
CREATE TABLE archive_files (
    path            text        PRIMARY KEY,
    day             date        NOT NULL,
    part            integer     NOT NULL,
    tenant_id       bigint      NOT NULL,
    noted_at        timestamptz NOT NULL,
    kind            text        NOT NULL,   -- runs, gaps
    token           text        NOT NULL,
    is_checked      boolean     NOT NULL DEFAULT false,
    is_released     boolean     NOT NULL DEFAULT false,
    rows            bigint      NOT NULL DEFAULT 0,
    outcomes        bigint      NOT NULL DEFAULT 0,
    bytes           bigint      NOT NULL DEFAULT 0,
    digest          numeric     NOT NULL DEFAULT 0,     -- of the rows, in any order
    sha256          text        NOT NULL DEFAULT '',    -- of the file
    first_seq       bigint      NOT NULL DEFAULT 0,
    last_seq        bigint      NOT NULL DEFAULT 0,
    first_at        timestamptz NOT NULL DEFAULT '-infinity',   -- of fire times; of gaps, of their first ticks
    last_at         timestamptz NOT NULL DEFAULT '-infinity'
);
CREATE INDEX archive_files_of_day ON archive_files (day, part);
CREATE INDEX archive_files_of_tenant ON archive_files (tenant_id, kind, last_at) WHERE is_released;
CREATE INDEX archive_files_by_seq ON archive_files (tenant_id, last_seq) WHERE is_released AND kind = 'runs';
CREATE INDEX archive_files_unchecked ON archive_files (noted_at) WHERE NOT is_checked;

-- One row as a number: the sum over rows is a digest that does not depend on their order. Python computes the same of
-- the rows in a file.
CREATE FUNCTION row_digest(line text) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$SELECT ('x' || left(md5(line), 15))::bit(60)::bigint$$;
CREATE FUNCTION gap_digest(job_id bigint, first_at timestamptz, last_at timestamptz, ticks bigint, spec_version integer,
                           reason gap_reason) RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE
    AS $$SELECT row_digest(concat_ws(chr(31), job_id, microseconds(first_at), microseconds(last_at), ticks, spec_version,
                                     reason))$$;
CREATE FUNCTION withdrawal_digest(job_id bigint, fire_at timestamptz, withdrawn_at timestamptz) RETURNS bigint
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$SELECT row_digest(concat_ws(chr(31), job_id, microseconds(fire_at), microseconds(withdrawn_at)))$$;

-- Drops a day that need not be archived. While days must be, this drops none, whoever calls it.
CREATE OR REPLACE FUNCTION drop_day(day date) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    -- Locked: a process that turns the archive on waits, or is seen.
    IF (SELECT is_on FROM archive_marks FOR SHARE) THEN
        RETURN;
    END IF;
    EXECUTE format('DROP TABLE IF EXISTS attempts_%1$s, outcomes_%1$s', to_char(day, 'YYYYMMDD'));
END $$;

-- Drops a day that was archived, with its gaps and withdrawals, unless one of the tables has changed since it was
-- counted. New attempts and outcomes of this day wait for the lock meanwhile; those of other days do not. The locks of
-- the whole ledgers are taken last, for the moment of the drop.
CREATE FUNCTION drop_archived_day(wanted date, wanted_part integer, wanted_token text) RETURNS text
    LANGUAGE plpgsql AS $$
DECLARE
    suffix   text := to_char(wanted, 'YYYYMMDD');
    from_at  timestamptz := wanted::timestamp AT TIME ZONE 'UTC';
    end_at   timestamptz := (wanted + 1)::timestamp AT TIME ZONE 'UTC';
    archived archived_days%ROWTYPE;
    is_same  boolean;
BEGIN
    SELECT * INTO archived
      FROM archived_days
     WHERE day = wanted AND part = wanted_part AND token = wanted_token AND state = 'verified'
       FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 'unverified';
    END IF;
    IF to_regclass('attempts_' || suffix) IS NOT NULL THEN
        EXECUTE format('LOCK TABLE attempts_%1$s, outcomes_%1$s IN SHARE MODE', suffix);
        EXECUTE format('SELECT (SELECT count(*) FROM attempts_%1$s) = $1 AND (SELECT count(*) FROM outcomes_%1$s) = $2',
                       suffix)
           INTO is_same USING archived.attempts, archived.outcomes;
        IF NOT is_same THEN
            RETURN 'changed';
        END IF;
    END IF;
    WITH gone AS (
        DELETE FROM gaps WHERE last_at >= from_at AND last_at < end_at
     RETURNING gap_digest(job_id, first_at, last_at, ticks, spec_version, reason) AS digest
    ),
    withdrawn AS (
        DELETE FROM withdrawals WHERE withdrawn_at >= from_at AND withdrawn_at < end_at
     RETURNING withdrawal_digest(job_id, fire_at, withdrawn_at) AS digest
    )
    SELECT (SELECT coalesce(sum(digest), 0) FROM gone) = archived.gaps_digest
           AND (SELECT count(*) FROM gone) = archived.gaps
           AND (SELECT coalesce(sum(digest), 0) FROM withdrawn) = archived.withdrawals_digest
           AND (SELECT count(*) FROM withdrawn) = archived.withdrawals
      INTO is_same;
    IF NOT is_same THEN
        RAISE EXCEPTION 'the day has changed' USING ERRCODE = 'AR001';  -- what was deleted comes back
    END IF;
    EXECUTE format('DROP TABLE IF EXISTS attempts_%1$s, outcomes_%1$s', suffix);
    UPDATE archive_files SET is_released = true
     WHERE day = wanted AND part = wanted_part AND token = wanted_token AND is_checked;
    UPDATE archived_days SET state = 'dropped', dropped_at = clock_at() WHERE day = wanted AND part = wanted_part;
    RETURN 'dropped';
END $$;
