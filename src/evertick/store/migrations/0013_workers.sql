-- Who serves what, and since when attempts run; and the role of keys for remote workers that declare jobs.

ALTER TYPE key_role ADD VALUE 'app';

-- One row for each queue that a worker or a dispatcher serves. `worker` is the name that its leases have; a tenant of
-- null means all tenants, handlers of null mean any. It counts as alive until `alive_until`, which heartbeats move.
CREATE TABLE workers (
    worker          text        NOT NULL,
    queue           text        NOT NULL,
    tenant_id       bigint,
    started_at      timestamptz NOT NULL DEFAULT clock_at(),
    seen_at         timestamptz NOT NULL DEFAULT clock_at(),
    alive_until     timestamptz NOT NULL,
    role            text        NOT NULL,
    version         text,
    handlers        text[],
    PRIMARY KEY (worker, queue)
) WITH (fillfactor = 50);

CREATE INDEX workers_of_tenant ON workers (tenant_id);

-- Which attempts of a lease are running, and since when: heartbeats write it, so attempts shorter than the pause between
-- two of them cost nothing.
ALTER TABLE leases ADD COLUMN running_seqs bigint[], ADD COLUMN running_since timestamptz[];

-- Since when an attempt runs under a lease with these columns, as far as that is known. What a worker leases over HTTP,
-- under a name with a slash, counts as started then.
CREATE FUNCTION running_since(seqs bigint[], since timestamptz[], worker text, leased_at timestamptz, seq bigint)
    RETURNS timestamptz
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN coalesce(since[array_position(seqs, seq)], CASE WHEN strpos(worker, '/') > 0 THEN leased_at END);
