-- Outcomes: how attempts end and what follows. Called by workers, dispatchers and the reaper.

-- name: record
-- Ends attempts, each with the retry or the dead letter that follows it; the first writer wins. Index: outcomes_pkey.
-- Plain successes, which are most, are passed with fewer columns; codes and excerpts are left out if none has any.
--
-- It does not wait for users: an attempt whose run or job another session has locked is left as it is, with its lease,
-- and is returned as busy.
--
-- Rows of open_runs are looked up one by one, and then changed by their places: a join might read all of the index, if
-- the plan was made while the table was empty.
-- Something may follow only an attempt that is there: a fail-over may have lost it, or given its place to another job.
-- Looked up before anything is locked (decision 35).
WITH unknown AS MATERIALIZED (
    SELECT lane_id, seq
      FROM unnest(:next_lane_ids::bigint[], :next_seqs::bigint[], :next_job_ids::bigint[])
           AS follow (lane_id, seq, job_id)
     WHERE (SELECT job_id
              FROM attempts
             WHERE attempts.lane_id = follow.lane_id AND attempts.seq = follow.seq
             LIMIT 1) IS DISTINCT FROM follow.job_id
),
listed AS MATERIALIZED (
    SELECT listed.lane_id, listed.seq, run.row_id, run.seq AS run_seq, run.row_id IS DISTINCT FROM guard.row_id AS is_busy
      FROM unnest(:listed_lane_ids::bigint[], :listed_seqs::bigint[], :listed_job_ids::bigint[],
                  :listed_fire_ats::timestamptz[]) AS listed (lane_id, seq, job_id, fire_at)
      LEFT JOIN LATERAL (
               SELECT open_runs.ctid AS row_id, open_runs.seq
                 FROM open_runs
                WHERE open_runs.job_id = listed.job_id AND open_runs.fire_at = listed.fire_at
                LIMIT 1
           ) AS run ON true
      -- The lock on a run's row guards the outcomes of its attempts: a cancellation takes the lock, too. A row that was
      -- changed since this statement began has another place by now.
      LEFT JOIN LATERAL (
               SELECT open_runs.ctid AS row_id
                 FROM open_runs
                WHERE open_runs.job_id = listed.job_id AND open_runs.fire_at = listed.fire_at
                LIMIT 1
                  FOR UPDATE SKIP LOCKED
           ) AS guard ON true
     WHERE (SELECT count(*) FROM unknown) >= 0  -- always; after that
),
-- What follows an attempt that did not succeed: few rows, in columns of their own. Nothing follows in a job that was
-- deleted; with the lock a deletion at this moment sees the retry timer, or this statement sees the deletion.
follow AS MATERIALIZED (
    SELECT follow.*, job.tenant_id, job.status = 'deleted' AS is_withdrawn, job.tenant_id IS NOT NULL AS is_locked
      FROM unnest(
               :next_lane_ids::bigint[], :next_seqs::bigint[], :next_job_ids::bigint[], :next_fire_ats::timestamptz[],
               :next_spec_versions::integer[], :next_reasons::text[], :next_attempts::integer[],
               :next_delays::float[], :dead_reasons::text[]
           ) AS follow (lane_id, seq, job_id, fire_at, spec_version, reason, attempt, delay_seconds, dead_reason)
      LEFT JOIN LATERAL (
               SELECT tenant_id, status FROM jobs WHERE jobs.job_id = follow.job_id LIMIT 1 FOR KEY SHARE SKIP LOCKED
           ) AS job ON true
     WHERE (SELECT count(*) FROM unknown) >= 0  -- always; after that
),
busy AS MATERIALIZED (
    SELECT lane_id, seq FROM listed WHERE is_busy
     UNION
    SELECT lane_id, seq
      FROM follow
     WHERE NOT is_locked AND (SELECT true FROM jobs WHERE jobs.job_id = follow.job_id LIMIT 1)
),
given AS (
    SELECT lane_id, seq, timestamptz 'epoch' + started_us * interval '1 microsecond' AS started_at,
           timestamptz 'epoch' + finished_us * interval '1 microsecond' AS finished_at,
           'success'::outcome_result AS result, code, true AS is_final, NULL::text AS error,
           excerpt, NULL::text AS output, held_ms
      FROM unnest(:plain_lane_ids::bigint[], :plain_seqs::bigint[], :plain_started_us::bigint[],
                  :plain_finished_us::bigint[], :plain_codes::integer[], :plain_excerpts::text[],
                  :plain_held_ms::integer[])
           AS plain (lane_id, seq, started_us, finished_us, code, excerpt, held_ms)
     UNION ALL
    SELECT lane_id, seq, started_at, finished_at, result::outcome_result, code, is_final, error, excerpt, output,
           held_ms
      FROM unnest(
               :lane_ids::bigint[], :seqs::bigint[], :started_ats::timestamptz[], :finished_ats::timestamptz[],
               :results::text[], :codes::integer[], :finals::boolean[], :errors::text[], :excerpts::text[],
               :outputs::text[], :held_ms::integer[]
           ) AS told (lane_id, seq, started_at, finished_at, result, code, is_final, error, excerpt, output, held_ms)
     WHERE ((lane_id, seq) IN (SELECT lane_id, seq FROM unknown)) IS NOT TRUE
),
recorded AS (
    INSERT INTO outcomes (lane_id, seq, started_at, finished_at, result, code, is_final, worker, error, excerpt, output,
                          held_ms)
    SELECT lane_id, seq, started_at, finished_at, result, code, is_final, :worker::text, error, excerpt, output,
           held_ms
      FROM given
     -- IS TRUE and the like keep this a look-up in a hash table: a join might compare each with each.
     WHERE ((lane_id, seq) IN (SELECT lane_id, seq FROM busy)) IS NOT TRUE
     ORDER BY lane_id, seq  -- so that two sessions that record the same ones cannot deadlock
        ON CONFLICT DO NOTHING
 RETURNING lane_id, seq
),
following AS MATERIALIZED (
    SELECT follow.*, lane_queue(follow.lane_id)::integer AS queue_id,
           run.row_id, run.gate_id
      FROM follow
      LEFT JOIN LATERAL (
               SELECT open_runs.ctid AS row_id, gate_id
                 FROM open_runs
                WHERE open_runs.job_id = follow.job_id AND open_runs.fire_at = follow.fire_at
                  AND (lane_is_gated(follow.lane_id) OR follow.is_withdrawn)
                LIMIT 1
           ) AS run ON true
     WHERE follow.is_locked AND ((follow.lane_id, follow.seq) IN (SELECT lane_id, seq FROM recorded)) IS TRUE
),
retried AS (
    INSERT INTO timers (job_id, fire_at, due_at, tenant_id, rule_id, gate_id, queue_id, spec_version, kind, reason,
                        partition, attempt, priority)
    SELECT job_id, fire_at, clock_at() + delay_seconds * interval '1 second', tenant_id, 0, gate_id, queue_id,
           spec_version, 'retry', reason::run_reason, (job_id & 255)::smallint, attempt, lane_priority(lane_id)
      FROM following
     WHERE dead_reason IS NULL AND NOT is_withdrawn
        ON CONFLICT DO NOTHING
),
stayed AS (
    INSERT INTO open_runs (job_id, fire_at, lane_id, seq)
    SELECT job_id, fire_at, lane_id, seq
      FROM following
     WHERE dead_reason IS NULL AND NOT is_withdrawn AND gate_id IS NULL
        ON CONFLICT DO NOTHING
),
-- Until its retry a run leaves its gate, unless the gate keeps an order.
leaving AS MATERIALIZED (
    SELECT row_id, gate_id FROM following WHERE gate_id > 0 AND dead_reason IS NULL AND NOT is_withdrawn
),
stepped_out AS (
    UPDATE open_runs SET gate_id = NULL, is_inside = false WHERE ctid = ANY(ARRAY(SELECT row_id FROM leaving))
),
withdrawn AS (
    INSERT INTO withdrawals (job_id, fire_at, withdrawn_at, spec_version, reason)
    SELECT job_id, fire_at, clock_at(), spec_version, reason::run_reason
      FROM following
     WHERE dead_reason IS NULL AND is_withdrawn
        ON CONFLICT DO NOTHING
),
buried AS (
    INSERT INTO dead_letters (job_id, fire_at, tenant_id, lane_id, seq, died_at, spec_version, attempt, reason)
    SELECT job_id, fire_at, tenant_id, lane_id, seq, clock_at(), spec_version, attempt, dead_reason
      FROM following
     WHERE dead_reason IS NOT NULL
        ON CONFLICT DO NOTHING
),
-- A run is over with its attempt, unless a later attempt of it is under way, or this one is to be followed.
closed AS (
    DELETE FROM open_runs
     WHERE ctid = ANY(ARRAY(
               SELECT row_id
                 FROM listed
                WHERE run_seq <= seq
                  AND ((lane_id, seq) IN (SELECT lane_id, seq FROM recorded)) IS TRUE
                  AND ((lane_id, seq) IN (SELECT lane_id, seq FROM follow WHERE dead_reason IS NULL)) IS NOT TRUE))
 RETURNING gate_id
),
-- A withdrawn run may be open from its attempts before.
dropped AS (
    DELETE FROM open_runs
     WHERE ctid = ANY(ARRAY(SELECT row_id FROM following WHERE is_withdrawn AND row_id IS NOT NULL))
 RETURNING gate_id
),
-- Of this holder only, whatever ids it names, and not while it covers what could not be recorded.
released AS (
    DELETE FROM leases
     WHERE lease_id = ANY(:done_leases::bigint[]) AND (worker = :holder::text) IS TRUE  -- so, it goes by lease_id
       AND NOT EXISTS (SELECT FROM busy
                        WHERE busy.lane_id = leases.lane_id AND busy.seq BETWEEN leases.first_seq AND leases.last_seq)
)
-- The given ones that were not recorded: almost always none, so that the answer is short. And gates that were left.
SELECT others.lane_id, others.seq, others.is_busy, NULL::bigint AS gate_id
  FROM (SELECT count(*) AS count FROM recorded) AS all_recorded
 CROSS JOIN LATERAL (
           SELECT given.lane_id, given.seq,
                  ((given.lane_id, given.seq) IN (SELECT lane_id, seq FROM busy)) IS TRUE AS is_busy
             FROM (SELECT lane_id, seq FROM unnest(:plain_lane_ids::bigint[], :plain_seqs::bigint[]) AS plain (lane_id, seq)
                    UNION ALL
                   SELECT lane_id, seq FROM unnest(:lane_ids::bigint[], :seqs::bigint[]) AS told (lane_id, seq)) AS given
            WHERE all_recorded.count < cardinality(:plain_seqs::bigint[]) + cardinality(:seqs::bigint[])
              AND ((given.lane_id, given.seq) IN (SELECT lane_id, seq FROM recorded)) IS NOT TRUE
       ) AS others
 UNION ALL
