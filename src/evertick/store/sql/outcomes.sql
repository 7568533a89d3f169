-- Outcomes: how attempts end and what follows. Called by workers, dispatchers and the reaper.

-- name: record
-- Ends attempts, each with the retry or the dead letter that follows it; the first writer wins. Index: outcomes_pkey.
-- Those of the plain kind, that succeeded and have nothing to tell, are many and travel light.
WITH given AS (
    SELECT lane_id, seq, timestamptz 'epoch' + started_us * interval '1 microsecond' AS started_at,
           timestamptz 'epoch' + finished_us * interval '1 microsecond' AS finished_at,
           'success'::outcome_result AS result, NULL::integer AS code, true AS is_final, NULL::text AS error,
           NULL::text AS excerpt
      FROM unnest(:plain_lane_ids::bigint[], :plain_seqs::bigint[], :plain_started_us::bigint[],
                  :plain_finished_us::bigint[]) AS plain (lane_id, seq, started_us, finished_us)
     UNION ALL
    SELECT lane_id, seq, started_at, finished_at, result::outcome_result, code, is_final, error, excerpt
      FROM unnest(
               :lane_ids::bigint[], :seqs::bigint[], :started_ats::timestamptz[], :finished_ats::timestamptz[],
               :results::text[], :codes::integer[], :finals::boolean[], :errors::text[], :excerpts::text[]
           ) AS told (lane_id, seq, started_at, finished_at, result, code, is_final, error, excerpt)
),
recorded AS (
    INSERT INTO outcomes (lane_id, seq, started_at, finished_at, result, code, is_final, worker, error, excerpt)
    SELECT lane_id, seq, started_at, finished_at, result, code, is_final, :worker::text, error, excerpt
      FROM given
     ORDER BY lane_id, seq  -- so that two who race for the same ones cannot deadlock
        ON CONFLICT DO NOTHING
 RETURNING lane_id, seq
),
-- What follows an attempt that did not succeed: few rows, so they travel apart. Nothing follows in a job that was
-- deleted; the lock makes whoever deletes it at this moment see the retry timer, or us the deletion.
following AS MATERIALIZED (
    SELECT follow.*, (follow.lane_id >> 10)::integer AS queue_id, job.tenant_id, job.status = 'deleted' AS is_withdrawn
      FROM unnest(
               :next_lane_ids::bigint[], :next_seqs::bigint[], :next_job_ids::bigint[], :next_fire_ats::timestamptz[],
               :next_spec_versions::integer[], :next_reasons::text[], :next_attempts::integer[],
               :next_delays::float[], :dead_reasons::text[]
           ) AS follow (lane_id, seq, job_id, fire_at, spec_version, reason, attempt, delay_seconds, dead_reason)
     -- One by one, by the LIMIT: a join might read all jobs.
     CROSS JOIN LATERAL (
               SELECT tenant_id, status FROM jobs WHERE jobs.job_id = follow.job_id LIMIT 1 FOR SHARE
           ) AS job
     -- IS TRUE keeps this a look-up in a hash table: a join might compare each with each.
     WHERE ((follow.lane_id, follow.seq) IN (SELECT lane_id, seq FROM recorded)) IS TRUE
),
retried AS (
    INSERT INTO timers (job_id, fire_at, due_at, tenant_id, rule_id, queue_id, spec_version, kind, reason, partition,
                        attempt, priority)
    SELECT job_id, fire_at, clock_at() + delay_seconds * interval '1 second', tenant_id, 0, queue_id, spec_version,
           'retry', reason::run_reason, (job_id & 255)::smallint, attempt, (lane_id & 3)::smallint
      FROM following
     WHERE dead_reason IS NULL AND NOT is_withdrawn
        ON CONFLICT DO NOTHING
),
stayed AS (
    INSERT INTO open_runs (job_id, fire_at, lane_id, seq)
    SELECT job_id, fire_at, lane_id, seq FROM following WHERE dead_reason IS NULL AND NOT is_withdrawn
        ON CONFLICT DO NOTHING
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
closed AS (
    DELETE FROM open_runs
     USING unnest(:over_lane_ids::bigint[], :over_seqs::bigint[], :over_job_ids::bigint[], :over_fire_ats::timestamptz[])
           AS over (lane_id, seq, job_id, fire_at)
     WHERE open_runs.job_id = over.job_id AND open_runs.fire_at = over.fire_at
       AND ((over.lane_id, over.seq) IN (SELECT lane_id, seq FROM recorded)) IS TRUE
       AND over.lane_id > 0 AND over.seq > 0  -- always; it makes the planner expect few, and go by the index
),
-- A withdrawn run may be open from its attempts before.
dropped AS (
    DELETE FROM open_runs
     USING following
     WHERE following.is_withdrawn
       AND open_runs.job_id = following.job_id AND open_runs.fire_at = following.fire_at
),
released AS (
    DELETE FROM leases WHERE lease_id = ANY(:done_leases::bigint[])
)
-- The given ones that were not: almost always none, so that the answer is short.
SELECT stale.lane_id, stale.seq
  FROM (SELECT count(*) AS count FROM recorded) AS all_recorded
 CROSS JOIN LATERAL (
           SELECT lane_id, seq
             FROM given
            WHERE all_recorded.count < cardinality(:plain_seqs::bigint[]) + cardinality(:seqs::bigint[])
              AND ((given.lane_id, given.seq) IN (SELECT lane_id, seq FROM recorded)) IS NOT TRUE
       ) AS stale;

-- name: reap
-- Takes over leases that have run out, and tells which of their attempts are open, with what decides on their retries:
-- the reaper then records them as lost, like any other holder. Should it die before, its leases run out in turn.
-- Indexes: leases_expired, attempts_pkey, outcomes_pkey. A lease with nothing open is there with nulls.
WITH clock AS MATERIALIZED (
    SELECT clock_at() AS now_at
),
stale AS (
    SELECT lease.lease_id, lease.worker
      FROM clock
      JOIN leases lease ON lease.partition = ANY(:partitions::smallint[]) AND lease.expires_at < clock.now_at
     ORDER BY lease.expires_at
     LIMIT :most::integer
       FOR UPDATE OF lease SKIP LOCKED
),
taken AS (
    UPDATE leases lease
       SET worker = :node::text, expires_at = clock.now_at + :lease_seconds::float * interval '1 second'
      FROM stale, clock
     WHERE lease.lease_id = stale.lease_id
 RETURNING lease.lease_id, lease.lane_id, lease.first_seq, lease.last_seq, stale.worker
)
SELECT taken.lease_id, taken.worker, open.lane_id, open.seq, open.job_id, open.fire_at, open.spec_version,
       open.reason::text AS reason, open.attempt,
       -- Of a job that was purged while this waited for longer than history is kept: there is nothing to retry.
       coalesce(version.retry, '{"max_retries": 0, "backoff": "fixed", "delay_seconds": 0, "max_delay_seconds": 0}')::text
           AS retry
  FROM taken
  LEFT JOIN LATERAL (
           SELECT attempts.*
             FROM attempts
            WHERE attempts.lane_id = taken.lane_id AND attempts.seq BETWEEN taken.first_seq AND taken.last_seq
              AND NOT EXISTS (
                      SELECT FROM outcomes
                       WHERE outcomes.lane_id = attempts.lane_id AND outcomes.seq = attempts.seq)
       ) AS open ON true
  LEFT JOIN job_versions version ON version.job_id = open.job_id AND version.spec_version = open.spec_version
 ORDER BY open.lane_id, open.seq;
