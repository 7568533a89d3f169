-- The event stream. Triggers write `new_events` (migration 0006). Called by janitors, which give events their positions
-- and drop old days; by dispatchers, which send them to sinks; and by use cases.

-- name: last_drawn
-- The number of a new event that was drawn last. Read at the beginning of a transaction, before it has an id.
SELECT coalesce(pg_sequence_last_value('new_events_number_seq'), 0);

-- name: lock_positions
-- Who gets the lock gives positions until its transaction ends, and has an id from now on. No row: another session does.
SELECT true FROM event_positions FOR UPDATE SKIP LOCKED;

-- name: has_new
-- Index: new_events_pkey.
SELECT EXISTS (SELECT FROM new_events WHERE number > (SELECT moved_up_to FROM event_positions));

-- name: give_positions
-- Moves the first new events to the stream. In a statement after `lock_positions`: it sees all that had a position
-- before. What is not committed yet is moved later. An outcome without an attempt, which a fail-over lost, is no run.
-- `drawn`: the last number that was drawn before this transaction had an id. Transactions that drew it and smaller ones
-- had theirs, so it is smaller. The end of a snapshot does not say this: running transactions may lie behind it.
-- Indexes: new_events_pkey, attempts_pkey.
WITH clock AS MATERIALIZED (
    SELECT microseconds(clock_at()) AS now_us
),
taken AS MATERIALIZED (
    DELETE FROM new_events
     WHERE number IN (SELECT number FROM new_events
                       WHERE number > (SELECT moved_up_to FROM event_positions)
                       ORDER BY number
                       LIMIT :most::integer)
 RETURNING *
),
placed AS MATERIALIZED (
    SELECT greatest(clock.now_us, event_positions.last_position + 1) - 1 + row_number() OVER (ORDER BY taken.number)
               AS position,
           taken.tenant_id, taken.at, coalesce(taken.job_id, attempt.job_id) AS job_id,
           coalesce(taken.fire_at, attempt.fire_at) AS fire_at, taken.last_at, taken.ticks, taken.lane_id, taken.seq,
           taken.entry_id, coalesce(taken.spec_version, attempt.spec_version) AS spec_version, taken.type, taken.detail
      FROM taken
     CROSS JOIN clock
     CROSS JOIN event_positions
      LEFT JOIN LATERAL (
               SELECT job_id, fire_at, spec_version
                 FROM attempts
                WHERE attempts.lane_id = taken.lane_id AND attempts.seq = taken.seq
                LIMIT 1
           ) AS attempt ON true
     WHERE taken.lane_id IS NULL OR attempt.job_id IS NOT NULL
),
added AS (
    INSERT INTO events (position, tenant_id, at, job_id, fire_at, last_at, ticks, lane_id, seq, entry_id, spec_version,
                        type, detail)
    SELECT position, tenant_id, at, job_id, fire_at, last_at, ticks, lane_id, seq, entry_id, spec_version, type, detail
      FROM placed
     ORDER BY position
),
-- Sinks learn what there is for them.
reached AS (
    SELECT tenant_id, max(position) AS position FROM placed GROUP BY tenant_id
),
-- One that had all of them before has nothing to miss, however long ago its last event was.
told AS (
    UPDATE event_sinks sink
       SET latest = new.position,
           cursor = CASE
                        WHEN sink.cursor < sink.latest THEN sink.cursor
                        ELSE greatest(sink.cursor, (SELECT min(position) - 1 FROM placed))
                    END
      FROM (SELECT stream.tenant_id, max(reached.position) AS position
              FROM event_streams stream
              JOIN reached ON reached.tenant_id = stream.tenant_id OR stream.is_of_all
             GROUP BY stream.tenant_id) AS new
     WHERE sink.tenant_id = new.tenant_id
),
-- Transactions that drew the numbers up to `drawn` have ended: all that they left is moved now.
settled AS (
    SELECT drawn_on = pg_postmaster_start_time() AND drawn_before <= pg_snapshot_xmin(pg_current_snapshot())
               AND (SELECT count(*) FROM taken) < :most::integer AS is_settled,
           drawn_on <> pg_postmaster_start_time() AS is_of_another_server
      FROM event_positions
),
moved AS (
    UPDATE event_positions
       SET last_position = coalesce((SELECT max(position) FROM placed), last_position),
           moved_up_to = CASE WHEN is_settled THEN drawn ELSE moved_up_to END,
           drawn = CASE WHEN is_settled OR is_of_another_server THEN :drawn::bigint ELSE drawn END,
           drawn_before = CASE WHEN is_settled OR is_of_another_server THEN pg_current_xact_id()
                               ELSE drawn_before END,
           drawn_on = pg_postmaster_start_time()
      FROM settled
     WHERE EXISTS (SELECT FROM taken)
)
SELECT count(*) FROM taken;