SELECT NULL, NULL, NULL, gate_id
  FROM (SELECT gate_id FROM leaving UNION SELECT gate_id FROM closed UNION SELECT gate_id FROM dropped) AS gates
 WHERE gate_id IS NOT NULL;

-- name: take_over
-- Takes over leases that have run out. If the reaper dies before it is done with them, its leases run out in turn.
-- Indexes: leases_expired, leases_pkey. `latest_at`: the latest that it can be, by a clock that cannot step. `from_at`:
-- those that ran out before are left out, as most of them are gone, and a pinned snapshot keeps them; null: none are.
WITH clock AS MATERIALIZED (
    SELECT now_at, least(now_at, :latest_at::timestamptz) AS before_at FROM clock_at() AS now_at
),
stale AS (
    SELECT lease.lease_id, lease.worker, lease.expires_at
      FROM (SELECT mine.partition, clock.before_at
              FROM clock
             CROSS JOIN unnest(:partitions::smallint[]) AS mine (partition)
             CROSS JOIN LATERAL (
                       SELECT expires_at
                         FROM leases
                        WHERE leases.partition = mine.partition AND leases.worker IS NOT NULL
                          AND leases.expires_at >= coalesce(:from_at::timestamptz, '-infinity')
                          AND leases.expires_at < clock.before_at
                        ORDER BY leases.expires_at
                        LIMIT 1
                   ) AS oldest
             ORDER BY oldest.expires_at) AS overdue
     -- Locked before they are counted: those that another session has locked must not hide the others.
     CROSS JOIN LATERAL (
               SELECT lease_id, worker, expires_at
                 FROM leases
                WHERE leases.partition = overdue.partition AND leases.worker IS NOT NULL
                  AND leases.expires_at >= coalesce(:from_at::timestamptz, '-infinity')
                  AND leases.expires_at < overdue.before_at
                ORDER BY leases.expires_at
                LIMIT :most::integer
                  FOR UPDATE SKIP LOCKED
           ) AS lease
     LIMIT :most::integer
)
UPDATE leases lease
   SET worker = :node::text, expires_at = clock.now_at + :lease_seconds::float * interval '1 second',
       lease_seconds = :lease_seconds::float
  FROM stale, clock
 WHERE lease.lease_id = ANY(ARRAY[stale.lease_id])  -- as in `lanes.extend`
