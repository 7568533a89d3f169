-- Submitting from a transaction of the application, and what apps have declared.

-- The functions below run with the rights of the schema's owner, and find its tables whatever the search path of a
-- session is. pg_temp comes last: else a temporary table of a caller would be taken for one of these.
SELECT set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);

-- A public id: a prefix, and the number in 13 digits of Crockford's base32.
CREATE FUNCTION base32_of(number bigint) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path FROM CURRENT
    AS $$
    SELECT string_agg(substr('0123456789abcdefghjkmnpqrstvwxyz', ((number >> (5 * digit)) & 31)::integer + 1, 1), ''
                      ORDER BY digit DESC)
      FROM generate_series(0, 12) AS digit
$$;

-- Writes one job that was drafted outside, with its version and its timer, in the transaction of the caller. The document
-- has the columns of these rows; payload and spec are texts of JSON. `queue_id` and `rule_id` are there if a look for
-- them was in vain and they were committed since: the snapshot of the transaction may be older. Returns `created`,
-- `name_taken`, `incomplete` (a rule, a queue or a lane is missing, and nothing was written), or `other_database`.
CREATE FUNCTION submit_prepared(document jsonb) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET jit = off
    AS $$
DECLARE
    given record;
    rule  bigint;
    queue bigint;
BEGIN
    SELECT * INTO given
      FROM jsonb_to_record(document)
           AS doc (tenant_id bigint, tenant_created_at timestamptz, now_at timestamptz, job_id bigint, name text,
                   payload text, spec text, gate_id bigint, queue text, labels jsonb, digest text, timeout integer,
                   timezone text, handler text, key_template text, retry json, fire_at timestamptz,
                   due_at timestamptz, priority smallint, gate_limit integer, has_alerts boolean, rule_id bigint,
                   queue_id integer, trace_parent text);
    IF NOT EXISTS (SELECT FROM tenants
                    WHERE tenants.tenant_id = given.tenant_id AND tenants.created_at = given.tenant_created_at) THEN
        RETURN 'other_database';
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
    RETURN 'created';
END $$;

-- Refuses a value of `submit`.
CREATE FUNCTION refuse_submission(field text, reason text) RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE EXCEPTION '%: %', field, reason USING ERRCODE = 'invalid_parameter_value';
END $$;

-- A number among the fields of a submission, or its default.
CREATE FUNCTION submitted_number(fields jsonb, field text, least_value numeric, most_value numeric, is_whole boolean,
                                 default_value numeric) RETURNS numeric
    LANGUAGE plpgsql SET search_path FROM CURRENT
    AS $$
DECLARE
    given numeric;
BEGIN
    IF coalesce(jsonb_typeof(fields -> field), 'null') = 'null' THEN
        RETURN default_value;
    ELSIF jsonb_typeof(fields -> field) <> 'number' THEN
        PERFORM refuse_submission(field, 'must be a number');
    END IF;
    given := trim_scale((fields ->> field)::numeric);
    IF is_whole AND given <> trunc(given) THEN
        PERFORM refuse_submission(field, 'must be a whole number');
    ELSIF given NOT BETWEEN least_value AND most_value THEN
        PERFORM refuse_submission(field, format('must be from %s to %s', least_value, most_value));
    END IF;
    RETURN given;
END $$;

-- A word among the fields of a submission, or its default.
CREATE FUNCTION submitted_word(fields jsonb, field text, words text[], default_word text) RETURNS text
    LANGUAGE plpgsql SET search_path FROM CURRENT
    AS $$
BEGIN
    IF coalesce(fields ->> field, default_word) <> ALL (words) THEN
        PERFORM refuse_submission(field, 'must be one of ' || array_to_string(words, ', '));
    END IF;
    RETURN coalesce(fields ->> field, default_word);
END $$;

-- Refuses labels that no job may have.
CREATE FUNCTION check_submitted_labels(labels jsonb) RETURNS void
    LANGUAGE plpgsql SET search_path FROM CURRENT
    AS $$
DECLARE
    label record;
