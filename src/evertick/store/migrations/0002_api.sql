-- The API: keys, quotas, stored answers to repeated requests, the audit log, webhook secrets, hosts of targets.

CREATE TYPE key_role AS ENUM ('viewer', 'operator', 'editor', 'admin', 'worker');

-- A tenant's quota, the shortest interval of its schedules, and how long one of its webhooks may take. `is_host`: its
-- admins manage all tenants.
ALTER TABLE tenants
    ADD COLUMN jobs_quota                integer NOT NULL DEFAULT 100000  CHECK (jobs_quota >= 0),
    ADD COLUMN submits_per_second        integer NOT NULL DEFAULT 1000    CHECK (submits_per_second >= 1),
    ADD COLUMN submit_burst              integer NOT NULL DEFAULT 10000   CHECK (submit_burst >= 1),
    ADD COLUMN running_quota             integer NOT NULL DEFAULT 2147483647 CHECK (running_quota >= 0),  -- no cap
    ADD COLUMN ready_quota               integer NOT NULL DEFAULT 1000000 CHECK (ready_quota >= 0),
    ADD COLUMN shortest_interval_seconds float   NOT NULL DEFAULT 1       CHECK (shortest_interval_seconds >= 0),
    ADD COLUMN http_timeout_max_seconds  integer NOT NULL DEFAULT 300
                                         CHECK (http_timeout_max_seconds BETWEEN 1 AND 3600),
    ADD COLUMN storage_quota_bytes       bigint  NOT NULL DEFAULT 10737418240 CHECK (storage_quota_bytes >= 0),
    -- The jitter of new jobs that choose none.
    ADD COLUMN default_jitter_seconds    float   NOT NULL DEFAULT 0 CHECK (default_jitter_seconds >= 0),
    ADD COLUMN is_host                   boolean NOT NULL DEFAULT false;
CREATE INDEX tenants_limited ON tenants (tenant_id) WHERE ready_quota < 1000000;
-- The default tenant is the operator's own, and may store a terabyte.
UPDATE tenants SET is_host = true, storage_quota_bytes = 1099511627776 WHERE name = 'default';

-- Rate buckets, from which all processes draw slices of tokens: millionths of a token as of an instant. Rate and burst
-- come with each draw, so that a change of them applies at once. A bucket that is missing is full.
CREATE TABLE rate_buckets (
    key             text        PRIMARY KEY,
    units           bigint      NOT NULL,
    as_of_us        bigint      NOT NULL,
    full_us         bigint      NOT NULL    -- from when on it is full, unless tokens are drawn before
) WITH (fillfactor = 50);

-- Only the digest of a key is stored, and its beginning, by which users tell keys apart.
CREATE TABLE api_keys (
    key_id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_id       bigint      NOT NULL REFERENCES tenants,
    created_at      timestamptz NOT NULL DEFAULT clock_at(),
    expires_at      timestamptz,
    revoked_at      timestamptz,
    last_used_at    timestamptz,            -- to the minute
    replaced_at     timestamptz,            -- when it got its one successor
    role            key_role    NOT NULL,
    digest          bytea       NOT NULL UNIQUE,
    prefix          text        NOT NULL,
    name            text        NOT NULL
);
CREATE INDEX api_keys_of_tenant ON api_keys (tenant_id, key_id);
CREATE INDEX api_keys_ended ON api_keys (least(revoked_at, expires_at))
    WHERE revoked_at IS NOT NULL OR expires_at IS NOT NULL;

-- Answers to requests with an Idempotency-Key, stored in the transaction of the request. A repeated request gets the
-- stored answer.
CREATE TABLE idempotency_keys (
    tenant_id       bigint      NOT NULL,
    answered_at     timestamptz NOT NULL DEFAULT clock_at(),
    status          smallint    NOT NULL,
    key             text        NOT NULL,
    request         bytea       NOT NULL,   -- digest of the request
    headers         jsonb       NOT NULL,
    body            bytea       NOT NULL,
    PRIMARY KEY (tenant_id, key)
);
CREATE INDEX idempotency_keys_by_age ON idempotency_keys (answered_at);

-- The bytes that a stored answer and an entry of the audit log count for: the constants are about what their other
-- columns and indexes take.
CREATE FUNCTION answer_bytes(body bytea) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS 'SELECT 500 + octet_length(body)::bigint';
CREATE FUNCTION audit_bytes() RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT 500::bigint';

CREATE TABLE audit_log (
    entry_id        bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_id       bigint      NOT NULL,
    changed_at      timestamptz NOT NULL DEFAULT clock_at(),
    actor           text        NOT NULL,   -- a key's id, or the command line
    action          text        NOT NULL,   -- the API's operation
    subject         text,                   -- the id of what was changed
    request_id      text
);
CREATE INDEX audit_log_of_tenant ON audit_log (tenant_id, entry_id);
CREATE INDEX audit_log_by_age ON audit_log (changed_at);

-- Secrets are sealed. During a rotation two are valid.
CREATE TABLE webhook_secrets (
    tenant_id       bigint      PRIMARY KEY REFERENCES tenants,
    rotated_at      timestamptz NOT NULL DEFAULT clock_at(),
    current         bytea       NOT NULL,
    previous        bytea
);

