-- The schema that all migrations together make. Generated: run `make schema` after a change of the migrations.

CREATE SCHEMA evertick;

CREATE TYPE evertick.archive_state AS ENUM (
    'exporting',
    'verified',
    'dropped'
);

CREATE TYPE evertick.circuit_state AS ENUM (
    'closed',
    'open',
    'half_open'
);

CREATE TYPE evertick.event_type AS ENUM (
    'run.finished',
    'gap.recorded',
    'gap.removed',
    'job.created',
    'job.edited',
    'job.paused',
    'job.resumed',
    'job.finished',
    'job.reopened',
    'job.deleted',
    'audit.recorded'
);

CREATE TYPE evertick.gap_reason AS ENUM (
    'missed',
    'paused',
    'overlap',
    'calendar',
    'dst'
);

CREATE TYPE evertick.job_status AS ENUM (
    'active',
    'paused',
    'deleted'
);

CREATE TYPE evertick.key_role AS ENUM (
    'viewer',
    'operator',
    'editor',
    'admin',
    'worker',
    'app'
);

CREATE TYPE evertick.outcome_result AS ENUM (
    'success',
    'failed',
    'timed_out',
    'lost',
    'cancelled',
    'deferred'
);

CREATE TYPE evertick.replay_status AS ENUM (
    'running',
    'done',
    'cancelled'
);

CREATE TYPE evertick.run_reason AS ENUM (
    'tick',
    'late',
    'catch_up',
    'manual',
    'replay'
);

CREATE TYPE evertick.smear_status AS ENUM (
    'running',
    'done',
    'undoing',
    'undone'
);

CREATE TYPE evertick.smeared_state AS ENUM (
    'waiting',
    'changed',
    'skipped',
    'undone',
    'kept'
);

CREATE TYPE evertick.timer_kind AS ENUM (
    'tick',
    'queued',
    'retry',
    'manual',
    'replay'
);

CREATE FUNCTION evertick.add_day(day date) RETURNS boolean
    LANGUAGE plpgsql
    AS $$
DECLARE
    first_us bigint := microseconds(day::timestamp AT TIME ZONE 'UTC');
    ledger   text;
    part     text;
BEGIN
    IF to_regclass('outcomes_' || to_char(day, 'YYYYMMDD')) IS NOT NULL THEN
        RETURN false;
    END IF;
    FOREACH ledger IN ARRAY ARRAY['attempts', 'outcomes'] LOOP
        part := ledger || '_' || to_char(day, 'YYYYMMDD');
        EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING ALL)', part, ledger);
        EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%s) TO (%s)',
                       ledger, part, first_us, first_us + 86400000000);
    END LOOP;
    RETURN true;
END $$;

CREATE FUNCTION evertick.add_event_day(day date) RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE
    first_us bigint := microseconds(day::timestamp AT TIME ZONE 'UTC');
    part     text   := 'events_' || to_char(day, 'YYYYMMDD');
BEGIN
    IF to_regclass(part) IS NULL THEN
        EXECUTE format('CREATE TABLE %I (LIKE events INCLUDING ALL)', part);
        EXECUTE format('ALTER TABLE events ATTACH PARTITION %I FOR VALUES FROM (%s) TO (%s)',
                       part, first_us, first_us + 86400000000);
    END IF;
END $$;

CREATE FUNCTION evertick.add_submission_references(tenant_id bigint, queue text, priority smallint) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'evertick', 'pg_temp'
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

CREATE FUNCTION evertick.answer_bytes(body bytea) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$SELECT 500 + octet_length(body)::bigint$$;

CREATE FUNCTION evertick.audit_bytes() RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$SELECT 500::bigint$$;

CREATE FUNCTION evertick.base32_of(number bigint) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    SET search_path TO 'evertick', 'pg_temp'
    AS $$
    SELECT string_agg(substr('0123456789abcdefghjkmnpqrstvwxyz', ((number >> (5 * digit)) & 31)::integer + 1, 1), ''
                      ORDER BY digit DESC)
      FROM generate_series(0, 12) AS digit
$$;

CREATE FUNCTION evertick.check_submitted_labels(labels jsonb) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'evertick', 'pg_temp'
    AS $_$
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
END $_$;

CREATE FUNCTION evertick.check_submitted_payload(payload jsonb) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'evertick', 'pg_temp'
    AS $_$
BEGIN
    IF octet_length(payload::text) > 65536 THEN
        PERFORM refuse_submission('payload', format('has at most 65536 bytes, not %s', octet_length(payload::text)));
    ELSIF payload @? '$.**{64}' THEN
        PERFORM refuse_submission('payload', 'is nested deeper than 64 levels');
    ELSIF payload::text ~ '\d{250}'
          AND payload @? '$.** ? (@.type() == "number" && (@ >= 1e1000 || @ <= -1e1000))' THEN
        PERFORM refuse_submission('payload', 'has a number of more than 1000 digits');
    END IF;
END $_$;

CREATE FUNCTION evertick.clock_at() RETURNS timestamp with time zone
    LANGUAGE sql PARALLEL SAFE
    AS $$SELECT clock_timestamp()$$;

CREATE FUNCTION evertick.connection_bytes(settings text, secrets bytea) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$SELECT 500 + octet_length(settings)::bigint + coalesce(octet_length(secrets), 0)$$;

CREATE FUNCTION evertick.drop_archived_day(wanted date, wanted_part integer, wanted_token text) RETURNS text
    LANGUAGE plpgsql
    AS $_$
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
END $_$;

CREATE FUNCTION evertick.drop_day(day date) RETURNS void
    LANGUAGE plpgsql
    AS $_$
BEGIN
    -- Locked: a process that turns the archive on waits, or is seen.
    IF (SELECT is_on FROM archive_marks FOR SHARE) THEN
        RETURN;
    END IF;
    EXECUTE format('DROP TABLE IF EXISTS attempts_%1$s, outcomes_%1$s', to_char(day, 'YYYYMMDD'));
END $_$;

CREATE FUNCTION evertick.drop_event_day(day date) RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    EXECUTE format('DROP TABLE IF EXISTS events_%s', to_char(day, 'YYYYMMDD'));
END $$;