-- name: missing_days
-- Which of the days that the next positions lie in is no partition yet.
SELECT DISTINCT day::date AS day
  FROM event_positions
 CROSS JOIN LATERAL (VALUES (0), (3600000000)) AS later (us)
 CROSS JOIN LATERAL (
           SELECT date_trunc('day', (timestamptz 'epoch' + (greatest(microseconds(clock_at()), last_position) + later.us)
                                                           * interval '1 microsecond') AT TIME ZONE 'UTC') AS day
       ) AS place
 WHERE to_regclass('events_' || to_char(day, 'YYYYMMDD')) IS NULL
 ORDER BY day;

-- name: add_day
SELECT add_event_day(:day::date);

-- name: expired_days
-- Days of events that ended before an instant.
SELECT day
  FROM pg_inherits
  JOIN pg_class child ON child.oid = pg_inherits.inhrelid
 CROSS JOIN to_date(right(child.relname, 8), 'YYYYMMDD') AS day
 WHERE pg_inherits.inhparent = 'events'::regclass AND (day + 1)::timestamp AT TIME ZONE 'UTC' < :before_at::timestamptz
 ORDER BY day;

-- name: drop_day
WITH kept AS (
    UPDATE event_positions
       SET kept_from = greatest(kept_from, microseconds((:day::date + 1)::timestamp AT TIME ZONE 'UTC'))
)
SELECT drop_event_day(:day::date);