-- Hosts of HTTP targets that failed lately, for each tenant: the state of their circuit breaker (`domain/breaker`), which
-- all dispatchers share. A host that never fails has no row, unless it has a rate limit. Counts are of the window that
-- began at `window_at`, and of the window before it.
CREATE TYPE circuit_state AS ENUM ('closed', 'open', 'half_open');
CREATE TABLE target_hosts (
    tenant_id       bigint        NOT NULL REFERENCES tenants,
    changed_at      timestamptz   NOT NULL,     -- since when it is open, or closed
    window_at       timestamptz   NOT NULL,
    probe_at        timestamptz,                -- when the next probe may be made
    watched_at      timestamptz,                -- since when it has many failures, while it is closed
    watched_until   timestamptz,                -- until then dispatchers read it; null: they need not
    reported_at     timestamptz   NOT NULL,     -- when a dispatcher last had something to say
    calls           integer       NOT NULL,
    failures        integer       NOT NULL,
    calls_before    integer       NOT NULL,
    failures_before integer       NOT NULL,
    openings        integer       NOT NULL,     -- since it was closed
    state           circuit_state NOT NULL,
    rate_limit      float         CHECK (rate_limit > 0),   -- deliveries per second; null: no limit
    rate_burst      integer       CHECK (rate_burst > 0),   -- at once; null: what a second allows
    host            text          NOT NULL,     -- with its port, unless that is 443
    last_error      text,
    PRIMARY KEY (tenant_id, host)
);
CREATE INDEX target_hosts_watched ON target_hosts (watched_until) WHERE watched_until IS NOT NULL;
CREATE INDEX target_hosts_limited ON target_hosts (tenant_id, host) WHERE rate_limit IS NOT NULL;
CREATE INDEX target_hosts_by_age ON target_hosts (reported_at) WHERE rate_limit IS NULL;

-- When a lease began: a worker whose heartbeats do not name its leases keeps one no longer than its attempts may take.
ALTER TABLE leases ADD COLUMN leased_at timestamptz NOT NULL DEFAULT clock_at();

-- Where a tenant's notices go: runs by hand of a job with an HTTP target, whose payloads they are.
CREATE TABLE alert_targets (
    tenant_id       bigint      PRIMARY KEY REFERENCES tenants,
    job_id          bigint      NOT NULL,
    conditions      text[]      NOT NULL    -- those that the tenant wants notices of
);

-- Alerts: one row for each condition and subject of a tenant, which opens and closes. `is_told_open`: what the last
-- notice said; where that is not so any more, a notice follows when the one before is over. So notices of an alert come
-- in order, and none is lost between the change and its notice.
CREATE TABLE alerts (
    alert_id        bigint      PRIMARY KEY,    -- the time and a random number, as of tenants
    tenant_id       bigint      NOT NULL,
    job_id          bigint,                 -- of an alert about a job
    opened_at       timestamptz NOT NULL,   -- last
    closed_at       timestamptz,            -- null: open
    notice_at       timestamptz,            -- the fire time of the last notice's run
    notice_job_id   bigint,
    openings        integer     NOT NULL,   -- how often it was opened, since it was closed for a day
    is_open         boolean     NOT NULL,
    is_told_open    boolean     NOT NULL DEFAULT false,
    -- The tenant, while there is something to tell: by it the few are found among all its alerts.
    untold_tenant_id bigint     GENERATED ALWAYS AS (CASE WHEN is_open <> is_told_open THEN tenant_id END) STORED,
    condition       text        NOT NULL,   -- as of domain/alerts
    subject         text        NOT NULL,   -- a job's id, a host, the name of a quota; '' for the tenant itself
    detail          text        NOT NULL,   -- why it was opened
    close_reason    text,
    UNIQUE (tenant_id, condition, subject)
);
CREATE INDEX alerts_of_tenant ON alerts (tenant_id, alert_id);
CREATE INDEX alerts_about_tenant ON alerts (tenant_id) WHERE job_id IS NULL;
CREATE INDEX alerts_open ON alerts (alert_id) WHERE is_open;
CREATE INDEX alerts_told ON alerts (alert_id) WHERE notice_at IS NOT NULL;
CREATE INDEX alerts_of_job ON alerts (job_id) WHERE job_id IS NOT NULL;
CREATE INDEX alerts_open_of_job ON alerts (job_id) WHERE is_open AND job_id IS NOT NULL;
CREATE INDEX alerts_untold ON alerts (untold_tenant_id, alert_id) WHERE untold_tenant_id IS NOT NULL;
CREATE INDEX alerts_by_age ON alerts (closed_at) WHERE NOT is_open;

-- Who looks for alerts: one process at a time, which locks a row. The looks go on where the last one ended.
CREATE TABLE alert_looks (
    look            text        PRIMARY KEY,
    after_id        bigint      NOT NULL DEFAULT 0,             -- the job or tenant that was looked at last
    began_at        timestamptz NOT NULL DEFAULT '-infinity',   -- when the walk through all of them began
    next_at         timestamptz NOT NULL DEFAULT '-infinity'    -- when there is something to do
) WITH (fillfactor = 50);
INSERT INTO alert_looks (look) VALUES ('jobs'), ('tenants'), ('notices');