CREATE FUNCTION evertick.excerpt_of(excerpt text, output text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN COALESCE(excerpt, "left"(output, 1024));

CREATE FUNCTION evertick.failures_of_job(of_job bigint, most_attempts integer) RETURNS TABLE(success_at timestamp with time zone, failures integer)
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$
    SELECT succeeded.finished_at, failed.runs
      FROM (VALUES (true)) AS always (is_one)
      LEFT JOIN LATERAL (
               SELECT ended.finished_at, recent.fire_at, recent.seq
                 FROM (SELECT attempts.fire_at, attempts.lane_id, attempts.seq
                         FROM attempts
                        WHERE attempts.job_id = of_job
                        ORDER BY attempts.fire_at DESC, attempts.seq DESC
                        LIMIT most_attempts) AS recent
                CROSS JOIN LATERAL (
                          SELECT outcomes.finished_at
                            FROM outcomes
                           WHERE outcomes.lane_id = recent.lane_id AND outcomes.seq = recent.seq
                             AND outcomes.result = 'success'
                           LIMIT 1
                      ) AS ended
                ORDER BY recent.fire_at DESC, recent.seq DESC
                LIMIT 1
           ) AS succeeded ON true
     CROSS JOIN LATERAL (
               SELECT count(*)::integer AS runs
                 FROM (SELECT attempts.lane_id, attempts.seq
                         FROM attempts
                        WHERE attempts.job_id = of_job
                          AND (attempts.fire_at, attempts.seq)
                              > (coalesce(succeeded.fire_at, '-infinity'), coalesce(succeeded.seq, 0))
                        ORDER BY attempts.fire_at DESC, attempts.seq DESC
                        LIMIT most_attempts) AS recent
                CROSS JOIN LATERAL (
                          SELECT FROM outcomes
                           WHERE outcomes.lane_id = recent.lane_id AND outcomes.seq = recent.seq
                             AND outcomes.is_final AND outcomes.result IN ('failed', 'timed_out', 'lost')
                           LIMIT 1
                      ) AS ended
           ) AS failed
$$;

CREATE FUNCTION evertick.gap_digest(job_id bigint, first_at timestamp with time zone, last_at timestamp with time zone, ticks bigint, spec_version integer, reason evertick.gap_reason) RETURNS bigint
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$SELECT row_digest(concat_ws(chr(31), job_id, microseconds(first_at), microseconds(last_at), ticks, spec_version,
                                     reason))$$;

CREATE FUNCTION evertick.is_streamed(tenant_id bigint) RETURNS boolean
    LANGUAGE sql STABLE
    AS $$
    SELECT EXISTS (SELECT FROM event_streams stream WHERE stream.tenant_id = is_streamed.tenant_id OR stream.is_of_all)
$$;

CREATE FUNCTION evertick.lane_id_of(queue_id bigint, partition bigint, priority bigint, is_gated boolean DEFAULT false) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$SELECT (queue_id << 11) | (partition << 3) | (CASE WHEN is_gated THEN 4 ELSE 0 END) | priority$$;

CREATE FUNCTION evertick.lane_is_gated(lane_id bigint) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$SELECT lane_id & 4 <> 0$$;

CREATE FUNCTION evertick.lane_partition(lane_id bigint) RETURNS smallint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$SELECT ((lane_id >> 3) & 255)::smallint$$;

CREATE FUNCTION evertick.lane_priority(lane_id bigint) RETURNS smallint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$SELECT (lane_id & 3)::smallint$$;

CREATE FUNCTION evertick.lane_queue(lane_id bigint) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$SELECT lane_id >> 11$$;

CREATE FUNCTION evertick.lease_of_attempt(of_lane bigint, of_seq bigint) RETURNS TABLE(is_leased boolean)
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

CREATE FUNCTION evertick.lock_rows(of_table regclass, places tid[], strength text DEFAULT 'UPDATE'::text) RETURNS SETOF tid
    LANGUAGE plpgsql ROWS 100
    AS $_$
BEGIN
    IF cardinality(places) > 0 THEN
        RETURN QUERY EXECUTE format('SELECT ctid FROM %s WHERE ctid = ANY($1) FOR %s SKIP LOCKED', of_table, strength)
                       USING places;
    END IF;
END $_$;

CREATE FUNCTION evertick.microseconds(at timestamp with time zone) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$SELECT (extract(epoch FROM at) * 1000000)::bigint$$;

CREATE FUNCTION evertick.one_off_digest() RETURNS bytea
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN '\xf1897e2e280971100d04b51a9dfa1961'::bytea;

CREATE FUNCTION evertick.ranges_of(lane_ids bigint[], places tid[], from_seqs bigint[], mosts integer[]) RETURNS TABLE(lane_id bigint, place tid, from_seq bigint, first_seq bigint, last_seq bigint)
    LANGUAGE plpgsql STABLE ROWS 64
    AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT lane.lane_id, lane.place, lane.from_seq, range.first_seq, range.last_seq
      FROM unnest(lane_ids, places, from_seqs, mosts) AS lane (lane_id, place, from_seq, most)
     CROSS JOIN LATERAL (
               SELECT min(next.seq) AS first_seq, max(next.seq) AS last_seq
                 FROM (SELECT attempts.seq
                         FROM attempts
                        WHERE attempts.lane_id = lane.lane_id AND attempts.seq >= lane.from_seq
                        ORDER BY attempts.seq
                        LIMIT lane.most) AS next
           ) AS range;
END $$;

CREATE FUNCTION evertick.refuse_submission(field text, reason text) RETURNS void
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE EXCEPTION '%: %', field, reason USING ERRCODE = 'invalid_parameter_value';
END $$;

CREATE FUNCTION evertick.replay_bytes() RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$SELECT 500::bigint$$;

CREATE FUNCTION evertick.requested_bytes(payload text) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$SELECT 250 + coalesce(octet_length(payload), 0)::bigint$$;

CREATE FUNCTION evertick.row_digest(line text) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$SELECT ('x' || left(md5(line), 15))::bit(60)::bigint$$;

CREATE FUNCTION evertick.running_since(seqs bigint[], since timestamp with time zone[], worker text, leased_at timestamp with time zone, seq bigint) RETURNS timestamp with time zone
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN COALESCE((since)[array_position(seqs, seq)], CASE WHEN (strpos(worker, '/'::text) > 0) THEN leased_at ELSE NULL::timestamp with time zone END);

CREATE FUNCTION evertick.server_identity(OUT system_identifier bigint, OUT timeline bigint) RETURNS record
    LANGUAGE plpgsql
    AS $$
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

CREATE FUNCTION evertick.stream_audit_log() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF EXISTS (SELECT FROM event_streams) THEN
        INSERT INTO new_events (type, tenant_id, entry_id)
        SELECT 'audit.recorded', tenant_id, entry_id FROM added WHERE is_streamed(tenant_id) ORDER BY entry_id;
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION evertick.stream_changed_jobs() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF EXISTS (SELECT FROM event_streams) THEN
        INSERT INTO new_events (type, tenant_id, job_id, spec_version, detail)
        SELECT change.type::event_type, changed.tenant_id, changed.job_id, changed.spec_version, changed.pause_reason
          FROM changed
          JOIN former ON former.job_id = changed.job_id
         CROSS JOIN LATERAL (
                   SELECT 'job.edited' AS type WHERE changed.spec_version <> former.spec_version
                    UNION ALL
                   SELECT CASE changed.status
                              WHEN 'paused' THEN 'job.paused' WHEN 'deleted' THEN 'job.deleted' ELSE 'job.resumed'
                          END
                    WHERE changed.status <> former.status
               ) AS change
         WHERE is_streamed(changed.tenant_id);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION evertick.stream_finished_jobs() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF EXISTS (SELECT FROM event_streams) THEN
        INSERT INTO new_events (type, tenant_id, job_id, spec_version)
        SELECT CASE TG_OP WHEN 'INSERT' THEN 'job.finished' ELSE 'job.reopened' END::event_type, job.tenant_id, job.job_id,
               job.spec_version
          FROM changed
          JOIN jobs job ON job.job_id = changed.job_id
         WHERE is_streamed(job.tenant_id) AND job.status <> 'deleted';
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION evertick.stream_gaps() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF EXISTS (SELECT FROM event_streams) THEN
        INSERT INTO new_events (type, tenant_id, job_id, fire_at, last_at, ticks, spec_version, detail)
        SELECT 'gap.recorded', job.tenant_id, gap.job_id, gap.first_at, gap.last_at, gap.ticks, gap.spec_version,
               gap.reason::text
          FROM added gap
          JOIN jobs job ON job.job_id = gap.job_id
         WHERE is_streamed(job.tenant_id);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION evertick.stream_jobs() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF EXISTS (SELECT FROM event_streams) THEN
        INSERT INTO new_events (type, tenant_id, job_id, spec_version)
        SELECT 'job.created', tenant_id, job_id, spec_version FROM added WHERE is_streamed(tenant_id) ORDER BY job_id;
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION evertick.stream_outcomes() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF EXISTS (SELECT FROM event_streams) THEN
        INSERT INTO new_events (type, tenant_id, lane_id, seq)
        SELECT 'run.finished', queue.tenant_id, added.lane_id, added.seq
          FROM added
          JOIN queues queue ON queue.queue_id = lane_queue(added.lane_id)::integer
         WHERE added.is_final AND is_streamed(queue.tenant_id);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION evertick.stream_removed_gaps() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF EXISTS (SELECT FROM event_streams) THEN
        INSERT INTO new_events (type, tenant_id, job_id, fire_at, last_at, ticks, spec_version, detail)
        SELECT 'gap.removed', job.tenant_id, gap.job_id, gap.first_at, gap.last_at, gap.ticks, gap.spec_version,
               gap.reason::text
          FROM removed gap
          JOIN jobs job ON job.job_id = gap.job_id
         WHERE is_streamed(job.tenant_id) AND gap.last_at > clock_at() - interval '1 hour';
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION evertick.stream_withdrawals() RETURNS trigger
    LANGUAGE plpgsql
    AS $$
BEGIN
    IF EXISTS (SELECT FROM event_streams) THEN
        INSERT INTO new_events (type, tenant_id, job_id, fire_at, spec_version)
        SELECT 'run.finished', job.tenant_id, added.job_id, added.fire_at, added.spec_version
          FROM added
          JOIN jobs job ON job.job_id = added.job_id
         WHERE is_streamed(job.tenant_id);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION evertick.submit(handler text, payload jsonb DEFAULT NULL::jsonb, queue text DEFAULT 'default'::text, delay interval DEFAULT NULL::interval, at timestamp with time zone DEFAULT NULL::timestamp with time zone, name text DEFAULT NULL::text, fields jsonb DEFAULT '{}'::jsonb, tenant text DEFAULT 'default'::text, OUT job_id text, OUT run_id text, OUT fire_at timestamp with time zone) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'evertick', 'pg_temp'
    AS $_$
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
END $_$;

CREATE FUNCTION evertick.submit_prepared(document jsonb) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'evertick', 'pg_temp'
    SET plan_cache_mode TO 'force_generic_plan'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
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

CREATE FUNCTION evertick.submitted_number(fields jsonb, field text, least_value numeric, most_value numeric, is_whole boolean, default_value numeric) RETURNS numeric
    LANGUAGE plpgsql
    SET search_path TO 'evertick', 'pg_temp'
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

CREATE FUNCTION evertick.submitted_word(fields jsonb, field text, words text[], default_word text) RETURNS text
    LANGUAGE plpgsql
    SET search_path TO 'evertick', 'pg_temp'
    AS $$
BEGIN
    IF coalesce(fields ->> field, default_word) <> ALL (words) THEN
        PERFORM refuse_submission(field, 'must be one of ' || array_to_string(words, ', '));
    END IF;
    RETURN coalesce(fields ->> field, default_word);
END $$;

CREATE FUNCTION evertick.version_bytes(payload text, spec text) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$SELECT 500 + coalesce(octet_length(payload), 0)::bigint + octet_length(spec)$$;

CREATE FUNCTION evertick.withdrawal_digest(job_id bigint, fire_at timestamp with time zone, withdrawn_at timestamp with time zone) RETURNS bigint
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$SELECT row_digest(concat_ws(chr(31), job_id, microseconds(fire_at), microseconds(withdrawn_at)))$$;

CREATE TABLE evertick.alert_looks (
    look text NOT NULL,
    after_id bigint DEFAULT 0 NOT NULL,
    began_at timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
    next_at timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL
)
WITH (fillfactor='50');

CREATE TABLE evertick.alert_targets (
    tenant_id bigint NOT NULL,
    job_id bigint NOT NULL,
    conditions text[] NOT NULL
);

CREATE TABLE evertick.alerts (
    alert_id bigint NOT NULL,
    tenant_id bigint NOT NULL,
    job_id bigint,
    opened_at timestamp with time zone NOT NULL,
    closed_at timestamp with time zone,
    notice_at timestamp with time zone,
    notice_job_id bigint,
    openings integer NOT NULL,
    is_open boolean NOT NULL,
    is_told_open boolean DEFAULT false NOT NULL,
    untold_tenant_id bigint GENERATED ALWAYS AS (
CASE
    WHEN (is_open <> is_told_open) THEN tenant_id
    ELSE NULL::bigint
END) STORED,
    condition text NOT NULL,
    subject text NOT NULL,
    detail text NOT NULL,
    close_reason text
);

CREATE TABLE evertick.api_keys (
    key_id bigint NOT NULL,
    tenant_id bigint NOT NULL,
    created_at timestamp with time zone DEFAULT evertick.clock_at() NOT NULL,
    expires_at timestamp with time zone,
    revoked_at timestamp with time zone,
    last_used_at timestamp with time zone,
    replaced_at timestamp with time zone,
    role evertick.key_role NOT NULL,
    digest bytea NOT NULL,
    prefix text NOT NULL,
    name text NOT NULL
);

ALTER TABLE evertick.api_keys ALTER COLUMN key_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME evertick.api_keys_key_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE evertick.app_versions (
    tenant_id bigint NOT NULL,
    app text NOT NULL,
    digest bytea NOT NULL,
    first_at timestamp with time zone DEFAULT evertick.clock_at() NOT NULL,
    started_at timestamp with time zone DEFAULT evertick.clock_at() NOT NULL,
    names text[]
);

CREATE TABLE evertick.archive_files (
    path text NOT NULL,
    day date NOT NULL,
    part integer NOT NULL,
    tenant_id bigint NOT NULL,
    noted_at timestamp with time zone NOT NULL,
    kind text NOT NULL,
    token text NOT NULL,
    is_checked boolean DEFAULT false NOT NULL,
    is_released boolean DEFAULT false NOT NULL,
    rows bigint DEFAULT 0 NOT NULL,
    outcomes bigint DEFAULT 0 NOT NULL,
    bytes bigint DEFAULT 0 NOT NULL,
    digest numeric DEFAULT 0 NOT NULL,
    sha256 text DEFAULT ''::text NOT NULL,
    first_seq bigint DEFAULT 0 NOT NULL,
    last_seq bigint DEFAULT 0 NOT NULL,
    first_at timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
    last_at timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL
);

CREATE TABLE evertick.archive_marks (
    is_only boolean DEFAULT true NOT NULL,
    is_on boolean DEFAULT false NOT NULL,
    url text,
    failed_at timestamp with time zone,
    error text,
    CONSTRAINT archive_marks_is_only_check CHECK (is_only)
);

CREATE TABLE evertick.archived_days (
    day date NOT NULL,
    part integer DEFAULT 0 NOT NULL,
    state evertick.archive_state DEFAULT 'exporting'::evertick.archive_state NOT NULL,
    token text NOT NULL,
    claimed_at timestamp with time zone NOT NULL,
    verified_at timestamp with time zone,
    dropped_at timestamp with time zone,
    attempts bigint DEFAULT 0 NOT NULL,
    outcomes bigint DEFAULT 0 NOT NULL,
    gaps bigint DEFAULT 0 NOT NULL,
    withdrawals bigint DEFAULT 0 NOT NULL,
    gaps_digest numeric DEFAULT 0 NOT NULL,
    withdrawals_digest numeric DEFAULT 0 NOT NULL
);

CREATE TABLE evertick.attempts (
    lane_id bigint NOT NULL,
    seq bigint NOT NULL,
    job_id bigint NOT NULL,
    fire_at timestamp with time zone NOT NULL,
    due_at timestamp with time zone NOT NULL,
    spec_version integer NOT NULL,
    epoch integer NOT NULL,
    reason evertick.run_reason NOT NULL,
    attempt smallint NOT NULL,
    is_listed boolean DEFAULT true NOT NULL
)
PARTITION BY RANGE (seq);

CREATE TABLE evertick.audit_log (
    entry_id bigint NOT NULL,
    tenant_id bigint NOT NULL,
    changed_at timestamp with time zone DEFAULT evertick.clock_at() NOT NULL,
    actor text NOT NULL,
    action text NOT NULL,
    subject text,
    request_id text
);

ALTER TABLE evertick.audit_log ALTER COLUMN entry_id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME evertick.audit_log_entry_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE evertick.broker_connections (
    tenant_id bigint NOT NULL,
    name text NOT NULL,
    created_at timestamp with time zone DEFAULT evertick.clock_at() NOT NULL,
    updated_at timestamp with time zone DEFAULT evertick.clock_at() NOT NULL,
    revision uuid DEFAULT gen_random_uuid() NOT NULL,
    type text NOT NULL,
    settings json NOT NULL,
    secrets bytea,
    secret_names text[] DEFAULT '{}'::text[] NOT NULL
);

CREATE TABLE evertick.clock_marks (
    is_only boolean DEFAULT true NOT NULL,
    marked_at timestamp with time zone DEFAULT evertick.clock_at() NOT NULL,
    trusted_at timestamp with time zone DEFAULT evertick.clock_at() NOT NULL,
    steady_at timestamp with time zone DEFAULT evertick.clock_at() NOT NULL,
    furthest_at timestamp with time zone DEFAULT evertick.clock_at() NOT NULL,
    ran_from_at timestamp with time zone,
    ran_until_at timestamp with time zone,
    replan_from smallint,
    replan_after_at timestamp with time zone,
    is_replan_cut boolean DEFAULT false NOT NULL,
    CONSTRAINT clock_marks_is_only_check CHECK (is_only)
)
WITH (fillfactor='50');

CREATE TABLE evertick.cluster_identity (
    is_only boolean DEFAULT true NOT NULL,
    confirmed_at timestamp with time zone,
    server_started_at timestamp with time zone,
    suspected_at timestamp with time zone,
    system_identifier bigint,
    timeline bigint,
    database_oid oid,
    table_oid oid,
    name text,
    suspicion text,
    CONSTRAINT cluster_identity_is_only_check CHECK (is_only)
);

CREATE VIEW evertick.confirmed_server AS
 SELECT (confirmed_at IS NOT NULL) AS is_known
   FROM evertick.cluster_identity identity
  WHERE ((suspected_at IS NULL) AND ((confirmed_at IS NULL) OR ((server_started_at = pg_postmaster_start_time()) AND (table_oid = tableoid) AND (database_oid = ( SELECT pg_database.oid
           FROM pg_database
          WHERE (pg_database.datname = current_database()))))));

CREATE TABLE evertick.dead_letters (
    job_id bigint NOT NULL,
    fire_at timestamp with time zone NOT NULL,
    tenant_id bigint NOT NULL,
    lane_id bigint NOT NULL,
    seq bigint NOT NULL,
    died_at timestamp with time zone NOT NULL,
    spec_version integer NOT NULL,
    attempt smallint NOT NULL,
    reason text NOT NULL
);

CREATE TABLE evertick.declared_jobs (
    tenant_id bigint NOT NULL,
    app text NOT NULL,
    name text NOT NULL,
    version_at timestamp with time zone NOT NULL,
    declared_at timestamp with time zone DEFAULT evertick.clock_at() NOT NULL,
    digest bytea NOT NULL
);

CREATE TABLE evertick.event_positions (
    is_only boolean DEFAULT true NOT NULL,
    last_position bigint NOT NULL,
    kept_from bigint NOT NULL,
    moved_up_to bigint DEFAULT 0 NOT NULL,
    drawn bigint DEFAULT 0 NOT NULL,
    drawn_before xid8 DEFAULT '0'::xid8 NOT NULL,
    drawn_on timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
    CONSTRAINT event_positions_is_only_check CHECK (is_only)
)
WITH (fillfactor='50');

CREATE TABLE evertick.event_sinks (
    tenant_id bigint NOT NULL,
    cursor bigint NOT NULL,
    latest bigint NOT NULL,
    epoch bigint DEFAULT 0 NOT NULL,
    leased_until timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
    next_try_at timestamp with time zone DEFAULT '-infinity'::timestamp with time zone NOT NULL,
    delivered_at timestamp with time zone,
    failing_since timestamp with time zone,
    failures integer DEFAULT 0 NOT NULL,
    last_error text,
    types text[],
    target json NOT NULL
)
WITH (fillfactor='50');

CREATE TABLE evertick.event_streams (
    tenant_id bigint NOT NULL,
    created_at timestamp with time zone NOT NULL,
    since bigint NOT NULL,
    is_of_all boolean NOT NULL
);

CREATE TABLE evertick.events (
    "position" bigint NOT NULL,
    tenant_id bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    job_id bigint,
    fire_at timestamp with time zone,
    last_at timestamp with time zone,
    ticks bigint,
    lane_id bigint,
    seq bigint,
    entry_id bigint,
    spec_version integer,
    type evertick.event_type NOT NULL,
    detail text
)
PARTITION BY RANGE ("position");

CREATE TABLE evertick.finished_jobs (
    job_id bigint NOT NULL,
    finished_at timestamp with time zone NOT NULL
);

CREATE TABLE evertick.gaps (
    job_id bigint NOT NULL,
    first_at timestamp with time zone NOT NULL,
    last_at timestamp with time zone NOT NULL,
    ticks bigint NOT NULL,
    blocked_by bigint,
    spec_version integer NOT NULL,
    reason evertick.gap_reason NOT NULL
);

CREATE TABLE evertick.idempotency_keys (
    tenant_id bigint NOT NULL,
    answered_at timestamp with time zone DEFAULT evertick.clock_at() NOT NULL,
    status smallint NOT NULL,
    key text NOT NULL,
    request bytea NOT NULL,
    headers jsonb NOT NULL,
    body bytea NOT NULL
);

CREATE SEQUENCE evertick.job_numbers
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;

CREATE TABLE evertick.job_versions (
    job_id bigint NOT NULL,
    rule_id bigint NOT NULL,
    effective_at timestamp with time zone NOT NULL,
    gate_id bigint,
    spec_version integer NOT NULL,
    timeout_seconds integer NOT NULL,
    gate_limit integer,
    name text NOT NULL,
    timezone text NOT NULL,
    handler text,
    key_template text,
    retry json NOT NULL,
    payload json,
    spec json NOT NULL,
    trace_parent text
);

CREATE TABLE evertick.jobs (
    job_id bigint NOT NULL,
    tenant_id bigint NOT NULL,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    paused_at timestamp with time zone,
    deleted_at timestamp with time zone,
    resumed_at timestamp with time zone,
    noted_success_at timestamp with time zone,
    spec_version integer NOT NULL,
    status evertick.job_status DEFAULT 'active'::evertick.job_status NOT NULL,
    has_alerts boolean DEFAULT false NOT NULL,
    name text NOT NULL,
    queue text NOT NULL,
    labels jsonb DEFAULT '{}'::jsonb NOT NULL,
    pause_reason text
);

CREATE TABLE evertick.lanes (
    lane_id bigint NOT NULL,
    head bigint DEFAULT 0 NOT NULL,
    swept bigint DEFAULT 0 NOT NULL,
    queue_id integer NOT NULL,
    partition smallint NOT NULL,
    priority smallint NOT NULL
)
WITH (fillfactor='10');

CREATE TABLE evertick.leases (
    lease_id bigint NOT NULL,
    lane_id bigint NOT NULL,
    first_seq bigint NOT NULL,
    last_seq bigint NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    lease_seconds real NOT NULL,
    partition smallint NOT NULL,
    deferrals smallint DEFAULT 0 NOT NULL,
    worker text,
    handler text,
    started bigint[],
    leased_at timestamp with time zone DEFAULT evertick.clock_at() NOT NULL,
    ends_at timestamp with time zone,
    running_seqs bigint[],
    running_since timestamp with time zone[],
    progress jsonb
);

CREATE TABLE evertick.migrations (
    name text NOT NULL,
    digest text NOT NULL,
    applied_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    needs text
);

CREATE TABLE evertick.new_events (
    number bigint NOT NULL,
    tenant_id bigint NOT NULL,
    at timestamp with time zone DEFAULT evertick.clock_at() NOT NULL,
    job_id bigint,
    fire_at timestamp with time zone,
    last_at timestamp with time zone,
    ticks bigint,
    lane_id bigint,
    seq bigint,
    entry_id bigint,
    spec_version integer,
    type evertick.event_type NOT NULL,
    detail text
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='5000', autovacuum_vacuum_insert_threshold='-1', autovacuum_vacuum_cost_delay='0');

ALTER TABLE evertick.new_events ALTER COLUMN number ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME evertick.new_events_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE evertick.nodes (
    node text NOT NULL,
    region text NOT NULL,
    version text NOT NULL,
    started_at timestamp with time zone NOT NULL,
    seen_at timestamp with time zone NOT NULL,
    fired_per_second real
);

CREATE TABLE evertick.open_runs (
    job_id bigint NOT NULL,
    fire_at timestamp with time zone NOT NULL,
    lane_id bigint NOT NULL,
    seq bigint NOT NULL,
    gate_id bigint,
    is_inside boolean DEFAULT false NOT NULL
);

CREATE TABLE evertick.outcomes (
    lane_id bigint NOT NULL,
    seq bigint NOT NULL,
    started_at timestamp with time zone,
    finished_at timestamp with time zone NOT NULL,
    result evertick.outcome_result NOT NULL,
    code integer,
    is_final boolean NOT NULL,
    worker text,
    error text,
    excerpt text,
    output text,
    held_ms integer
)
PARTITION BY RANGE (seq);

CREATE TABLE evertick.partitions (
    partition smallint NOT NULL,
    epoch integer DEFAULT 0 NOT NULL,
    holder text,
    taken_at timestamp with time zone,
    released_at timestamp with time zone,
    outage_at timestamp with time zone
)
WITH (fillfactor='50');

CREATE TABLE evertick.queues (
    queue_id integer DEFAULT (1 + (floor((random() * (2147483645)::double precision)))::integer) NOT NULL,
    tenant_id bigint NOT NULL,
    name text NOT NULL,
    unused_at timestamp with time zone,
    max_running integer DEFAULT 2147483647 NOT NULL,
    max_ready integer DEFAULT 250000 NOT NULL,
    rate_limit double precision,
    rate_burst integer,
    is_dispatched boolean GENERATED ALWAYS AS ((name = ANY (ARRAY['http'::text, 'kafka'::text, 'rabbitmq'::text, 'redis_stream'::text, 'nats'::text, 'sqs'::text]))) STORED NOT NULL,
    CONSTRAINT queues_max_ready_check CHECK ((max_ready >= 1)),
    CONSTRAINT queues_max_running_check CHECK ((max_running >= 0)),
    CONSTRAINT queues_rate_burst_check CHECK ((rate_burst > 0)),
    CONSTRAINT queues_rate_limit_check CHECK ((rate_limit > (0)::double precision))
);

CREATE TABLE evertick.rate_buckets (
    key text NOT NULL,
    units bigint NOT NULL,
    as_of_us bigint NOT NULL,
    full_us bigint NOT NULL
)
WITH (fillfactor='50');

CREATE TABLE evertick.ready_batches (
    lane_id bigint NOT NULL,
    last_seq bigint NOT NULL,
    first_seq bigint NOT NULL,
    due_at timestamp with time zone NOT NULL,
    attempts integer NOT NULL,
    is_dispatched boolean NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='5000', autovacuum_vacuum_insert_threshold='-1', autovacuum_vacuum_cost_delay='0');

CREATE TABLE evertick.replays (
    replay_id bigint DEFAULT ((evertick.microseconds(evertick.clock_at()) << 10) + (floor((random() * (1024)::double precision)))::bigint) NOT NULL,
    tenant_id bigint NOT NULL,
    created_at timestamp with time zone NOT NULL,
    finished_at timestamp with time zone,
    next_batch_at timestamp with time zone NOT NULL,
    died_from timestamp with time zone NOT NULL,
    died_before timestamp with time zone,
    reached_died_at timestamp with time zone NOT NULL,
    reached_job_id bigint NOT NULL,
    reached_fire_at timestamp with time zone NOT NULL,
    job_id bigint,
    replayed bigint DEFAULT 0 NOT NULL,
    looked_at bigint DEFAULT 0 NOT NULL,
    rate_per_second double precision NOT NULL,
    status evertick.replay_status DEFAULT 'running'::evertick.replay_status NOT NULL,
    queue text,
    error text,
    label text,
    actor text NOT NULL
);

CREATE TABLE evertick.requested_runs (
    job_id bigint NOT NULL,
    fire_at timestamp with time zone NOT NULL,
    requested_at timestamp with time zone NOT NULL,
    replays_at timestamp with time zone,
    has_payload boolean NOT NULL,
    payload json,
    gate_id bigint,
    trace_parent text
);

CREATE TABLE evertick.rules (
    rule_id bigint GENERATED ALWAYS AS ((((('x'::text || encode(substr(digest, 1, 8), 'hex'::text)))::bit(64) >> 1))::bigint) STORED NOT NULL,
    digest bytea NOT NULL,
    canonical text NOT NULL,
    unused_at timestamp with time zone
);

CREATE TABLE evertick.sessions (
    digest bytea NOT NULL,
    key_id bigint NOT NULL,
    created_at timestamp with time zone DEFAULT evertick.clock_at() NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    is_link boolean NOT NULL
);

CREATE TABLE evertick.smeared_jobs (
    smear_id bigint NOT NULL,
    job_id bigint NOT NULL,
    spec_version integer,
    state evertick.smeared_state DEFAULT 'waiting'::evertick.smeared_state NOT NULL
);

CREATE TABLE evertick.smears (
    smear_id bigint DEFAULT ((evertick.microseconds(evertick.clock_at()) << 10) + (floor((random() * (1024)::double precision)))::bigint) NOT NULL,
    tenant_id bigint NOT NULL,
    created_at timestamp with time zone DEFAULT evertick.clock_at() NOT NULL,
    finished_at timestamp with time zone,
    next_batch_at timestamp with time zone DEFAULT evertick.clock_at() NOT NULL,
    reached_job_id bigint DEFAULT 0 NOT NULL,
    jitter_seconds integer NOT NULL,
    status evertick.smear_status DEFAULT 'running'::evertick.smear_status NOT NULL,
    actor text NOT NULL,
    CONSTRAINT smears_jitter_seconds_check CHECK ((jitter_seconds > 0))
);

CREATE TABLE evertick.storage_changes (
    tenant_id bigint NOT NULL,
    bytes bigint DEFAULT 0 NOT NULL,
    answer_bytes bigint DEFAULT 0 NOT NULL
);

CREATE TABLE evertick.storage_sums (
    tenant_id bigint NOT NULL,
    bytes bigint NOT NULL,
    answer_bytes bigint NOT NULL
)
WITH (fillfactor='50');

CREATE TABLE evertick.superseded_versions (
    job_id bigint NOT NULL,
    check_at timestamp with time zone NOT NULL,
    idle_at timestamp with time zone,
    spec_version integer NOT NULL
);

CREATE TABLE evertick.target_hosts (
    tenant_id bigint NOT NULL,
    changed_at timestamp with time zone NOT NULL,
    window_at timestamp with time zone NOT NULL,
    probe_at timestamp with time zone,
    watched_at timestamp with time zone,
    watched_until timestamp with time zone,
    reported_at timestamp with time zone NOT NULL,
    calls integer NOT NULL,
    failures integer NOT NULL,
    calls_before integer NOT NULL,
    failures_before integer NOT NULL,
    openings integer NOT NULL,
    state evertick.circuit_state NOT NULL,
    rate_limit double precision,
    rate_burst integer,
    host text NOT NULL,
    last_error text,
    CONSTRAINT target_hosts_rate_burst_check CHECK ((rate_burst > 0)),
    CONSTRAINT target_hosts_rate_limit_check CHECK ((rate_limit > (0)::double precision))
);

CREATE TABLE evertick.tenants (
    tenant_id bigint DEFAULT ((evertick.microseconds(evertick.clock_at()) << 10) + (floor((random() * (1024)::double precision)))::bigint) NOT NULL,
    name text NOT NULL,
    weight smallint DEFAULT 1 NOT NULL,
    created_at timestamp with time zone DEFAULT evertick.clock_at() NOT NULL,
    jobs_quota integer DEFAULT 100000 NOT NULL,
    submits_per_second integer DEFAULT 1000 NOT NULL,
    submit_burst integer DEFAULT 10000 NOT NULL,
    running_quota integer DEFAULT 2147483647 NOT NULL,
    ready_quota integer DEFAULT 1000000 NOT NULL,
    shortest_interval_seconds double precision DEFAULT 1 NOT NULL,
    http_timeout_max_seconds integer DEFAULT 300 NOT NULL,
    storage_quota_bytes bigint DEFAULT '10737418240'::bigint NOT NULL,
    default_jitter_seconds double precision DEFAULT 0 NOT NULL,
    is_host boolean DEFAULT false NOT NULL,
    history_days integer DEFAULT 36500 NOT NULL,
    archive_days integer DEFAULT 36500 NOT NULL,
    CONSTRAINT tenants_archive_days_check CHECK ((archive_days >= 0)),
    CONSTRAINT tenants_default_jitter_seconds_check CHECK ((default_jitter_seconds >= (0)::double precision)),
    CONSTRAINT tenants_history_days_check CHECK ((history_days >= 1)),
    CONSTRAINT tenants_http_timeout_max_seconds_check CHECK (((http_timeout_max_seconds >= 1) AND (http_timeout_max_seconds <= 3600))),
    CONSTRAINT tenants_jobs_quota_check CHECK ((jobs_quota >= 0)),
    CONSTRAINT tenants_ready_quota_check CHECK ((ready_quota >= 0)),
    CONSTRAINT tenants_running_quota_check CHECK ((running_quota >= 0)),
    CONSTRAINT tenants_shortest_interval_seconds_check CHECK ((shortest_interval_seconds >= (0)::double precision)),
    CONSTRAINT tenants_storage_quota_bytes_check CHECK ((storage_quota_bytes >= 0)),
    CONSTRAINT tenants_submit_burst_check CHECK ((submit_burst >= 1)),
    CONSTRAINT tenants_submits_per_second_check CHECK ((submits_per_second >= 1)),
    CONSTRAINT tenants_weight_check CHECK (((weight >= 1) AND (weight <= 1000)))
);

CREATE TABLE evertick.timers (
    job_id bigint NOT NULL,
    fire_at timestamp with time zone NOT NULL,
    due_at timestamp with time zone NOT NULL,
    tenant_id bigint NOT NULL,
    rule_id bigint NOT NULL,
    last_lane bigint,
    last_seq bigint,
    gate_id bigint,
    queue_id integer NOT NULL,
    spec_version integer NOT NULL,
    kind evertick.timer_kind NOT NULL,
    reason evertick.run_reason,
    partition smallint NOT NULL,
    attempt smallint DEFAULT 1 NOT NULL,
    priority smallint NOT NULL
)
PARTITION BY HASH (partition);

CREATE TABLE evertick.timers_0 (
    job_id bigint CONSTRAINT timers_job_id_not_null NOT NULL,
    fire_at timestamp with time zone CONSTRAINT timers_fire_at_not_null NOT NULL,
    due_at timestamp with time zone CONSTRAINT timers_due_at_not_null NOT NULL,
    tenant_id bigint CONSTRAINT timers_tenant_id_not_null NOT NULL,
    rule_id bigint CONSTRAINT timers_rule_id_not_null NOT NULL,
    last_lane bigint,
    last_seq bigint,
    gate_id bigint,
    queue_id integer CONSTRAINT timers_queue_id_not_null NOT NULL,
    spec_version integer CONSTRAINT timers_spec_version_not_null NOT NULL,
    kind evertick.timer_kind CONSTRAINT timers_kind_not_null NOT NULL,
    reason evertick.run_reason,
    partition smallint CONSTRAINT timers_partition_not_null NOT NULL,
    attempt smallint DEFAULT 1 CONSTRAINT timers_attempt_not_null NOT NULL,
    priority smallint CONSTRAINT timers_priority_not_null NOT NULL
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_cost_delay='0');
ALTER TABLE ONLY evertick.timers_0 ALTER COLUMN partition SET (n_distinct=1);

CREATE TABLE evertick.timers_1 (
    job_id bigint CONSTRAINT timers_job_id_not_null NOT NULL,
    fire_at timestamp with time zone CONSTRAINT timers_fire_at_not_null NOT NULL,
    due_at timestamp with time zone CONSTRAINT timers_due_at_not_null NOT NULL,
    tenant_id bigint CONSTRAINT timers_tenant_id_not_null NOT NULL,
    rule_id bigint CONSTRAINT timers_rule_id_not_null NOT NULL,
    last_lane bigint,
    last_seq bigint,
    gate_id bigint,
    queue_id integer CONSTRAINT timers_queue_id_not_null NOT NULL,
    spec_version integer CONSTRAINT timers_spec_version_not_null NOT NULL,
    kind evertick.timer_kind CONSTRAINT timers_kind_not_null NOT NULL,
    reason evertick.run_reason,
    partition smallint CONSTRAINT timers_partition_not_null NOT NULL,
    attempt smallint DEFAULT 1 CONSTRAINT timers_attempt_not_null NOT NULL,
    priority smallint CONSTRAINT timers_priority_not_null NOT NULL
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_cost_delay='0');
ALTER TABLE ONLY evertick.timers_1 ALTER COLUMN partition SET (n_distinct=1);

CREATE TABLE evertick.timers_2 (
    job_id bigint CONSTRAINT timers_job_id_not_null NOT NULL,
    fire_at timestamp with time zone CONSTRAINT timers_fire_at_not_null NOT NULL,
    due_at timestamp with time zone CONSTRAINT timers_due_at_not_null NOT NULL,
    tenant_id bigint CONSTRAINT timers_tenant_id_not_null NOT NULL,
    rule_id bigint CONSTRAINT timers_rule_id_not_null NOT NULL,
    last_lane bigint,
    last_seq bigint,
    gate_id bigint,
    queue_id integer CONSTRAINT timers_queue_id_not_null NOT NULL,
    spec_version integer CONSTRAINT timers_spec_version_not_null NOT NULL,
    kind evertick.timer_kind CONSTRAINT timers_kind_not_null NOT NULL,
    reason evertick.run_reason,
    partition smallint CONSTRAINT timers_partition_not_null NOT NULL,
    attempt smallint DEFAULT 1 CONSTRAINT timers_attempt_not_null NOT NULL,
    priority smallint CONSTRAINT timers_priority_not_null NOT NULL
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_cost_delay='0');
ALTER TABLE ONLY evertick.timers_2 ALTER COLUMN partition SET (n_distinct=1);

CREATE TABLE evertick.timers_3 (
    job_id bigint CONSTRAINT timers_job_id_not_null NOT NULL,
    fire_at timestamp with time zone CONSTRAINT timers_fire_at_not_null NOT NULL,
    due_at timestamp with time zone CONSTRAINT timers_due_at_not_null NOT NULL,
    tenant_id bigint CONSTRAINT timers_tenant_id_not_null NOT NULL,
    rule_id bigint CONSTRAINT timers_rule_id_not_null NOT NULL,
    last_lane bigint,
    last_seq bigint,
    gate_id bigint,
    queue_id integer CONSTRAINT timers_queue_id_not_null NOT NULL,
    spec_version integer CONSTRAINT timers_spec_version_not_null NOT NULL,
    kind evertick.timer_kind CONSTRAINT timers_kind_not_null NOT NULL,
    reason evertick.run_reason,
    partition smallint CONSTRAINT timers_partition_not_null NOT NULL,
    attempt smallint DEFAULT 1 CONSTRAINT timers_attempt_not_null NOT NULL,
    priority smallint CONSTRAINT timers_priority_not_null NOT NULL
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_cost_delay='0');
ALTER TABLE ONLY evertick.timers_3 ALTER COLUMN partition SET (n_distinct=1);

CREATE TABLE evertick.timers_4 (
    job_id bigint CONSTRAINT timers_job_id_not_null NOT NULL,
    fire_at timestamp with time zone CONSTRAINT timers_fire_at_not_null NOT NULL,
    due_at timestamp with time zone CONSTRAINT timers_due_at_not_null NOT NULL,
    tenant_id bigint CONSTRAINT timers_tenant_id_not_null NOT NULL,
    rule_id bigint CONSTRAINT timers_rule_id_not_null NOT NULL,
    last_lane bigint,
    last_seq bigint,
    gate_id bigint,
    queue_id integer CONSTRAINT timers_queue_id_not_null NOT NULL,
    spec_version integer CONSTRAINT timers_spec_version_not_null NOT NULL,
    kind evertick.timer_kind CONSTRAINT timers_kind_not_null NOT NULL,
    reason evertick.run_reason,
    partition smallint CONSTRAINT timers_partition_not_null NOT NULL,
    attempt smallint DEFAULT 1 CONSTRAINT timers_attempt_not_null NOT NULL,
    priority smallint CONSTRAINT timers_priority_not_null NOT NULL
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_cost_delay='0');
ALTER TABLE ONLY evertick.timers_4 ALTER COLUMN partition SET (n_distinct=1);

CREATE TABLE evertick.timers_5 (
    job_id bigint CONSTRAINT timers_job_id_not_null NOT NULL,
    fire_at timestamp with time zone CONSTRAINT timers_fire_at_not_null NOT NULL,
    due_at timestamp with time zone CONSTRAINT timers_due_at_not_null NOT NULL,
    tenant_id bigint CONSTRAINT timers_tenant_id_not_null NOT NULL,
    rule_id bigint CONSTRAINT timers_rule_id_not_null NOT NULL,
    last_lane bigint,
    last_seq bigint,
    gate_id bigint,
    queue_id integer CONSTRAINT timers_queue_id_not_null NOT NULL,
    spec_version integer CONSTRAINT timers_spec_version_not_null NOT NULL,
    kind evertick.timer_kind CONSTRAINT timers_kind_not_null NOT NULL,
    reason evertick.run_reason,
    partition smallint CONSTRAINT timers_partition_not_null NOT NULL,
    attempt smallint DEFAULT 1 CONSTRAINT timers_attempt_not_null NOT NULL,
    priority smallint CONSTRAINT timers_priority_not_null NOT NULL
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_cost_delay='0');
ALTER TABLE ONLY evertick.timers_5 ALTER COLUMN partition SET (n_distinct=1);

CREATE TABLE evertick.timers_6 (
    job_id bigint CONSTRAINT timers_job_id_not_null NOT NULL,
    fire_at timestamp with time zone CONSTRAINT timers_fire_at_not_null NOT NULL,
    due_at timestamp with time zone CONSTRAINT timers_due_at_not_null NOT NULL,
    tenant_id bigint CONSTRAINT timers_tenant_id_not_null NOT NULL,
    rule_id bigint CONSTRAINT timers_rule_id_not_null NOT NULL,
    last_lane bigint,
    last_seq bigint,
    gate_id bigint,
    queue_id integer CONSTRAINT timers_queue_id_not_null NOT NULL,
    spec_version integer CONSTRAINT timers_spec_version_not_null NOT NULL,
    kind evertick.timer_kind CONSTRAINT timers_kind_not_null NOT NULL,
    reason evertick.run_reason,
    partition smallint CONSTRAINT timers_partition_not_null NOT NULL,
    attempt smallint DEFAULT 1 CONSTRAINT timers_attempt_not_null NOT NULL,
    priority smallint CONSTRAINT timers_priority_not_null NOT NULL
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_cost_delay='0');
ALTER TABLE ONLY evertick.timers_6 ALTER COLUMN partition SET (n_distinct=1);

CREATE TABLE evertick.timers_7 (
    job_id bigint CONSTRAINT timers_job_id_not_null NOT NULL,
    fire_at timestamp with time zone CONSTRAINT timers_fire_at_not_null NOT NULL,
    due_at timestamp with time zone CONSTRAINT timers_due_at_not_null NOT NULL,
    tenant_id bigint CONSTRAINT timers_tenant_id_not_null NOT NULL,
    rule_id bigint CONSTRAINT timers_rule_id_not_null NOT NULL,
    last_lane bigint,
    last_seq bigint,
    gate_id bigint,
    queue_id integer CONSTRAINT timers_queue_id_not_null NOT NULL,
    spec_version integer CONSTRAINT timers_spec_version_not_null NOT NULL,
    kind evertick.timer_kind CONSTRAINT timers_kind_not_null NOT NULL,
    reason evertick.run_reason,
    partition smallint CONSTRAINT timers_partition_not_null NOT NULL,
    attempt smallint DEFAULT 1 CONSTRAINT timers_attempt_not_null NOT NULL,
    priority smallint CONSTRAINT timers_priority_not_null NOT NULL
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_cost_delay='0');
ALTER TABLE ONLY evertick.timers_7 ALTER COLUMN partition SET (n_distinct=1);

CREATE TABLE evertick.webhook_secrets (
    tenant_id bigint NOT NULL,
    rotated_at timestamp with time zone DEFAULT evertick.clock_at() NOT NULL,
    current bytea NOT NULL,
    previous bytea
);

CREATE TABLE evertick.withdrawals (
    job_id bigint NOT NULL,
    fire_at timestamp with time zone NOT NULL,
    withdrawn_at timestamp with time zone NOT NULL,
    spec_version integer NOT NULL,
    reason evertick.run_reason NOT NULL
);

CREATE TABLE evertick.workers (
    worker text NOT NULL,
    queue text NOT NULL,
    tenant_id bigint,
    started_at timestamp with time zone DEFAULT evertick.clock_at() NOT NULL,
    seen_at timestamp with time zone DEFAULT evertick.clock_at() NOT NULL,
    alive_until timestamp with time zone NOT NULL,
    role text NOT NULL,
    version text,
    handlers text[],
    finished_per_second real,
    app text,
    app_digest bytea
)
WITH (fillfactor='50');

ALTER TABLE ONLY evertick.timers ATTACH PARTITION evertick.timers_0 FOR VALUES WITH (modulus 8, remainder 0);

ALTER TABLE ONLY evertick.timers ATTACH PARTITION evertick.timers_1 FOR VALUES WITH (modulus 8, remainder 1);

ALTER TABLE ONLY evertick.timers ATTACH PARTITION evertick.timers_2 FOR VALUES WITH (modulus 8, remainder 2);

ALTER TABLE ONLY evertick.timers ATTACH PARTITION evertick.timers_3 FOR VALUES WITH (modulus 8, remainder 3);

ALTER TABLE ONLY evertick.timers ATTACH PARTITION evertick.timers_4 FOR VALUES WITH (modulus 8, remainder 4);

ALTER TABLE ONLY evertick.timers ATTACH PARTITION evertick.timers_5 FOR VALUES WITH (modulus 8, remainder 5);

ALTER TABLE ONLY evertick.timers ATTACH PARTITION evertick.timers_6 FOR VALUES WITH (modulus 8, remainder 6);

ALTER TABLE ONLY evertick.timers ATTACH PARTITION evertick.timers_7 FOR VALUES WITH (modulus 8, remainder 7);

ALTER TABLE ONLY evertick.alert_looks
    ADD CONSTRAINT alert_looks_pkey PRIMARY KEY (look);

ALTER TABLE ONLY evertick.alert_targets
    ADD CONSTRAINT alert_targets_pkey PRIMARY KEY (tenant_id);

ALTER TABLE ONLY evertick.alerts
    ADD CONSTRAINT alerts_pkey PRIMARY KEY (alert_id);

ALTER TABLE ONLY evertick.alerts
    ADD CONSTRAINT alerts_tenant_id_condition_subject_key UNIQUE (tenant_id, condition, subject);

ALTER TABLE ONLY evertick.api_keys
    ADD CONSTRAINT api_keys_digest_key UNIQUE (digest);

ALTER TABLE ONLY evertick.api_keys
    ADD CONSTRAINT api_keys_pkey PRIMARY KEY (key_id);

ALTER TABLE ONLY evertick.app_versions
    ADD CONSTRAINT app_versions_pkey PRIMARY KEY (tenant_id, app, digest);

ALTER TABLE ONLY evertick.archive_files
    ADD CONSTRAINT archive_files_pkey PRIMARY KEY (path);

ALTER TABLE ONLY evertick.archive_marks
    ADD CONSTRAINT archive_marks_pkey PRIMARY KEY (is_only);

ALTER TABLE ONLY evertick.archived_days
    ADD CONSTRAINT archived_days_pkey PRIMARY KEY (day, part);

ALTER TABLE ONLY evertick.attempts
    ADD CONSTRAINT attempts_pkey PRIMARY KEY (lane_id, seq);

ALTER TABLE ONLY evertick.audit_log
    ADD CONSTRAINT audit_log_pkey PRIMARY KEY (entry_id);

ALTER TABLE ONLY evertick.broker_connections
    ADD CONSTRAINT broker_connections_pkey PRIMARY KEY (tenant_id, name);

ALTER TABLE ONLY evertick.clock_marks
    ADD CONSTRAINT clock_marks_pkey PRIMARY KEY (is_only);

ALTER TABLE ONLY evertick.cluster_identity
    ADD CONSTRAINT cluster_identity_pkey PRIMARY KEY (is_only);

ALTER TABLE ONLY evertick.dead_letters
    ADD CONSTRAINT dead_letters_pkey PRIMARY KEY (job_id, fire_at);

ALTER TABLE ONLY evertick.declared_jobs
    ADD CONSTRAINT declared_jobs_pkey PRIMARY KEY (tenant_id, app, name);

ALTER TABLE ONLY evertick.event_positions
    ADD CONSTRAINT event_positions_pkey PRIMARY KEY (is_only);

ALTER TABLE ONLY evertick.event_sinks
    ADD CONSTRAINT event_sinks_pkey PRIMARY KEY (tenant_id);

ALTER TABLE ONLY evertick.event_streams
    ADD CONSTRAINT event_streams_pkey PRIMARY KEY (tenant_id);

ALTER TABLE ONLY evertick.events
    ADD CONSTRAINT events_pkey PRIMARY KEY ("position");

ALTER TABLE ONLY evertick.finished_jobs
    ADD CONSTRAINT finished_jobs_pkey PRIMARY KEY (job_id);

ALTER TABLE ONLY evertick.gaps
    ADD CONSTRAINT gaps_pkey PRIMARY KEY (job_id, first_at, reason);

ALTER TABLE ONLY evertick.idempotency_keys
    ADD CONSTRAINT idempotency_keys_pkey PRIMARY KEY (tenant_id, key);

ALTER TABLE ONLY evertick.job_versions
    ADD CONSTRAINT job_versions_pkey PRIMARY KEY (job_id, spec_version);

ALTER TABLE ONLY evertick.jobs
    ADD CONSTRAINT jobs_pkey PRIMARY KEY (job_id);

ALTER TABLE ONLY evertick.lanes
    ADD CONSTRAINT lanes_pkey PRIMARY KEY (lane_id) WITH (deduplicate_items=off);

ALTER TABLE ONLY evertick.leases
    ADD CONSTRAINT leases_pkey PRIMARY KEY (lease_id);

ALTER TABLE ONLY evertick.migrations
    ADD CONSTRAINT migrations_pkey PRIMARY KEY (name);

ALTER TABLE ONLY evertick.new_events
    ADD CONSTRAINT new_events_pkey PRIMARY KEY (number);

ALTER TABLE ONLY evertick.nodes
    ADD CONSTRAINT nodes_pkey PRIMARY KEY (node);

ALTER TABLE ONLY evertick.open_runs
    ADD CONSTRAINT open_runs_pkey PRIMARY KEY (job_id, fire_at);

ALTER TABLE ONLY evertick.outcomes
    ADD CONSTRAINT outcomes_pkey PRIMARY KEY (lane_id, seq);

ALTER TABLE ONLY evertick.partitions
    ADD CONSTRAINT partitions_pkey PRIMARY KEY (partition);

ALTER TABLE ONLY evertick.queues
    ADD CONSTRAINT queues_pkey PRIMARY KEY (queue_id);

ALTER TABLE ONLY evertick.queues
    ADD CONSTRAINT queues_tenant_id_name_key UNIQUE (tenant_id, name);

ALTER TABLE ONLY evertick.rate_buckets
    ADD CONSTRAINT rate_buckets_pkey PRIMARY KEY (key);

ALTER TABLE ONLY evertick.ready_batches
    ADD CONSTRAINT ready_batches_pkey PRIMARY KEY (lane_id, last_seq);

ALTER TABLE ONLY evertick.replays
    ADD CONSTRAINT replays_pkey PRIMARY KEY (replay_id);

ALTER TABLE ONLY evertick.requested_runs
    ADD CONSTRAINT requested_runs_pkey PRIMARY KEY (job_id, fire_at);

ALTER TABLE ONLY evertick.rules
    ADD CONSTRAINT rules_digest_key UNIQUE (digest);

ALTER TABLE ONLY evertick.rules
    ADD CONSTRAINT rules_pkey PRIMARY KEY (rule_id);

ALTER TABLE ONLY evertick.sessions
    ADD CONSTRAINT sessions_pkey PRIMARY KEY (digest);

ALTER TABLE ONLY evertick.smeared_jobs
    ADD CONSTRAINT smeared_jobs_pkey PRIMARY KEY (smear_id, job_id);

ALTER TABLE ONLY evertick.smears
    ADD CONSTRAINT smears_pkey PRIMARY KEY (smear_id);

ALTER TABLE ONLY evertick.storage_sums
    ADD CONSTRAINT storage_sums_pkey PRIMARY KEY (tenant_id);

ALTER TABLE ONLY evertick.superseded_versions
    ADD CONSTRAINT superseded_versions_pkey PRIMARY KEY (job_id, spec_version);

ALTER TABLE ONLY evertick.target_hosts
    ADD CONSTRAINT target_hosts_pkey PRIMARY KEY (tenant_id, host);

ALTER TABLE ONLY evertick.tenants
    ADD CONSTRAINT tenants_name_key UNIQUE (name);

ALTER TABLE ONLY evertick.tenants
    ADD CONSTRAINT tenants_pkey PRIMARY KEY (tenant_id);

ALTER TABLE ONLY evertick.timers
    ADD CONSTRAINT timers_pkey PRIMARY KEY (partition, job_id, kind, fire_at);

ALTER TABLE ONLY evertick.timers_0
    ADD CONSTRAINT timers_0_pkey PRIMARY KEY (partition, job_id, kind, fire_at);

ALTER TABLE ONLY evertick.timers_1
    ADD CONSTRAINT timers_1_pkey PRIMARY KEY (partition, job_id, kind, fire_at);

ALTER TABLE ONLY evertick.timers_2
    ADD CONSTRAINT timers_2_pkey PRIMARY KEY (partition, job_id, kind, fire_at);

ALTER TABLE ONLY evertick.timers_3
    ADD CONSTRAINT timers_3_pkey PRIMARY KEY (partition, job_id, kind, fire_at);

ALTER TABLE ONLY evertick.timers_4
    ADD CONSTRAINT timers_4_pkey PRIMARY KEY (partition, job_id, kind, fire_at);

ALTER TABLE ONLY evertick.timers_5
    ADD CONSTRAINT timers_5_pkey PRIMARY KEY (partition, job_id, kind, fire_at);

ALTER TABLE ONLY evertick.timers_6
    ADD CONSTRAINT timers_6_pkey PRIMARY KEY (partition, job_id, kind, fire_at);

ALTER TABLE ONLY evertick.timers_7
    ADD CONSTRAINT timers_7_pkey PRIMARY KEY (partition, job_id, kind, fire_at);

ALTER TABLE ONLY evertick.webhook_secrets
    ADD CONSTRAINT webhook_secrets_pkey PRIMARY KEY (tenant_id);

ALTER TABLE ONLY evertick.withdrawals
    ADD CONSTRAINT withdrawals_pkey PRIMARY KEY (job_id, fire_at);

ALTER TABLE ONLY evertick.workers
    ADD CONSTRAINT workers_pkey PRIMARY KEY (worker, queue);

CREATE INDEX alerts_about_tenant ON evertick.alerts USING btree (tenant_id) WHERE (job_id IS NULL);

CREATE INDEX alerts_by_age ON evertick.alerts USING btree (closed_at) WHERE (NOT is_open);

CREATE INDEX alerts_of_job ON evertick.alerts USING btree (job_id) WHERE (job_id IS NOT NULL);

CREATE INDEX alerts_of_tenant ON evertick.alerts USING btree (tenant_id, alert_id);

CREATE INDEX alerts_open ON evertick.alerts USING btree (alert_id) WHERE is_open;

CREATE INDEX alerts_open_of_job ON evertick.alerts USING btree (job_id) WHERE (is_open AND (job_id IS NOT NULL));

CREATE INDEX alerts_told ON evertick.alerts USING btree (alert_id) WHERE (notice_at IS NOT NULL);

CREATE INDEX alerts_untold ON evertick.alerts USING btree (untold_tenant_id, alert_id) WHERE (untold_tenant_id IS NOT NULL);

CREATE INDEX api_keys_ended ON evertick.api_keys USING btree (LEAST(revoked_at, expires_at)) WHERE ((revoked_at IS NOT NULL) OR (expires_at IS NOT NULL));

CREATE INDEX api_keys_of_tenant ON evertick.api_keys USING btree (tenant_id, key_id);

CREATE INDEX archive_files_by_seq ON evertick.archive_files USING btree (tenant_id, last_seq) WHERE (is_released AND (kind = 'runs'::text));

CREATE INDEX archive_files_of_day ON evertick.archive_files USING btree (day, part);

CREATE INDEX archive_files_of_tenant ON evertick.archive_files USING btree (tenant_id, kind, last_at) WHERE is_released;

CREATE INDEX archive_files_unchecked ON evertick.archive_files USING btree (noted_at) WHERE (NOT is_checked);

CREATE INDEX attempts_of_run ON ONLY evertick.attempts USING btree (job_id, fire_at);

CREATE INDEX audit_log_by_age ON evertick.audit_log USING btree (changed_at);

CREATE INDEX audit_log_of_tenant ON evertick.audit_log USING btree (tenant_id, entry_id);

CREATE INDEX dead_letters_by_age ON evertick.dead_letters USING brin (died_at);

CREATE INDEX dead_letters_of_job ON evertick.dead_letters USING btree (job_id, died_at);

CREATE INDEX dead_letters_of_tenant ON evertick.dead_letters USING btree (tenant_id, died_at);

CREATE INDEX event_sinks_behind ON evertick.event_sinks USING btree (next_try_at) WHERE (cursor < latest);

CREATE INDEX events_of_tenant ON ONLY evertick.events USING btree (tenant_id, "position");

CREATE INDEX finished_jobs_by_age ON evertick.finished_jobs USING btree (finished_at);

CREATE INDEX gaps_by_age ON evertick.gaps USING btree (last_at);

CREATE INDEX idempotency_keys_by_age ON evertick.idempotency_keys USING btree (answered_at);

CREATE INDEX job_versions_of_rule ON evertick.job_versions USING btree (rule_id);

CREATE UNIQUE INDEX jobs_by_name ON evertick.jobs USING btree (tenant_id, name) WHERE (status <> 'deleted'::evertick.job_status);

CREATE INDEX jobs_by_text ON evertick.jobs USING btree (tenant_id, name COLLATE "C") WHERE (status <> 'deleted'::evertick.job_status);

CREATE INDEX jobs_of_tenant ON evertick.jobs USING btree (tenant_id, job_id) WHERE (status <> 'deleted'::evertick.job_status);

CREATE INDEX jobs_paused ON evertick.jobs USING btree (tenant_id) WHERE ((status = 'paused'::evertick.job_status) AND (pause_reason ~ '^(runaway: |rule -?[0-9]+ |its target answered 410 )'::text));

CREATE INDEX jobs_to_purge ON evertick.jobs USING btree (deleted_at) WHERE (status = 'deleted'::evertick.job_status);

CREATE INDEX jobs_with_alerts ON evertick.jobs USING btree (job_id) WHERE (has_alerts AND (status <> 'deleted'::evertick.job_status));

CREATE INDEX lanes_of_partition ON evertick.lanes USING btree (partition);

CREATE INDEX lanes_of_queue ON evertick.lanes USING btree (queue_id, priority, partition);

CREATE INDEX leases_dispatched ON evertick.leases USING btree (((lane_id >> 11)), expires_at) WHERE ((worker IS NULL) AND (handler = ''::text));

CREATE INDEX leases_expired ON evertick.leases USING btree (partition, expires_at) WHERE (worker IS NOT NULL);

CREATE INDEX leases_free ON evertick.leases USING btree (((lane_id >> 11)), handler, expires_at) WHERE (worker IS NULL);

CREATE INDEX leases_held ON evertick.leases USING btree (((lane_id >> 11))) WHERE (worker IS NOT NULL);

CREATE UNIQUE INDEX leases_of_attempt ON evertick.leases USING btree (lane_id, first_seq) WHERE (first_seq = last_seq);

CREATE INDEX leases_of_worker ON evertick.leases USING btree (worker, lane_id, first_seq, last_seq DESC);

CREATE INDEX open_runs_at_gate ON evertick.open_runs USING btree (is_inside, gate_id, fire_at, job_id) WHERE (gate_id IS NOT NULL);

CREATE INDEX queues_dispatched ON evertick.queues USING btree (queue_id) WHERE is_dispatched;

CREATE INDEX queues_limited ON evertick.queues USING btree (queue_id) WHERE (max_ready < 250000);

CREATE INDEX ready_batches_dispatched ON evertick.ready_batches USING btree (lane_id) WHERE is_dispatched;

CREATE INDEX replays_by_age ON evertick.replays USING btree (finished_at) WHERE (finished_at IS NOT NULL);

CREATE INDEX replays_of_tenant ON evertick.replays USING btree (tenant_id, replay_id);

CREATE INDEX replays_running ON evertick.replays USING btree (next_batch_at) WHERE (status = 'running'::evertick.replay_status);

CREATE INDEX replays_running_of_tenant ON evertick.replays USING btree (tenant_id) WHERE (status = 'running'::evertick.replay_status);

CREATE INDEX requested_runs_by_age ON evertick.requested_runs USING btree (fire_at);

CREATE INDEX sessions_by_age ON evertick.sessions USING btree (expires_at);

CREATE INDEX sessions_of_key ON evertick.sessions USING btree (key_id);

CREATE INDEX smears_by_age ON evertick.smears USING btree (finished_at) WHERE (finished_at IS NOT NULL);

CREATE INDEX smears_of_tenant ON evertick.smears USING btree (tenant_id, smear_id);

CREATE INDEX smears_running ON evertick.smears USING btree (next_batch_at) WHERE (finished_at IS NULL);

CREATE INDEX storage_changes_of_tenant ON evertick.storage_changes USING btree (tenant_id);

CREATE INDEX superseded_versions_to_check ON evertick.superseded_versions USING btree (check_at);

CREATE INDEX target_hosts_by_age ON evertick.target_hosts USING btree (reported_at) WHERE (rate_limit IS NULL);

CREATE INDEX target_hosts_limited ON evertick.target_hosts USING btree (tenant_id, host) WHERE (rate_limit IS NOT NULL);

CREATE INDEX target_hosts_watched ON evertick.target_hosts USING btree (watched_until) WHERE (watched_until IS NOT NULL);

CREATE INDEX tenants_limited ON evertick.tenants USING btree (tenant_id) WHERE (ready_quota < 1000000);

CREATE INDEX timers_in_order ON ONLY evertick.timers USING btree (gate_id, fire_at, job_id) WHERE ((gate_id < 0) AND (due_at < 'infinity'::timestamp with time zone) AND (kind <> 'retry'::evertick.timer_kind));

CREATE INDEX timers_0_gate_id_fire_at_job_id_idx ON evertick.timers_0 USING btree (gate_id, fire_at, job_id) WHERE ((gate_id < 0) AND (due_at < 'infinity'::timestamp with time zone) AND (kind <> 'retry'::evertick.timer_kind));

CREATE INDEX timers_due ON ONLY evertick.timers USING btree (partition, due_at);

CREATE INDEX timers_0_partition_due_at_idx ON evertick.timers_0 USING btree (partition, due_at);

CREATE INDEX timers_of_tenant ON ONLY evertick.timers USING btree (partition, tenant_id, priority, queue_id, due_at);

CREATE INDEX timers_0_partition_tenant_id_priority_queue_id_due_at_idx ON evertick.timers_0 USING btree (partition, tenant_id, priority, queue_id, due_at);

CREATE INDEX timers_1_gate_id_fire_at_job_id_idx ON evertick.timers_1 USING btree (gate_id, fire_at, job_id) WHERE ((gate_id < 0) AND (due_at < 'infinity'::timestamp with time zone) AND (kind <> 'retry'::evertick.timer_kind));

CREATE INDEX timers_1_partition_due_at_idx ON evertick.timers_1 USING btree (partition, due_at);

CREATE INDEX timers_1_partition_tenant_id_priority_queue_id_due_at_idx ON evertick.timers_1 USING btree (partition, tenant_id, priority, queue_id, due_at);

CREATE INDEX timers_2_gate_id_fire_at_job_id_idx ON evertick.timers_2 USING btree (gate_id, fire_at, job_id) WHERE ((gate_id < 0) AND (due_at < 'infinity'::timestamp with time zone) AND (kind <> 'retry'::evertick.timer_kind));

CREATE INDEX timers_2_partition_due_at_idx ON evertick.timers_2 USING btree (partition, due_at);

CREATE INDEX timers_2_partition_tenant_id_priority_queue_id_due_at_idx ON evertick.timers_2 USING btree (partition, tenant_id, priority, queue_id, due_at);

CREATE INDEX timers_3_gate_id_fire_at_job_id_idx ON evertick.timers_3 USING btree (gate_id, fire_at, job_id) WHERE ((gate_id < 0) AND (due_at < 'infinity'::timestamp with time zone) AND (kind <> 'retry'::evertick.timer_kind));

CREATE INDEX timers_3_partition_due_at_idx ON evertick.timers_3 USING btree (partition, due_at);

CREATE INDEX timers_3_partition_tenant_id_priority_queue_id_due_at_idx ON evertick.timers_3 USING btree (partition, tenant_id, priority, queue_id, due_at);

CREATE INDEX timers_4_gate_id_fire_at_job_id_idx ON evertick.timers_4 USING btree (gate_id, fire_at, job_id) WHERE ((gate_id < 0) AND (due_at < 'infinity'::timestamp with time zone) AND (kind <> 'retry'::evertick.timer_kind));

CREATE INDEX timers_4_partition_due_at_idx ON evertick.timers_4 USING btree (partition, due_at);

CREATE INDEX timers_4_partition_tenant_id_priority_queue_id_due_at_idx ON evertick.timers_4 USING btree (partition, tenant_id, priority, queue_id, due_at);

CREATE INDEX timers_5_gate_id_fire_at_job_id_idx ON evertick.timers_5 USING btree (gate_id, fire_at, job_id) WHERE ((gate_id < 0) AND (due_at < 'infinity'::timestamp with time zone) AND (kind <> 'retry'::evertick.timer_kind));

CREATE INDEX timers_5_partition_due_at_idx ON evertick.timers_5 USING btree (partition, due_at);

CREATE INDEX timers_5_partition_tenant_id_priority_queue_id_due_at_idx ON evertick.timers_5 USING btree (partition, tenant_id, priority, queue_id, due_at);

CREATE INDEX timers_6_gate_id_fire_at_job_id_idx ON evertick.timers_6 USING btree (gate_id, fire_at, job_id) WHERE ((gate_id < 0) AND (due_at < 'infinity'::timestamp with time zone) AND (kind <> 'retry'::evertick.timer_kind));

CREATE INDEX timers_6_partition_due_at_idx ON evertick.timers_6 USING btree (partition, due_at);

CREATE INDEX timers_6_partition_tenant_id_priority_queue_id_due_at_idx ON evertick.timers_6 USING btree (partition, tenant_id, priority, queue_id, due_at);

CREATE INDEX timers_7_gate_id_fire_at_job_id_idx ON evertick.timers_7 USING btree (gate_id, fire_at, job_id) WHERE ((gate_id < 0) AND (due_at < 'infinity'::timestamp with time zone) AND (kind <> 'retry'::evertick.timer_kind));

CREATE INDEX timers_7_partition_due_at_idx ON evertick.timers_7 USING btree (partition, due_at);

CREATE INDEX timers_7_partition_tenant_id_priority_queue_id_due_at_idx ON evertick.timers_7 USING btree (partition, tenant_id, priority, queue_id, due_at);

CREATE INDEX withdrawals_by_age ON evertick.withdrawals USING btree (withdrawn_at);

CREATE INDEX workers_of_tenant ON evertick.workers USING btree (tenant_id);

ALTER INDEX evertick.timers_in_order ATTACH PARTITION evertick.timers_0_gate_id_fire_at_job_id_idx;

ALTER INDEX evertick.timers_due ATTACH PARTITION evertick.timers_0_partition_due_at_idx;

ALTER INDEX evertick.timers_of_tenant ATTACH PARTITION evertick.timers_0_partition_tenant_id_priority_queue_id_due_at_idx;

ALTER INDEX evertick.timers_pkey ATTACH PARTITION evertick.timers_0_pkey;

ALTER INDEX evertick.timers_in_order ATTACH PARTITION evertick.timers_1_gate_id_fire_at_job_id_idx;

ALTER INDEX evertick.timers_due ATTACH PARTITION evertick.timers_1_partition_due_at_idx;

ALTER INDEX evertick.timers_of_tenant ATTACH PARTITION evertick.timers_1_partition_tenant_id_priority_queue_id_due_at_idx;

ALTER INDEX evertick.timers_pkey ATTACH PARTITION evertick.timers_1_pkey;

ALTER INDEX evertick.timers_in_order ATTACH PARTITION evertick.timers_2_gate_id_fire_at_job_id_idx;

ALTER INDEX evertick.timers_due ATTACH PARTITION evertick.timers_2_partition_due_at_idx;

ALTER INDEX evertick.timers_of_tenant ATTACH PARTITION evertick.timers_2_partition_tenant_id_priority_queue_id_due_at_idx;

ALTER INDEX evertick.timers_pkey ATTACH PARTITION evertick.timers_2_pkey;

ALTER INDEX evertick.timers_in_order ATTACH PARTITION evertick.timers_3_gate_id_fire_at_job_id_idx;

ALTER INDEX evertick.timers_due ATTACH PARTITION evertick.timers_3_partition_due_at_idx;

ALTER INDEX evertick.timers_of_tenant ATTACH PARTITION evertick.timers_3_partition_tenant_id_priority_queue_id_due_at_idx;

ALTER INDEX evertick.timers_pkey ATTACH PARTITION evertick.timers_3_pkey;

ALTER INDEX evertick.timers_in_order ATTACH PARTITION evertick.timers_4_gate_id_fire_at_job_id_idx;

ALTER INDEX evertick.timers_due ATTACH PARTITION evertick.timers_4_partition_due_at_idx;

ALTER INDEX evertick.timers_of_tenant ATTACH PARTITION evertick.timers_4_partition_tenant_id_priority_queue_id_due_at_idx;

ALTER INDEX evertick.timers_pkey ATTACH PARTITION evertick.timers_4_pkey;

ALTER INDEX evertick.timers_in_order ATTACH PARTITION evertick.timers_5_gate_id_fire_at_job_id_idx;

ALTER INDEX evertick.timers_due ATTACH PARTITION evertick.timers_5_partition_due_at_idx;

ALTER INDEX evertick.timers_of_tenant ATTACH PARTITION evertick.timers_5_partition_tenant_id_priority_queue_id_due_at_idx;

ALTER INDEX evertick.timers_pkey ATTACH PARTITION evertick.timers_5_pkey;

ALTER INDEX evertick.timers_in_order ATTACH PARTITION evertick.timers_6_gate_id_fire_at_job_id_idx;

ALTER INDEX evertick.timers_due ATTACH PARTITION evertick.timers_6_partition_due_at_idx;

ALTER INDEX evertick.timers_of_tenant ATTACH PARTITION evertick.timers_6_partition_tenant_id_priority_queue_id_due_at_idx;

ALTER INDEX evertick.timers_pkey ATTACH PARTITION evertick.timers_6_pkey;

ALTER INDEX evertick.timers_in_order ATTACH PARTITION evertick.timers_7_gate_id_fire_at_job_id_idx;

ALTER INDEX evertick.timers_due ATTACH PARTITION evertick.timers_7_partition_due_at_idx;

ALTER INDEX evertick.timers_of_tenant ATTACH PARTITION evertick.timers_7_partition_tenant_id_priority_queue_id_due_at_idx;

ALTER INDEX evertick.timers_pkey ATTACH PARTITION evertick.timers_7_pkey;

CREATE TRIGGER stream_audit_log AFTER INSERT ON evertick.audit_log REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION evertick.stream_audit_log();

CREATE TRIGGER stream_changed_gaps AFTER UPDATE ON evertick.gaps REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION evertick.stream_gaps();

CREATE TRIGGER stream_changed_jobs AFTER UPDATE ON evertick.jobs REFERENCING OLD TABLE AS former NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION evertick.stream_changed_jobs();

CREATE TRIGGER stream_finished_jobs AFTER INSERT ON evertick.finished_jobs REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION evertick.stream_finished_jobs();

CREATE TRIGGER stream_gaps AFTER INSERT ON evertick.gaps REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION evertick.stream_gaps();

CREATE TRIGGER stream_jobs AFTER INSERT ON evertick.jobs REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION evertick.stream_jobs();

CREATE TRIGGER stream_outcomes AFTER INSERT ON evertick.outcomes REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION evertick.stream_outcomes();

CREATE TRIGGER stream_removed_gaps AFTER DELETE ON evertick.gaps REFERENCING OLD TABLE AS removed FOR EACH STATEMENT EXECUTE FUNCTION evertick.stream_removed_gaps();

CREATE TRIGGER stream_reopened_jobs AFTER DELETE ON evertick.finished_jobs REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION evertick.stream_finished_jobs();

CREATE TRIGGER stream_withdrawals AFTER INSERT ON evertick.withdrawals REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION evertick.stream_withdrawals();

ALTER TABLE ONLY evertick.alert_targets
    ADD CONSTRAINT alert_targets_tenant_id_fkey FOREIGN KEY (tenant_id) REFERENCES evertick.tenants(tenant_id);

ALTER TABLE ONLY evertick.api_keys
    ADD CONSTRAINT api_keys_tenant_id_fkey FOREIGN KEY (tenant_id) REFERENCES evertick.tenants(tenant_id);

ALTER TABLE ONLY evertick.broker_connections
    ADD CONSTRAINT broker_connections_tenant_id_fkey FOREIGN KEY (tenant_id) REFERENCES evertick.tenants(tenant_id);

ALTER TABLE ONLY evertick.event_sinks
    ADD CONSTRAINT event_sinks_tenant_id_fkey FOREIGN KEY (tenant_id) REFERENCES evertick.event_streams(tenant_id) ON DELETE CASCADE;

ALTER TABLE ONLY evertick.event_streams
    ADD CONSTRAINT event_streams_tenant_id_fkey FOREIGN KEY (tenant_id) REFERENCES evertick.tenants(tenant_id);

ALTER TABLE ONLY evertick.sessions
    ADD CONSTRAINT sessions_key_id_fkey FOREIGN KEY (key_id) REFERENCES evertick.api_keys(key_id) ON DELETE CASCADE;

ALTER TABLE ONLY evertick.smeared_jobs
    ADD CONSTRAINT smeared_jobs_smear_id_fkey FOREIGN KEY (smear_id) REFERENCES evertick.smears(smear_id) ON DELETE CASCADE;

ALTER TABLE ONLY evertick.smears
    ADD CONSTRAINT smears_tenant_id_fkey FOREIGN KEY (tenant_id) REFERENCES evertick.tenants(tenant_id);

ALTER TABLE ONLY evertick.target_hosts
    ADD CONSTRAINT target_hosts_tenant_id_fkey FOREIGN KEY (tenant_id) REFERENCES evertick.tenants(tenant_id);

ALTER TABLE ONLY evertick.webhook_secrets
    ADD CONSTRAINT webhook_secrets_tenant_id_fkey FOREIGN KEY (tenant_id) REFERENCES evertick.tenants(tenant_id);
