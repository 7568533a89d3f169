-- Message brokers: the queues that dispatchers serve for them, and the connections that tenants name in targets.

-- A queue that workers use would be taken from them: their jobs have to move before.
DO $$
BEGIN
    IF EXISTS (SELECT FROM queues
                WHERE name IN ('kafka', 'rabbitmq', 'redis_stream', 'nats', 'sqs')
                  AND EXISTS (SELECT FROM jobs
                               WHERE jobs.tenant_id = queues.tenant_id AND jobs.queue = queues.name
                                 AND jobs.status <> 'deleted')) THEN
        RAISE EXCEPTION 'jobs use a queue named kafka, rabbitmq, redis_stream, nats or sqs: from this version on these'
                        ' names belong to message brokers. Give those jobs and their workers another queue first';
    END IF;
END
$$;

ALTER TABLE queues
    DROP COLUMN is_dispatched,
    ADD COLUMN is_dispatched boolean NOT NULL GENERATED ALWAYS AS
        (name IN ('http', 'kafka', 'rabbitmq', 'redis_stream', 'nats', 'sqs')) STORED;  -- by dispatchers, not by workers
CREATE INDEX queues_dispatched ON queues (queue_id) WHERE is_dispatched;

-- How dispatchers reach a tenant's broker. Settings can be read by its owner; secrets are sealed, and only dispatchers
-- open them.
CREATE TABLE broker_connections (
    tenant_id       bigint      NOT NULL REFERENCES tenants,
    name            text        NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT clock_at(),
    updated_at      timestamptz NOT NULL DEFAULT clock_at(),
    revision        uuid        NOT NULL DEFAULT gen_random_uuid(),   -- another one after each change
    type            text        NOT NULL,
    settings        json        NOT NULL,
    secrets         bytea,                  -- sealed JSON; null: there are none
    secret_names    text[]      NOT NULL DEFAULT '{}',
    PRIMARY KEY (tenant_id, name)
);

-- The bytes that a connection counts for: the constant is about what its other columns and its index take.
CREATE FUNCTION connection_bytes(settings text, secrets bytea) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS 'SELECT 500 + octet_length(settings)::bigint + coalesce(octet_length(secrets), 0)';