-- name: page
-- The events of a tenant, or of all tenants, after a position and up to another. Indexes: events_of_tenant, events_pkey,
-- job_versions_pkey, audit_log_pkey, tenants_pkey.
SELECT event.position, event.tenant_id, event.type::text AS type, event.at, event.job_id, event.fire_at, event.last_at,
       event.ticks, event.lane_id, event.seq, event.spec_version, event.detail, version.name, version.spec,
       entry.actor, entry.action, entry.subject, entry.request_id
  FROM (
       (SELECT *
          FROM events
         -- Compared as a pair, which events_pkey cannot do: it would go through the events of all tenants.
         WHERE NOT :is_of_all::boolean AND tenant_id = :tenant_id::bigint
           AND (tenant_id, position) > (:tenant_id::bigint, :after::bigint) AND position <= :until::bigint
           AND (:types::text[] IS NULL OR type::text = ANY(:types::text[]))
         ORDER BY position
         LIMIT :most::integer)
        UNION ALL
       (SELECT *
          FROM events
         WHERE :is_of_all::boolean AND position > :after::bigint AND position <= :until::bigint
           AND (:types::text[] IS NULL OR type::text = ANY(:types::text[]))
         ORDER BY position
         LIMIT :most::integer)
       ) AS event
  LEFT JOIN LATERAL (
           -- What the janitor may remove from a version is never told, so that an event stays the same.
           SELECT version.name,
                  CASE WHEN event.type BETWEEN 'job.created' AND 'job.deleted'
                       THEN (version.spec::jsonb - 'labels' #- '{target,headers}')::text
                  END AS spec
             FROM job_versions version
            WHERE version.job_id = event.job_id AND version.spec_version = event.spec_version
            LIMIT 1
       ) AS version ON true
  LEFT JOIN LATERAL (
           SELECT actor, action, subject, request_id FROM audit_log WHERE audit_log.entry_id = event.entry_id LIMIT 1
       ) AS entry ON true
 ORDER BY event.position;

-- name: looked_until
-- Up to which position of a range so many events lie, whatever their types. Indexes: events_of_tenant, events_pkey.
SELECT coalesce(
           (SELECT position
              FROM events
             WHERE NOT :is_of_all::boolean AND tenant_id = :tenant_id::bigint
               AND (tenant_id, position) > (:tenant_id::bigint, :after::bigint) AND position <= :until::bigint
             ORDER BY position
            OFFSET :most::integer - 1
             LIMIT 1),
           (SELECT position
              FROM events
             WHERE :is_of_all::boolean AND position > :after::bigint AND position <= :until::bigint
             ORDER BY position
            OFFSET :most::integer - 1
             LIMIT 1),
           :until::bigint);

-- name: runs
-- Finished runs, attempt by attempt up to the last one; one row without an attempt for a run that was withdrawn before
-- its first. Indexes: attempts_of_run, withdrawals_pkey, outcomes_pkey, job_versions_pkey, queues_pkey.
SELECT given.position, given.job_id, given.fire_at, coalesce(attempt.reason, withdrawal.reason)::text AS reason,
       coalesce(attempt.spec_version, withdrawal.spec_version) AS spec_version, false AS has_timer, false AS is_queued,
       NULL::bigint AS waits_at_gate, given.is_withdrawn, attempt.lane_id, attempt.seq, attempt.attempt,
       false AS is_leased, outcome.result::text AS result, outcome.started_at, outcome.finished_at, outcome.worker,
       outcome.code, outcome.error, version.name, version.handler, queue.name AS queue, NULL::text AS progress,
       attempt.due_at, excerpt_of(outcome.excerpt, outcome.output) AS excerpt
  FROM (SELECT position, job_id, fire_at, from_seq, coalesce(last_seq, 9223372036854775807) AS last_seq,
               last_seq IS NULL AS is_withdrawn
          FROM unnest(:positions::bigint[], :job_ids::bigint[], :fire_ats::timestamptz[], :from_seqs::bigint[],
                      :last_seqs::bigint[]) AS run (position, job_id, fire_at, from_seq, last_seq)) AS given
  LEFT JOIN LATERAL (
           SELECT lane_id, seq, attempt, reason, spec_version, due_at
             FROM attempts
            WHERE attempts.job_id = given.job_id AND attempts.fire_at = given.fire_at
              AND attempts.seq >= given.from_seq AND attempts.seq <= given.last_seq
            -- Always; it keeps one search per run, where a join might read all.
            LIMIT 9223372036854775807
       ) AS attempt ON true
  LEFT JOIN LATERAL (
           SELECT reason, spec_version
             FROM withdrawals
            WHERE given.is_withdrawn
              AND withdrawals.job_id = given.job_id AND withdrawals.fire_at = given.fire_at
            LIMIT 1
       ) AS withdrawal ON true
  LEFT JOIN LATERAL (
           SELECT result, started_at, finished_at, worker, code, error, excerpt, output
             FROM outcomes
            WHERE outcomes.lane_id = attempt.lane_id AND outcomes.seq = attempt.seq
            LIMIT 1
       ) AS outcome ON true
  LEFT JOIN LATERAL (
           SELECT name, handler
             FROM job_versions
            WHERE job_versions.job_id = given.job_id
              AND job_versions.spec_version = coalesce(attempt.spec_version, withdrawal.spec_version)
            LIMIT 1
       ) AS version ON true
  LEFT JOIN LATERAL (
           SELECT name FROM queues WHERE queues.queue_id = lane_queue(attempt.lane_id)::integer LIMIT 1
       ) AS queue ON true
 WHERE coalesce(attempt.reason, withdrawal.reason) IS NOT NULL
 ORDER BY given.position, attempt.seq;

-- name: stream
-- A tenant's stream, from which position on its events are kept, how far the stream reaches, and the first event that
-- its sink has not got. Indexes: event_streams_pkey, event_sinks_pkey, events_of_tenant, events_pkey.
SELECT stream.created_at, stream.is_of_all, greatest(stream.since, positions.kept_from) AS kept_after,
       positions.last_position, sink.target::text AS target, sink.types, sink.cursor, sink.latest, sink.delivered_at,
       sink.failing_since, sink.failures, sink.last_error, sink.next_try_at,
       CASE
           WHEN sink.cursor >= sink.latest THEN NULL
           WHEN stream.is_of_all
               THEN (SELECT position FROM events WHERE position > sink.cursor ORDER BY position LIMIT 1)
           ELSE (SELECT position FROM events
                  WHERE events.tenant_id = stream.tenant_id
                    AND (events.tenant_id, position) > (stream.tenant_id, sink.cursor)
                  ORDER BY position
                  LIMIT 1)
       END AS waiting_from, clock_at() AS now_at
  FROM event_streams stream
 CROSS JOIN event_positions positions
  LEFT JOIN event_sinks sink ON sink.tenant_id = stream.tenant_id
 WHERE stream.tenant_id = :tenant_id::bigint;

-- name: kept_after
-- After which position the events of a tenant's stream are kept. Index: event_streams_pkey.
SELECT greatest(stream.since, positions.kept_from)
  FROM event_streams stream
 CROSS JOIN event_positions positions
 WHERE stream.tenant_id = :tenant_id::bigint;

-- name: put_stream
-- Keeps a tenant's events from now on. A stream that is there goes on. A new one begins at a position of its own: a
-- reader of one that was removed before has a smaller one, also if no event had a position meanwhile.
WITH begun AS (
    UPDATE event_positions
       SET last_position = greatest(last_position + 1, microseconds(clock_at()))
     WHERE NOT EXISTS (SELECT FROM event_streams WHERE tenant_id = :tenant_id::bigint)
 RETURNING last_position
)
INSERT INTO event_streams (tenant_id, created_at, since, is_of_all)
SELECT :tenant_id::bigint, clock_at(), coalesce((SELECT last_position FROM begun), last_position), :is_of_all::boolean
  FROM event_positions
    ON CONFLICT (tenant_id) DO UPDATE SET is_of_all = excluded.is_of_all;

-- name: remove_stream
DELETE FROM event_streams WHERE tenant_id = :tenant_id::bigint RETURNING tenant_id;

-- name: put_sink
-- Sends a stream's events from now on. One that is there goes on where it is, and is tried at once; whoever sends to the
-- old target has lost its lease.
INSERT INTO event_sinks (tenant_id, cursor, latest, types, target)
SELECT :tenant_id::bigint, last_position, last_position, :types::text[], :target::text::json FROM event_positions
    ON CONFLICT (tenant_id) DO UPDATE
   SET types = excluded.types, target = excluded.target, epoch = event_sinks.epoch + 1, leased_until = '-infinity',
       next_try_at = '-infinity';

-- name: remove_sink
DELETE FROM event_sinks WHERE tenant_id = :tenant_id::bigint;

-- name: lease_sinks
-- Leases sinks that have something to send. The epoch fences what their holders before do; it is a time, so that neither
-- a sink that was removed and set again nor a fail-over repeats one. A database that may be a restored copy sends nothing
-- (`confirmed_server`). Index: event_sinks_behind.
UPDATE event_sinks sink
   SET epoch = greatest(sink.epoch + 1, microseconds(clock_at())), leased_until = clock_at() + :lease_seconds::float * interval '1 second'
  FROM (SELECT tenant_id
          FROM event_sinks
         WHERE cursor < latest AND next_try_at <= clock_at() AND leased_until < clock_at()
           AND EXISTS (SELECT FROM confirmed_server)
         ORDER BY next_try_at
         LIMIT :most::integer
           FOR UPDATE SKIP LOCKED) AS behind,
       event_streams stream
 WHERE sink.tenant_id = behind.tenant_id AND stream.tenant_id = sink.tenant_id
RETURNING sink.tenant_id, sink.epoch, sink.cursor, sink.latest, sink.failures, sink.types, sink.target::text AS target,
          stream.is_of_all;

-- name: advance
-- Notes what was delivered, and extends the lease. No row: another has the lease. Index: event_sinks_pkey.
UPDATE event_sinks
   SET cursor = :cursor::bigint, delivered_at = clock_at(), failing_since = NULL, failures = 0, last_error = NULL,
       leased_until = clock_at() + :lease_seconds::float * interval '1 second'
 WHERE tenant_id = :tenant_id::bigint AND epoch = :epoch::bigint
RETURNING latest;

-- name: release
-- Gives a lease back. With an error, the next try comes after a pause. Index: event_sinks_pkey.
UPDATE event_sinks
   SET leased_until = '-infinity', next_try_at = clock_at() + :wait_seconds::float * interval '1 second',
       failures = failures + (:error::text IS NOT NULL)::integer,
       failing_since = CASE WHEN :error::text IS NULL THEN failing_since ELSE coalesce(failing_since, clock_at()) END,
       last_error = coalesce(:error::text, last_error)
 WHERE tenant_id = :tenant_id::bigint AND epoch = :epoch::bigint;

-- name: reached
-- How far the stream reaches, and whether tenants have events after a position. Index: events_of_tenant.
SELECT given.tenant_id, positions.last_position,
       (SELECT true FROM events
         WHERE events.tenant_id = given.tenant_id
           AND (events.tenant_id, events.position) > (given.tenant_id, given.after)
         LIMIT 1) IS NOT NULL AS has_more
  FROM unnest(:tenant_ids::bigint[], :afters::bigint[]) AS given (tenant_id, after)
 CROSS JOIN event_positions positions;

-- name: lag
-- How many sinks are behind, or fail, which has failed for longest, and how old the oldest event without a position is.
-- One row for each tenant that has a sink is read.
SELECT (SELECT count(*) FROM event_sinks WHERE cursor < latest) AS sinks_behind,
       (SELECT count(*) FROM event_sinks WHERE failing_since IS NOT NULL) AS sinks_failing,
       coalesce(extract(epoch FROM clock_at() - (SELECT at FROM new_events
                                               WHERE number > (SELECT moved_up_to FROM event_positions)
                                               ORDER BY number
                                               LIMIT 1)), 0)::float
           AS unplaced_seconds,
       worst.tenant_id AS failing_tenant_id, worst.last_error
  FROM (VALUES (true)) AS always
  LEFT JOIN LATERAL (
           SELECT tenant_id, last_error
             FROM event_sinks
            WHERE failing_since IS NOT NULL
            ORDER BY failing_since
            LIMIT 1
       ) AS worst ON true;
