-- Smears: the jitter that the forecast advises, given to many jobs by janitors, and taken back.

CREATE TYPE smear_status AS ENUM ('running', 'done', 'undoing', 'undone');
CREATE TYPE smeared_state AS ENUM ('waiting', 'changed', 'skipped', 'undone', 'kept');

CREATE TABLE smears (
    smear_id        bigint       PRIMARY KEY
                                 DEFAULT (microseconds(clock_at()) << 10) + floor(random() * 1024)::bigint,
    tenant_id       bigint       NOT NULL REFERENCES tenants,
    created_at      timestamptz  NOT NULL DEFAULT clock_at(),
    finished_at     timestamptz,
    next_batch_at   timestamptz  NOT NULL DEFAULT clock_at(),
    reached_job_id  bigint       NOT NULL DEFAULT 0,     -- batches go on after it
    jitter_seconds  integer      NOT NULL CHECK (jitter_seconds > 0),
    status          smear_status NOT NULL DEFAULT 'running',
    actor           text         NOT NULL
);
CREATE INDEX smears_of_tenant ON smears (tenant_id, smear_id);
CREATE INDEX smears_running ON smears (next_batch_at) WHERE finished_at IS NULL;
CREATE INDEX smears_by_age ON smears (finished_at) WHERE finished_at IS NOT NULL;

-- The jobs of a smear. `spec_version` is the one that the smear wrote: a job that has another one by now was edited
-- since, and is kept as it is when the smear is undone.
CREATE TABLE smeared_jobs (
    smear_id        bigint        NOT NULL REFERENCES smears ON DELETE CASCADE,
    job_id          bigint        NOT NULL,
    spec_version    integer,
    state           smeared_state NOT NULL DEFAULT 'waiting',
    PRIMARY KEY (smear_id, job_id)
);
