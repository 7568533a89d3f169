-- The dashboard: sessions of browsers, and links that log in once. Of both only a digest is kept. A session ends with
-- its key, which its look-up reads. A login deletes sessions that have expired.
CREATE TABLE sessions (
    digest     bytea       PRIMARY KEY,
    key_id     bigint      NOT NULL REFERENCES api_keys ON DELETE CASCADE,
    created_at timestamptz NOT NULL DEFAULT clock_at(),
    expires_at timestamptz NOT NULL,
    is_link    boolean     NOT NULL
);
CREATE INDEX sessions_by_age ON sessions (expires_at);
CREATE INDEX sessions_of_key ON sessions (key_id);

-- Lists of jobs by name: prefixes and the order of pages, byte by byte. Written only when a job is created or renamed.
CREATE INDEX jobs_by_text ON jobs (tenant_id, name COLLATE "C") WHERE status <> 'deleted';

-- Jobs that Evertick has paused, by the beginnings of its reasons.
CREATE INDEX jobs_paused ON jobs (tenant_id)
 WHERE status = 'paused' AND pause_reason ~ '^(runaway: |rule -?[0-9]+ |its target answered 410 )';
