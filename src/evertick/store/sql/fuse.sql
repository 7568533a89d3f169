-- What jobs fired lately, for the fuse against runaway jobs. Called by schedulers.

-- name: recent_runs
-- How many runs each fire time of some active jobs has, of ticks that fired under the job's version as it is: what fired
-- before its last change is left out, so that a job that was resumed is not judged again by what it was paused for.
-- Reads the newest attempts of a job's lane. A deferred attempt keeps its number and its run.
-- Indexes: jobs_pkey, timers_pkey, attempts_pkey, outcomes_pkey.
SELECT job.job_id, job.tenant_id, job.spec_version, timer.rule_id, found.fire_at, found.runs
  FROM unnest(:job_ids::bigint[]) AS given (job_id)
 CROSS JOIN LATERAL (
           SELECT jobs.job_id, jobs.tenant_id, jobs.spec_version, jobs.status,
                  microseconds(jobs.updated_at) AS updated_us
             FROM jobs
            WHERE jobs.job_id = given.job_id
            LIMIT 1
       ) AS job
 CROSS JOIN LATERAL (
           SELECT rule_id, lane_id_of(queue_id, partition, priority, gate_id IS NOT NULL) AS lane_id
             FROM timers
            WHERE timers.partition = (given.job_id & 255)::smallint AND timers.job_id = given.job_id
              AND timers.kind = 'tick'
            LIMIT 1
       ) AS timer
 CROSS JOIN LATERAL (
           SELECT recent.fire_at,
                  greatest(1, count(*) - count(*) FILTER (
                      WHERE (SELECT outcome.result = 'deferred'
                               FROM outcomes outcome
                              WHERE outcome.lane_id = timer.lane_id AND outcome.seq = recent.seq
                              LIMIT 1)))::integer AS runs
             FROM (SELECT attempts.seq, attempts.job_id, attempts.fire_at, attempts.spec_version, attempts.reason,
                          attempts.attempt
                     FROM attempts
                    WHERE attempts.lane_id = timer.lane_id AND attempts.seq >= :from_seq::bigint
                      AND attempts.seq >= job.updated_us
                    ORDER BY attempts.seq DESC
                    LIMIT :most::integer) AS recent
            WHERE recent.job_id = given.job_id AND recent.spec_version = job.spec_version AND recent.attempt = 1
              AND recent.reason NOT IN ('manual', 'replay')
            GROUP BY recent.fire_at
       ) AS found
 WHERE job.status = 'active'
   -- Attempts from while the clock was ahead would count again, also for a job that was resumed since.
   AND NOT EXISTS (SELECT FROM clock_marks WHERE microseconds(ran_until_at) >= :from_seq::bigint);
