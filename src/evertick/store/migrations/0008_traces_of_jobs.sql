-- The trace in which a job was created or edited; and questions that several statements ask of runs.

-- W3C's header of the request that wrote the version, if it had a valid one: spans of its runs link to it.
ALTER TABLE job_versions ADD COLUMN trace_parent text;

-- Functions that return rows and are joined by LATERAL become a part of the plan. One that returns a value and reads
-- tables would be called for each row.

-- Whether a worker has an attempt that has no outcome.
CREATE FUNCTION lease_of_attempt(of_lane bigint, of_seq bigint) RETURNS TABLE (is_leased boolean)
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT CASE WHEN lane_is_gated(of_lane)
                THEN (SELECT true FROM leases own
                       WHERE own.lane_id = of_lane AND own.first_seq BETWEEN of_seq AND of_seq
                         AND own.first_seq = own.last_seq AND own.worker IS NOT NULL
                       LIMIT 1) IS NOT NULL
                ELSE coalesce((SELECT lane.head FROM lanes lane WHERE lane.lane_id = of_lane LIMIT 1) >= of_seq, false)
                     AND (SELECT true FROM leases free
                           WHERE free.lane_id = of_lane AND free.first_seq BETWEEN of_seq AND of_seq
                             AND free.first_seq = free.last_seq AND free.worker IS NULL
                           LIMIT 1) IS NULL
           END
$$;

-- When a run of a job last succeeded, and how many runs have failed since, looked for among its newest attempts. The walk
-- back through them ends at a success, so that it is short for most. A null job has none.
CREATE FUNCTION failures_of_job(of_job bigint, most_attempts integer)
RETURNS TABLE (success_at timestamptz, failures integer)
LANGUAGE sql STABLE PARALLEL SAFE AS $$
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
