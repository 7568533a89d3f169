-- Fills the history of many jobs, for the measurement of pages. Called by the bench.

-- name: jobs
-- The next ids of the jobs that the pages show. Index: jobs_of_tenant.
SELECT job_id
  FROM jobs
 WHERE tenant_id = :tenant_id::bigint AND (tenant_id, job_id) > (:tenant_id::bigint, :after::bigint)
   AND status <> 'deleted' AND labels ? 'team'
 ORDER BY job_id
 LIMIT :most::integer;

-- name: age
-- Makes some jobs as old as their history. Index: jobs_pkey.
UPDATE jobs SET created_at = :created_at::timestamptz WHERE job_id = ANY(:job_ids::bigint[]);

-- name: add_runs
-- One run with one attempt for each of these jobs and instants, in this order, which is that of time. One of a hundred is
-- a dead letter. Indexes: jobs_pkey, queues_tenant_id_name_key, lanes_of_queue.
WITH fired AS (
    INSERT INTO attempts (lane_id, seq, job_id, fire_at, due_at, spec_version, epoch, reason, attempt)
    SELECT place.lane_id, given.seq, given.job_id, at.fire_at, at.fire_at, 1, 1, 'tick', 1
      FROM unnest(:job_ids::bigint[], :seqs::bigint[]) WITH ORDINALITY AS given (job_id, seq, number)
     CROSS JOIN LATERAL (
               SELECT lanes.lane_id
                 FROM jobs
                 JOIN queues ON queues.tenant_id = jobs.tenant_id AND queues.name = jobs.queue
                 JOIN lanes ON lanes.queue_id = queues.queue_id AND lanes.partition = (jobs.job_id & 255)::smallint
                WHERE jobs.job_id = given.job_id
                LIMIT 1
           ) AS place
     CROSS JOIN LATERAL (SELECT 'epoch'::timestamptz + given.seq * interval '1 microsecond' AS fire_at) AS at
     ORDER BY given.number
        ON CONFLICT DO NOTHING
 RETURNING lane_id, seq, job_id, fire_at
),
ended AS MATERIALIZED (
    SELECT fired.*, fired.fire_at + interval '4 milliseconds' AS started_at,
           fired.fire_at + (10 + fired.seq % 300) * interval '1 millisecond' AS finished_at,
           abs(hashint8(fired.seq)) % 100 = 0 AS is_failed
      FROM fired
),
recorded AS (
    INSERT INTO outcomes (lane_id, seq, started_at, finished_at, result, is_final, worker, error)
    SELECT lane_id, seq, started_at, finished_at,
           CASE WHEN is_failed THEN 'failed' ELSE 'success' END::outcome_result, true, 'bench',
           CASE WHEN is_failed THEN 'ConnectionError: host ' || job_id % 7 || ' did not answer' END
      FROM ended
)
INSERT INTO dead_letters (job_id, fire_at, tenant_id, lane_id, seq, died_at, spec_version, attempt, reason)
SELECT job_id, fire_at, :tenant_id::bigint, lane_id, seq, finished_at, 1, 1, 'exhausted' FROM ended WHERE is_failed;

-- name: note_latest
-- Each job's latest run in its timer, as firing writes it. Indexes: timers_pkey, attempts_of_run.
UPDATE timers
   SET last_lane = latest.lane_id, last_seq = latest.seq
  FROM (SELECT given.job_id, found.lane_id, found.seq
          FROM unnest(:job_ids::bigint[]) AS given (job_id)
         CROSS JOIN LATERAL (
                   SELECT lane_id, seq FROM attempts
                    WHERE attempts.job_id = given.job_id AND attempts.seq >= :from_us::bigint
                    ORDER BY fire_at DESC LIMIT 1
               ) AS found) AS latest
 WHERE timers.partition = (latest.job_id & 255)::smallint AND timers.job_id = latest.job_id AND timers.kind = 'tick';

-- name: pass_lanes
-- All that was fired before an instant is leased. Reads all lanes.
UPDATE lanes SET head = :before_us::bigint, swept = :before_us::bigint WHERE head < :before_us::bigint;

-- name: add_changes
-- Entries of the audit log for the creation of some jobs.
INSERT INTO audit_log (tenant_id, changed_at, actor, action, subject, request_id)
SELECT :tenant_id::bigint, clock_at(), 'key_bench', 'create_job', subject, 'req_bench'
  FROM unnest(:subjects::text[]) AS subject;

-- name: vacuum
VACUUM (ANALYZE) attempts, outcomes, dead_letters, audit_log, jobs, job_versions, timers, rules, lanes, queues;

-- name: latest
-- The latest run of each of these jobs. Index: attempts_of_run.
SELECT given.job_id, found.fire_at
  FROM unnest(:job_ids::bigint[]) AS given (job_id)
 CROSS JOIN LATERAL (
           SELECT fire_at FROM attempts WHERE attempts.job_id = given.job_id ORDER BY fire_at DESC LIMIT 1
       ) AS found;
