-- What handlers return, the progress of running attempts, idempotency keys of submissions, and the rule of one-offs.

-- What an attempt came to, whole: JSON that its worker has encoded, as text, since nothing looks into it. Null costs no
-- space in a row.
ALTER TABLE outcomes ADD COLUMN output text;

-- The beginning of what an attempt came to: noted by itself, or that of its output.
CREATE FUNCTION excerpt_of(excerpt text, output text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN coalesce(excerpt, left(output, 1024));

-- How far the running attempts of a lease are, in the words of their handlers: texts by seq. A worker replaces them all.
ALTER TABLE leases ADD COLUMN progress jsonb;

-- As in 0008, but for the way to say that no worker has a lease: as rows of leases are wider now, the planner would read
-- the index of all free leases of an empty table for it.
CREATE OR REPLACE FUNCTION lease_of_attempt(of_lane bigint, of_seq bigint) RETURNS TABLE(is_leased boolean)
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$
    SELECT CASE WHEN lane_is_gated(of_lane)
                THEN (SELECT true FROM leases own
                       WHERE own.lane_id = of_lane AND own.first_seq BETWEEN of_seq AND of_seq
                         AND own.first_seq = own.last_seq AND own.worker IS NOT NULL
                       LIMIT 1) IS NOT NULL
                ELSE coalesce((SELECT lane.head FROM lanes lane WHERE lane.lane_id = of_lane LIMIT 1) >= of_seq, false)
                     AND (SELECT true FROM leases free
                           WHERE free.lane_id = of_lane AND free.first_seq BETWEEN of_seq AND of_seq
                             AND free.first_seq = free.last_seq AND coalesce(free.worker, '') = ''
                           LIMIT 1) IS NULL
           END
$$;

-- The digest of the rule that one-offs without policies of their own have. It is here from the start and is never
-- removed: else the first one of these that a transaction submits would lock it for all others until its end.
CREATE FUNCTION one_off_digest() RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN '\xf1897e2e280971100d04b51a9dfa1961'::bytea;
INSERT INTO rules (digest, canonical)
VALUES (one_off_digest(),
        '{"concurrent_policy":"SKIP","dst_gap":"catch_up","dst_overlap":"first","end_us":null,'
        '"grace_us":3600000000,"jitter_us":0,"max_concurrent":1,"max_missed":1,"missed_window":"RUN_ONCE",'
        '"spec":{"kind":"one_off"},"start_us":null,"timezone":"UTC"}')
    ON CONFLICT (digest) DO UPDATE SET unused_at = NULL;

SELECT set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);

-- As in 0012, and a document may have an `idempotency_key`, with the digest of its `request` and the `answer` to it. Then
-- it may also return `in_flight` (another transaction submits with this key), `key_reused` (for another request), or the
-- answer that was given before, which begins with a brace.
CREATE OR REPLACE FUNCTION submit_prepared(document jsonb) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off
    AS $$
DECLARE
    given  record;
    before record;
    rule   bigint;
    queue  bigint;
BEGIN
    SELECT * INTO given
      FROM jsonb_to_record(document)
           AS doc (tenant_id bigint, tenant_created_at timestamptz, now_at timestamptz, job_id bigint, name text,
                   payload text, spec text, gate_id bigint, queue text, labels jsonb, digest text, timeout integer,
                   timezone text, handler text, key_template text, retry json, fire_at timestamptz,
                   due_at timestamptz, priority smallint, gate_limit integer, has_alerts boolean, rule_id bigint,
                   queue_id integer, trace_parent text, idempotency_key text, request text, answer text);
    IF NOT EXISTS (SELECT FROM tenants
                    WHERE tenants.tenant_id = given.tenant_id AND tenants.created_at = given.tenant_created_at) THEN
        RETURN 'other_database';
    END IF;
    IF given.idempotency_key IS NOT NULL THEN
        -- The lock of `idempotency.begin`.
        IF NOT pg_try_advisory_xact_lock(
                   hashtextextended(given.idempotency_key, given.tenant_id)
                   # CASE current_schema() WHEN 'evertick' THEN 0
                          ELSE hashtextextended(current_schema()::text, 0) END) THEN
            RETURN 'in_flight';
        END IF;
        SELECT idempotency_keys.request, idempotency_keys.body INTO before
          FROM idempotency_keys
         WHERE idempotency_keys.tenant_id = given.tenant_id AND idempotency_keys.key = given.idempotency_key;
        IF FOUND THEN
            RETURN CASE WHEN before.request = decode(given.request, 'hex') THEN convert_from(before.body, 'UTF8')
                        ELSE 'key_reused' END;
        END IF;
    END IF;
    rule := given.rule_id;
    queue := given.queue_id;
    IF queue IS NULL THEN
        SELECT rules.rule_id INTO rule
          FROM rules WHERE rules.digest = decode(given.digest, 'hex') AND rules.unused_at IS NULL;
        SELECT queues.queue_id INTO queue
          FROM queues
         WHERE queues.tenant_id = given.tenant_id AND queues.name = given.queue AND queues.unused_at IS NULL;
        IF rule IS NULL OR queue IS NULL
           OR NOT EXISTS (SELECT FROM lanes
                           WHERE lanes.lane_id = lane_id_of(queue, given.job_id & 255, given.priority))
           OR given.gate_limit IS NOT NULL
              AND NOT EXISTS (SELECT FROM lanes
                               WHERE lanes.lane_id = lane_id_of(queue, given.job_id & 255, given.priority, true)) THEN
            RETURN 'incomplete';
        END IF;
    END IF;
    INSERT INTO jobs (job_id, tenant_id, created_at, updated_at, spec_version, name, queue, labels, has_alerts)
    VALUES (given.job_id, given.tenant_id, given.now_at, given.now_at, 1, given.name, given.queue, given.labels,
            given.has_alerts)
        ON CONFLICT (tenant_id, name) WHERE status <> 'deleted' DO NOTHING;
    IF NOT FOUND THEN
        RETURN 'name_taken';
    END IF;
    INSERT INTO job_versions (job_id, rule_id, effective_at, gate_id, spec_version, timeout_seconds, gate_limit, name,
                              timezone, handler, key_template, retry, payload, spec, trace_parent)
    VALUES (given.job_id, rule, given.now_at, given.gate_id, 1, given.timeout, given.gate_limit, given.name,
            given.timezone, given.handler, given.key_template, given.retry, given.payload::json, given.spec::json,
            given.trace_parent);
    INSERT INTO timers (job_id, fire_at, due_at, tenant_id, rule_id, gate_id, queue_id, spec_version, kind, partition,
                        priority)
    VALUES (given.job_id, given.fire_at, given.due_at, given.tenant_id, rule, given.gate_id, queue, 1, 'tick',
            (given.job_id & 255)::smallint, given.priority);
    INSERT INTO storage_changes (tenant_id, bytes)
    VALUES (given.tenant_id, version_bytes(given.payload, given.spec));
    IF given.idempotency_key IS NOT NULL THEN
        INSERT INTO idempotency_keys (tenant_id, key, status, request, headers, body)
        VALUES (given.tenant_id, given.idempotency_key, 201, decode(given.request, 'hex'), '{}',
                convert_to(given.answer, 'UTF8'));
        INSERT INTO storage_changes (tenant_id, answer_bytes)
        VALUES (given.tenant_id, answer_bytes(convert_to(given.answer, 'UTF8')));
    END IF;
    RETURN 'created';
END $$;

SELECT set_config('search_path', quote_ident(current_schema()), true);