BEGIN
    IF jsonb_typeof(labels) <> 'object' THEN
        PERFORM refuse_submission('labels', 'must be an object');
    END IF;
    IF (SELECT count(*) FROM jsonb_object_keys(labels)) > 64 THEN
        PERFORM refuse_submission('labels', 'has at most 64 members');
    END IF;
    FOR label IN SELECT * FROM jsonb_each(labels) LOOP
        IF label.key !~ '^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$' THEN
            PERFORM refuse_submission('labels', format('%L must be 1 to 63 letters, digits, ".", "_", "/" and "-",'
                                                       ' the first a letter or digit', label.key));
        ELSIF jsonb_typeof(label.value) <> 'string' OR length(label.value #>> '{}') > 255 THEN
            PERFORM refuse_submission('labels', format('%L must be a string of at most 255 characters', label.key));
        END IF;
    END LOOP;
END $$;

-- Refuses a payload that a handler could not read.
CREATE FUNCTION check_submitted_payload(payload jsonb) RETURNS void
    LANGUAGE plpgsql SET search_path FROM CURRENT
    AS $$
BEGIN
    IF octet_length(payload::text) > 65536 THEN
        PERFORM refuse_submission('payload', format('has at most 65536 bytes, not %s', octet_length(payload::text)));
    ELSIF payload @? '$.**{64}' THEN
        PERFORM refuse_submission('payload', 'is nested deeper than 64 levels');
    ELSIF payload::text ~ '\d{250}'
          AND payload @? '$.** ? (@.type() == "number" && (@ >= 1e1000 || @ <= -1e1000))' THEN
        PERFORM refuse_submission('payload', 'has a number of more than 1000 digits');
    END IF;
END $$;

-- The rule of one-offs without policies of their own, the queue and its lanes, if they are not there. All lanes of a
-- priority at once, in one order, so that two transactions that need them do not wait for each other.
CREATE FUNCTION add_submission_references(tenant_id bigint, queue text, priority smallint) RETURNS void
    LANGUAGE plpgsql SET search_path FROM CURRENT
    AS $$
#variable_conflict use_column
DECLARE
    of_tenant bigint   := add_submission_references.tenant_id;
    of_queue  text     := add_submission_references.queue;
    wanted    smallint := add_submission_references.priority;
BEGIN
    INSERT INTO rules (digest, canonical)
    VALUES ('\xf1897e2e280971100d04b51a9dfa1961',
            '{"concurrent_policy":"SKIP","dst_gap":"catch_up","dst_overlap":"first","end_us":null,'
            '"grace_us":3600000000,"jitter_us":0,"max_concurrent":1,"max_missed":1,"missed_window":"RUN_ONCE",'
            '"spec":{"kind":"one_off"},"start_us":null,"timezone":"UTC"}')
        ON CONFLICT DO NOTHING;
    UPDATE rules SET unused_at = NULL WHERE digest = '\xf1897e2e280971100d04b51a9dfa1961' AND unused_at IS NOT NULL;
    IF NOT EXISTS (SELECT FROM queues WHERE tenant_id = of_tenant AND name = of_queue)
       AND (SELECT count(*) FROM queues WHERE tenant_id = of_tenant) >= 500 THEN
        RAISE EXCEPTION 'queue: the tenant has 500 queues, as many as it may have'
              USING ERRCODE = 'configuration_limit_exceeded';
    END IF;
    INSERT INTO queues (tenant_id, name) VALUES (of_tenant, of_queue) ON CONFLICT DO NOTHING;
    UPDATE queues SET unused_at = NULL WHERE tenant_id = of_tenant AND name = of_queue AND unused_at IS NOT NULL;
    INSERT INTO lanes (lane_id, queue_id, partition, priority)
    SELECT lane_id_of(found.queue_id, part, wanted), found.queue_id, part, wanted
      FROM queues found
     CROSS JOIN generate_series(0, 255) AS part
     WHERE found.tenant_id = of_tenant AND found.name = of_queue
     ORDER BY 1
        ON CONFLICT DO NOTHING;
END $$;

-- Runs a handler once, for any program that can call a function: now, after a delay, or at an instant. The job exists if
-- the caller's transaction commits. `fields` may have max_retries, retry_backoff, retry_delay_seconds,
-- retry_max_delay_seconds, timeout_seconds, priority, labels and retain_seconds. Wrong values are refused with the
-- SQLSTATE 22023, a name that is taken with 23505.
CREATE FUNCTION submit(
    handler text, payload jsonb DEFAULT NULL, queue text DEFAULT 'default', delay interval DEFAULT NULL,
    at timestamptz DEFAULT NULL, name text DEFAULT NULL, fields jsonb DEFAULT '{}', tenant text DEFAULT 'default',
    OUT job_id text, OUT run_id text, OUT fire_at timestamptz
)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT
    AS $$
#variable_conflict use_column
DECLARE
    now_at      timestamptz := clock_at();
    owner       record;
    number      bigint;
    document    jsonb;
    unknown     text;
    result      text;
    retries     numeric;
    backoff     text;
    wait        numeric;
    longest     numeric;
    timeout     numeric;
    retain      numeric;
    priority    text;
    is_queue    text := '^[a-z0-9][a-z0-9._-]{0,62}$';
BEGIN
    SELECT tenants.tenant_id, tenants.created_at, tenants.storage_quota_bytes INTO owner
      FROM tenants WHERE tenants.name = submit.tenant;
    IF NOT FOUND THEN
        PERFORM refuse_submission('tenant', format('there is none named %L', submit.tenant));
    END IF;
    IF submit.handler IS NULL OR submit.handler !~ '^[^\s[:cntrl:]]{1,255}$' THEN
        PERFORM refuse_submission('handler', 'must be 1 to 255 visible characters');
    ELSIF submit.queue IS NULL OR submit.queue !~ is_queue THEN
        PERFORM refuse_submission('queue', 'must be 1 to 63 characters of a-z, 0-9, ".", "_" and "-", the first a letter'
                                           ' or digit');
    ELSIF submit.queue IN ('http', 'kafka', 'rabbitmq', 'redis_stream', 'nats', 'sqs') THEN
        PERFORM refuse_submission('queue', format('%L is reserved for other targets than workers', submit.queue));
    ELSIF submit.name !~ '^[^\s[:cntrl:]]([^[:cntrl:]]*[^\s[:cntrl:]])?$' OR length(submit.name) > 255 THEN
        PERFORM refuse_submission('name', 'must be 1 to 255 characters without control characters, the first and the last'
                                          ' no white space');
    ELSIF submit.delay IS NOT NULL AND submit.at IS NOT NULL THEN
        PERFORM refuse_submission('at', 'and delay exclude each other');
    ELSIF submit.delay < interval '0' THEN
        PERFORM refuse_submission('delay', 'must not be negative');
    ELSIF submit.at < now_at - interval '1 hour' THEN
        PERFORM refuse_submission('at', 'is past, by more than its grace of an hour');
    ELSIF coalesce(submit.at, now_at + submit.delay) >= '9990-01-01 00:00:00+00' THEN
        PERFORM refuse_submission(CASE WHEN submit.at IS NULL THEN 'delay' ELSE 'at' END, 'leads beyond the year 9989');
    ELSIF jsonb_typeof(submit.fields) IS DISTINCT FROM 'object' THEN
        PERFORM refuse_submission('fields', 'must be an object');
    END IF;
    SELECT key INTO unknown
      FROM jsonb_object_keys(submit.fields) AS key
     WHERE key NOT IN ('max_retries', 'retry_backoff', 'retry_delay_seconds', 'retry_max_delay_seconds',
                       'timeout_seconds', 'priority', 'labels', 'retain_seconds')
     LIMIT 1;
    IF FOUND THEN
        PERFORM refuse_submission(unknown, 'is none of the fields that evertick.submit takes: max_retries, retry_backoff,'
                                           ' retry_delay_seconds, retry_max_delay_seconds, timeout_seconds, priority,'
                                           ' labels, retain_seconds');
    END IF;
    retries := submitted_number(submit.fields, 'max_retries', 0, 1000, true, 3);
    backoff := submitted_word(submit.fields, 'retry_backoff', ARRAY['fixed', 'linear', 'exponential'], 'exponential');
    wait := submitted_number(submit.fields, 'retry_delay_seconds', 0, 31622400, false, 10);
    longest := submitted_number(submit.fields, 'retry_max_delay_seconds', 0, 31622400, false, greatest(3600, wait));
    timeout := submitted_number(submit.fields, 'timeout_seconds', 1, 86400, true, 300);
    retain := submitted_number(submit.fields, 'retain_seconds', 0, 316224000, true, 86400);
    priority := submitted_word(submit.fields, 'priority', ARRAY['high', 'normal', 'low'], 'normal');
    IF longest < wait THEN
        PERFORM refuse_submission('retry_max_delay_seconds', 'must be at least retry_delay_seconds');
    END IF;
    PERFORM check_submitted_labels(coalesce(nullif(submit.fields -> 'labels', 'null'), '{}'));
    IF submit.payload = 'null' THEN
        submit.payload := NULL;
    END IF;
    PERFORM check_submitted_payload(submit.payload);
    IF (SELECT bytes FROM storage_sums WHERE storage_sums.tenant_id = owner.tenant_id) > owner.storage_quota_bytes THEN
        RAISE EXCEPTION 'the tenant stores as much as its quota storage_quota_bytes allows'
              USING ERRCODE = 'configuration_limit_exceeded';
    END IF;

    number := nextval('job_numbers');
    number := (number << 8) | (number & 255);
    submit.fire_at := coalesce(submit.at, now_at + submit.delay, now_at);
    submit.job_id := 'job_' || base32_of(number);
    submit.name := coalesce(submit.name, left(submit.handler, 200) || '-' || base32_of(number));
    submit.run_id := 'run_' || base32_of(number) || base32_of(microseconds(submit.fire_at));
    document := jsonb_build_object(
        'tenant_id', owner.tenant_id, 'tenant_created_at', owner.created_at, 'now_at', now_at, 'job_id', number,
        'name', submit.name, 'payload', submit.payload::text, 'queue', submit.queue,
        'labels', coalesce(nullif(submit.fields -> 'labels', 'null'), '{}'),
        'digest', 'f1897e2e280971100d04b51a9dfa1961', 'timeout', timeout, 'timezone', 'UTC', 'handler', submit.handler,
        'retry', jsonb_build_object('max_retries', retries, 'backoff', backoff, 'delay_seconds', wait,
                                    'max_delay_seconds', longest),
        'fire_at', submit.fire_at, 'due_at', submit.fire_at, 'has_alerts', false,
        'priority', CASE priority WHEN 'high' THEN 0 WHEN 'low' THEN 2 ELSE 1 END,
        'spec', jsonb_strip_nulls(jsonb_build_object(
            'schedule', CASE WHEN submit.at IS NULL AND submit.delay IS NULL THEN 'now'
                             ELSE to_char(submit.fire_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') END,
            'target', jsonb_strip_nulls(jsonb_build_object(
                'type', 'worker', 'queue', nullif(submit.queue, 'default'), 'handler', submit.handler)),
            'name', submit.name, 'max_retries', nullif(retries, 3),
            'retry_backoff', nullif(backoff, 'exponential'), 'retry_delay_seconds', nullif(wait, 10),
            'retry_max_delay_seconds', nullif(longest, 3600), 'timeout_seconds', nullif(timeout, 300),
            'priority', nullif(priority, 'normal'), 'retain_seconds', nullif(retain, 86400),
            'labels', nullif(nullif(submit.fields -> 'labels', 'null'), '{}')))::text);
    result := submit_prepared(document);
    IF result = 'incomplete' THEN
        PERFORM add_submission_references(owner.tenant_id, submit.queue, (document ->> 'priority')::smallint);
        result := submit_prepared(document);
    END IF;
    IF result = 'name_taken' THEN
        RAISE EXCEPTION 'name: % is taken by another job', quote_literal(submit.name) USING ERRCODE = 'unique_violation';
    ELSIF result <> 'created' THEN
        RAISE EXCEPTION 'the job could not be written: %', result;
    END IF;
END $$;

-- Whoever may call these may submit for every tenant.
REVOKE ALL ON FUNCTION submit_prepared, submit FROM PUBLIC;

SELECT set_config('search_path', quote_ident(current_schema()), true);

-- The versions of apps, by the digest of the jobs that a version declares: which one came first tells an old process
-- that starts again from a new version.
CREATE TABLE app_versions (
    tenant_id  bigint      NOT NULL,
    app        text        NOT NULL,
    digest     bytea       NOT NULL,
    first_at   timestamptz NOT NULL DEFAULT clock_at(),
    started_at timestamptz NOT NULL DEFAULT clock_at(),
    PRIMARY KEY (tenant_id, app, digest)
);

-- The jobs that apps declare in their code. `digest` is of the declaration: a one-off is created once for each.
-- `version_at`: when the newest version that declares it came first.
CREATE TABLE declared_jobs (
    tenant_id   bigint      NOT NULL,
    app         text        NOT NULL,
    name        text        NOT NULL,
    version_at  timestamptz NOT NULL,
    declared_at timestamptz NOT NULL DEFAULT clock_at(),
    digest      bytea       NOT NULL,
    PRIMARY KEY (tenant_id, app, name)
);
