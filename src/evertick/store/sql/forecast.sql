-- The forecast: timers grouped by what decides when they fire. Called by the use cases.
--
-- A group has the rule, whether the timers are of ticks, the minute in which they are due, and for ticks the lag by which
-- they are due after their fire time: in whole seconds, or else in minutes from the minute of the one to that of the other.
-- The groups of a rule are one row, as arrays in one order; some of its jobs stand for all.
-- Millions of rows are grouped: each expression that is left out saves a tenth of the time.

-- name: in_partitions
-- The timers of all tenants in some partitions that are due before an instant. Indexes: timers_due, rules_pkey.
WITH grouped AS (
    SELECT timer.rule_id, timer.kind = 'tick' AS is_tick,
           CASE WHEN timer.kind = 'tick' AND timer.due_at <> timer.fire_at
                THEN CASE WHEN :by_second::boolean
                          THEN date_bin('1 second', timer.due_at, timer.fire_at) - timer.fire_at
                          ELSE date_bin('1 minute', timer.due_at, 'epoch') - date_bin('1 minute', timer.fire_at, 'epoch')
                     END
           END AS lag,
           date_bin('1 minute', timer.due_at, 'epoch') AS due_minute, min(timer.fire_at) AS fire_at, count(*) AS jobs,
           min(timer.job_id) AS first_job_id, max(timer.job_id) AS last_job_id
      FROM unnest(:partitions::smallint[]) AS given (partition)
     CROSS JOIN LATERAL (
               SELECT kind, rule_id, due_at, fire_at, job_id
                 FROM timers
                WHERE timers.partition = given.partition AND timers.due_at < :to_at::timestamptz
                  AND (:queue::text IS NULL
                       OR (SELECT name FROM queues WHERE queues.queue_id = timers.queue_id) = :queue::text)
                  AND (:labels::text = '{}'
                       OR (SELECT labels FROM jobs WHERE jobs.job_id = timers.job_id) @> :labels::text::jsonb)
           ) AS timer
     GROUP BY 1, 2, 3, 4
)
SELECT rule_id, is_tick, (SELECT canonical FROM rules WHERE rules.rule_id = grouped.rule_id) AS canonical,
       array_agg(microseconds(fire_at)) AS fires_us, array_agg(coalesce(extract(epoch FROM lag), 0)::integer) AS lags_s,
       array_agg(microseconds(due_minute)) AS dues_us, array_agg(jobs) AS jobs,
       ARRAY[min(first_job_id), max(last_job_id)] || (array_agg(first_job_id))[1:3] AS sample_job_ids
  FROM grouped
 GROUP BY rule_id, is_tick;

-- name: of_tenant
-- The same of one tenant. Indexes: timers_of_tenant, rules_pkey.
WITH grouped AS (
    SELECT timer.rule_id, timer.kind = 'tick' AS is_tick,
           CASE WHEN timer.kind = 'tick' AND timer.due_at <> timer.fire_at
                THEN CASE WHEN :by_second::boolean
                          THEN date_bin('1 second', timer.due_at, timer.fire_at) - timer.fire_at
                          ELSE date_bin('1 minute', timer.due_at, 'epoch') - date_bin('1 minute', timer.fire_at, 'epoch')
                     END
           END AS lag,
           date_bin('1 minute', timer.due_at, 'epoch') AS due_minute, min(timer.fire_at) AS fire_at, count(*) AS jobs,
           min(timer.job_id) AS first_job_id, max(timer.job_id) AS last_job_id
      FROM unnest(:partitions::smallint[]) AS given (partition)
     CROSS JOIN LATERAL (
               SELECT kind, rule_id, due_at, fire_at, job_id
                 FROM timers
                WHERE timers.partition = given.partition AND timers.tenant_id = :tenant_id::bigint
                  AND timers.due_at < :to_at::timestamptz
                  AND (:queue::text IS NULL
                       OR (SELECT name FROM queues WHERE queues.queue_id = timers.queue_id) = :queue::text)
                  AND (:labels::text = '{}'
                       OR (SELECT labels FROM jobs WHERE jobs.job_id = timers.job_id) @> :labels::text::jsonb)
           ) AS timer
     GROUP BY 1, 2, 3, 4
)
SELECT rule_id, is_tick, (SELECT canonical FROM rules WHERE rules.rule_id = grouped.rule_id) AS canonical,
       array_agg(microseconds(fire_at)) AS fires_us, array_agg(coalesce(extract(epoch FROM lag), 0)::integer) AS lags_s,
       array_agg(microseconds(due_minute)) AS dues_us, array_agg(jobs) AS jobs,
       ARRAY[min(first_job_id), max(last_job_id)] || (array_agg(first_job_id))[1:3] AS sample_job_ids
  FROM grouped
 GROUP BY rule_id, is_tick;

-- name: of_all
-- The same of all partitions, of one tenant or of all: reads all timers, which for millions is faster than an index.
-- The planner expects as many groups as there are due times, and groups in one process then, unless it does not see them
-- in the expressions: a volatile function keeps the subquery a subquery, though it is never called.
WITH grouped AS (
    SELECT rule_id, kind, lag, due_minute, min(fire_at) AS fire_at, count(*) AS jobs, min(job_id) AS first_job_id,
           max(job_id) AS last_job_id
      FROM (SELECT rule_id, kind,
                   CASE WHEN due_at <> fire_at AND kind = 'tick'
                        THEN CASE WHEN :by_second::boolean
                                  THEN date_bin('1 second', due_at, fire_at) - fire_at
                                  ELSE date_bin('1 minute', due_at, 'epoch') - date_bin('1 minute', fire_at, 'epoch')
                             END
                   END AS lag,
                   date_bin('1 minute', due_at, 'epoch') AS due_minute, fire_at, job_id,
                   CASE WHEN false THEN clock_timestamp() END AS kept_apart
              FROM timers
             WHERE due_at < :to_at::timestamptz AND (:tenant_id::bigint IS NULL OR tenant_id = :tenant_id::bigint)
               AND (:queue_ids::integer[] IS NULL OR queue_id = ANY(:queue_ids::integer[]))) AS timer
     GROUP BY rule_id, kind, lag, due_minute
)
SELECT rule_id, kind = 'tick' AS is_tick,
       (SELECT canonical FROM rules WHERE rules.rule_id = grouped.rule_id) AS canonical,
       array_agg(microseconds(fire_at)) AS fires_us, array_agg(coalesce(extract(epoch FROM lag), 0)::integer) AS lags_s,
       array_agg(microseconds(due_minute)) AS dues_us, array_agg(jobs) AS jobs,
       ARRAY[min(first_job_id), max(last_job_id)] || (array_agg(first_job_id))[1:3] AS sample_job_ids
  FROM grouped
 GROUP BY rule_id, kind = 'tick';

-- name: queue_ids
-- The ids of the queues of a name, of one tenant or of all. Index: queues_tenant_id_name_key.
SELECT queue_id
  FROM queues
 WHERE name = :queue::text AND (:tenant_id::bigint IS NULL OR tenant_id = :tenant_id::bigint);

-- name: sample_jobs
-- Some jobs by name, with the schedule as their authors wrote it. Indexes: jobs_pkey, job_versions_pkey.
SELECT job.job_id, job.name, version.spec ->> 'schedule' AS schedule, version.timezone
  FROM jobs job
  JOIN job_versions version ON version.job_id = job.job_id AND version.spec_version = job.spec_version
 WHERE job.job_id = ANY(:job_ids::bigint[])
 ORDER BY job.job_id;
