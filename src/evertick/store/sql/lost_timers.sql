-- Jobs that lack the timer of their ticks, and how they get it back. Called by the janitor.

-- name: timerless_page
-- A page of jobs, and which of them should have a tick's timer but do not. The scalar subqueries are probed by index
-- for each job, where NOT EXISTS might read all timers. Fresh jobs are left out. Indexes: jobs_pkey, timers_pkey,
-- finished_jobs_pkey, job_versions_pkey, rules_pkey.
WITH page AS MATERIALIZED (
    SELECT job_id, spec_version, status, updated_at
      FROM jobs
     WHERE job_id > :after_id::bigint
     ORDER BY job_id
     LIMIT :most::integer
)
SELECT max(page.job_id) AS last_id,
       coalesce(array_agg(page.job_id ORDER BY page.job_id) FILTER (
           WHERE page.status <> 'deleted'
             AND page.updated_at < clock_at() - interval '1 minute'
             AND (SELECT timers.job_id FROM timers
                   WHERE timers.partition = (page.job_id & 255)::smallint AND timers.job_id = page.job_id
                     AND timers.kind = 'tick' LIMIT 1) IS NULL
             AND (SELECT finished_jobs.job_id FROM finished_jobs WHERE finished_jobs.job_id = page.job_id) IS NULL
             AND (SELECT rule.canonical
                    FROM job_versions version
                    JOIN rules rule ON rule.rule_id = version.rule_id
                   WHERE version.job_id = page.job_id AND version.spec_version = page.spec_version)
                 NOT LIKE '%"kind":"manual"%'
       ), '{}') AS job_ids
  FROM page;

-- name: timerless
-- What is known of jobs, locked by `jobs.lock_available`, that have no tick's timer: `known_at` is the latest of their ticks that
-- is accounted for, by a run, a gap, or as one that waits. Indexes: as above, attempts_of_run, gaps_pkey.
SELECT job.job_id, job.created_at, version.effective_at, rule.canonical, version.spec::text AS spec,
       greatest(
           (SELECT attempts.fire_at FROM attempts
             WHERE attempts.job_id = job.job_id AND attempts.reason IN ('tick', 'late', 'catch_up')
             ORDER BY attempts.fire_at DESC LIMIT 1),
           (SELECT max(gaps.last_at) FROM gaps WHERE gaps.job_id = job.job_id),
           (SELECT max(withdrawals.fire_at) FROM withdrawals
             WHERE withdrawals.job_id = job.job_id AND withdrawals.reason IN ('tick', 'late', 'catch_up')),
           (SELECT max(timers.fire_at) FROM timers
             WHERE timers.partition = (job.job_id & 255)::smallint AND timers.job_id = job.job_id
               AND timers.kind IN ('queued', 'retry') AND timers.reason IN ('tick', 'late', 'catch_up'))
       ) AS known_at,
       :before_at::timestamptz AS forgotten_at
  FROM jobs job
  JOIN job_versions version ON version.job_id = job.job_id AND version.spec_version = job.spec_version
  JOIN rules rule ON rule.rule_id = version.rule_id
 WHERE job.job_id = ANY(:job_ids::bigint[]) AND job.status <> 'deleted'
   AND NOT EXISTS (
           SELECT FROM timers
            WHERE timers.partition = (job.job_id & 255)::smallint AND timers.job_id = job.job_id
              AND timers.kind = 'tick')
   AND NOT EXISTS (SELECT FROM finished_jobs WHERE finished_jobs.job_id = job.job_id);

-- name: heal
-- Gives locked jobs their tick's timer back; those without a time are finished. A paused one's timer waits until it is resumed.
-- Indexes: jobs_pkey, job_versions_pkey, queues_tenant_id_name_key, timers_pkey, attempts_of_run.
WITH healing AS (
    SELECT * FROM unnest(:job_ids::bigint[], :fire_ats::timestamptz[], :due_ats::timestamptz[])
        AS h (job_id, fire_at, due_at)
),
finished AS (
    INSERT INTO finished_jobs (job_id, finished_at)
    SELECT job_id, clock_at() FROM healing WHERE fire_at IS NULL
        ON CONFLICT DO NOTHING
 RETURNING job_id
),
healed AS (
    INSERT INTO timers (job_id, fire_at, due_at, tenant_id, rule_id, last_lane, last_seq, queue_id, spec_version, kind,
                        partition, priority)
    SELECT job.job_id, healing.fire_at,
           CASE WHEN job.status = 'paused' THEN 'infinity' ELSE healing.due_at END,
           job.tenant_id, version.rule_id, latest.lane_id, latest.seq, queue.queue_id, job.spec_version, 'tick',
           (job.job_id & 255)::smallint,
           CASE version.spec ->> 'priority' WHEN 'high' THEN 0 WHEN 'low' THEN 2 ELSE 1 END
      FROM healing
      JOIN jobs job ON job.job_id = healing.job_id
      JOIN job_versions version ON version.job_id = job.job_id AND version.spec_version = job.spec_version
      JOIN queues queue ON queue.tenant_id = job.tenant_id AND queue.name = job.queue
      LEFT JOIN LATERAL (
               SELECT attempts.lane_id, attempts.seq FROM attempts
                WHERE attempts.job_id = job.job_id AND attempts.reason IN ('tick', 'late', 'catch_up')
                ORDER BY attempts.fire_at DESC, attempts.seq DESC
                LIMIT 1
           ) AS latest ON true
     WHERE healing.fire_at IS NOT NULL
        ON CONFLICT DO NOTHING
 RETURNING job_id
)
SELECT (SELECT count(*) FROM healed) AS timers, (SELECT count(*) FROM finished) AS finished;