RETURNING lease.lease_id, lease.lane_id, lease.first_seq, lease.last_seq, stale.worker, lease.started, lease.deferrals,
          coalesce(stale.expires_at >= lease.ends_at, false) AS is_past_end;

-- name: open_in
-- Which attempts are open in leases that were taken over, with what decides on their retries; a lease with nothing open
-- is there with nulls. A statement of its own, after the leases are taken over: it has to see what their
-- holders put back until then. Indexes: attempts_pkey, outcomes_pkey, leases_of_attempt, job_versions_pkey.
SELECT taken.lease_id, open.lane_id, open.seq, open.job_id, open.fire_at, open.spec_version,
       open.reason::text AS reason, open.attempt,
       -- Of a job that was purged while this waited for longer than history is kept: there is nothing to retry.
       coalesce(version.retry, '{"max_retries": 0, "backoff": "fixed", "delay_seconds": 0, "max_delay_seconds": 0}')::text
           AS retry,
       version.handler, open.is_listed,
       (SELECT running_since(running_seqs, running_since, leases.worker, leased_at, open.seq)
          FROM leases WHERE leases.lease_id = taken.lease_id) AS started_at
  FROM unnest(:lease_ids::bigint[], :lane_ids::bigint[], :first_seqs::bigint[], :last_seqs::bigint[])
       AS taken (lease_id, lane_id, first_seq, last_seq)
  LEFT JOIN LATERAL (
           SELECT attempts.*
             FROM attempts
            WHERE attempts.lane_id = taken.lane_id AND attempts.seq BETWEEN taken.first_seq AND taken.last_seq
              AND NOT EXISTS (
                      SELECT FROM outcomes
                       WHERE outcomes.lane_id = attempts.lane_id AND outcomes.seq = attempts.seq)
              AND NOT EXISTS (
                      SELECT FROM leases own
                       WHERE own.lane_id = attempts.lane_id AND own.first_seq = attempts.seq
                         AND own.first_seq = own.last_seq AND own.lease_id <> taken.lease_id)
       ) AS open ON true
  LEFT JOIN LATERAL (
           SELECT retry, coalesce(handler, '') AS handler
             FROM job_versions
            WHERE job_versions.job_id = open.job_id AND job_versions.spec_version = open.spec_version
            LIMIT 1
       ) AS version ON true
 ORDER BY open.lane_id, open.seq;
