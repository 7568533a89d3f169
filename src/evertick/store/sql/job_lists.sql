-- Lists of jobs: the ids on a page, in several orders. Called by the use cases, which read the jobs by `jobs.view`.

-- name: page
-- The ids of those that fit among a tenant's next jobs. So many are looked at, however few fit. Indexes:
-- jobs_of_tenant, finished_jobs_pkey, job_versions_pkey.
SELECT job.job_id
  FROM (SELECT tenant_id, job_id, status, name, queue, labels, spec_version
          FROM jobs
         -- Compared and ordered as a pair, which jobs_pkey cannot do: it would go through the jobs of all tenants. With
         -- an equality the planner would leave the tenant out of the order.
         WHERE tenant_id BETWEEN :tenant_id::bigint AND :tenant_id::bigint
           AND (tenant_id, job_id) > (:tenant_id::bigint, :after::bigint)
           AND status <> 'deleted'
         ORDER BY tenant_id, job_id
         LIMIT :most_looked_at::integer) AS job
 WHERE job.labels @> :labels::jsonb
   AND (:name_prefix::text IS NULL OR starts_with(job.name, :name_prefix::text))
   AND (:queue::text IS NULL OR job.queue = :queue::text)
   AND (:status::text IS NULL
        OR :status::text = CASE
               WHEN job.status = 'paused' THEN 'paused'
               -- One by one: EXISTS might read all finished jobs, of all tenants.
               WHEN (SELECT true FROM finished_jobs WHERE finished_jobs.job_id = job.job_id LIMIT 1) THEN 'finished'
               ELSE 'active'
           END)
   AND (:handler::text IS NULL AND :target_host::text IS NULL
        OR (SELECT (:handler::text IS NULL OR version.handler = :handler::text)
                   AND (:target_host::text IS NULL
                        OR lower(substring(version.spec -> 'target' ->> 'url' FROM '^[a-z]+://(?:[^/?#@]*@)?([^/?#:]+)'))
                           = lower(:target_host::text))
              FROM job_versions version
             WHERE version.job_id = job.job_id AND version.spec_version = job.spec_version
             LIMIT 1))
   AND (:has_finished::boolean
        OR (SELECT true FROM finished_jobs WHERE finished_jobs.job_id = job.job_id LIMIT 1) IS NULL)
 ORDER BY job.tenant_id, job.job_id
 LIMIT :most::integer;

-- name: fitting
-- Those of some jobs that fit, in the order in which they are given, up to a limit. Indexes: jobs_pkey,
-- finished_jobs_pkey, job_versions_pkey.
SELECT job.job_id
  FROM unnest(:job_ids::bigint[]) WITH ORDINALITY AS given (job_id, place)
 CROSS JOIN LATERAL (
           SELECT job_id, status, name, queue, labels, spec_version
             FROM jobs
            WHERE jobs.job_id = given.job_id AND jobs.tenant_id = :tenant_id::bigint AND jobs.status <> 'deleted'
            LIMIT 1
       ) AS job
 WHERE job.labels @> :labels::jsonb
   AND (:name_prefix::text IS NULL OR starts_with(job.name, :name_prefix::text))
   AND (:queue::text IS NULL OR job.queue = :queue::text)
   AND (:status::text IS NULL
        OR :status::text = CASE
               WHEN job.status = 'paused' THEN 'paused'
               -- One by one: EXISTS might read all finished jobs, of all tenants.
               WHEN (SELECT true FROM finished_jobs WHERE finished_jobs.job_id = job.job_id LIMIT 1) THEN 'finished'
               ELSE 'active'
           END)
   AND (:handler::text IS NULL AND :target_host::text IS NULL
        OR (SELECT (:handler::text IS NULL OR version.handler = :handler::text)
                   AND (:target_host::text IS NULL
                        OR lower(substring(version.spec -> 'target' ->> 'url' FROM '^[a-z]+://(?:[^/?#@]*@)?([^/?#:]+)'))
                           = lower(:target_host::text))
              FROM job_versions version
             WHERE version.job_id = job.job_id AND version.spec_version = job.spec_version
             LIMIT 1))
   AND (:has_finished::boolean
        OR (SELECT true FROM finished_jobs WHERE finished_jobs.job_id = job.job_id LIMIT 1) IS NULL)
 ORDER BY given.place
 LIMIT :most::integer;

-- name: next_by_name
-- A tenant's next jobs by name, byte by byte, of those whose names begin with a prefix. Index: jobs_by_text.
SELECT job_id, name AS position
  FROM jobs
 WHERE tenant_id = :tenant_id::bigint AND status <> 'deleted'
   AND name COLLATE "C" > :after::text COLLATE "C" AND name COLLATE "C" >= :prefix::text COLLATE "C"
   AND name COLLATE "C" < :below::text COLLATE "C" AND starts_with(name, :prefix::text)
 ORDER BY name COLLATE "C"
 LIMIT :most::integer;

-- name: next_by_run
-- A tenant's next jobs by the due time of their tick, after an instant, from a few of each lane: no index is ordered by
-- due time alone. From `cut_at` on, a lane may have more than was read of it: jobs are returned up to there, and without
-- any, one row with nulls. Indexes: queues_tenant_id_name_key, lanes_of_queue, timers_of_tenant.
WITH mine AS MATERIALIZED (
    SELECT queue_id, tenant_id
      FROM queues
     WHERE tenant_id = :tenant_id::bigint AND (:queue::text IS NULL OR name = :queue::text)
),
coming AS MATERIALIZED (
    SELECT first.*, mine.queue_id, lane.priority
      FROM mine
     CROSS JOIN LATERAL (
               -- Gated lanes beside others of the same place have no timers of their own.
               SELECT DISTINCT partition, priority FROM lanes WHERE lanes.queue_id = mine.queue_id OFFSET 0
           ) AS lane
     CROSS JOIN LATERAL (
               SELECT job_id, due_at
                 FROM timers
                WHERE timers.partition = lane.partition AND timers.kind = 'tick'
                  AND (timers.tenant_id, timers.priority, timers.queue_id, timers.due_at)
                      > (mine.tenant_id, lane.priority, mine.queue_id, :after_at::timestamptz)
                  AND (timers.tenant_id, timers.priority, timers.queue_id, timers.due_at)
                      < (mine.tenant_id, lane.priority, mine.queue_id, 'infinity'::timestamptz)
                -- As the index has it. By job as well, all that are due together would be read and sorted.
                ORDER BY timers.tenant_id, timers.priority, timers.queue_id, timers.due_at
                LIMIT :per_lane::integer
           ) AS first
),
cut AS MATERIALIZED (
    SELECT min(last.due_at) AS cut_at
      FROM (SELECT max(due_at) AS due_at
              FROM coming
             GROUP BY queue_id, priority, job_id & 255
            HAVING count(*) >= :per_lane::integer) AS last
)
SELECT coming.job_id, coming.due_at, cut.cut_at
  FROM cut
  LEFT JOIN coming ON cut.cut_at IS NULL OR coming.due_at < cut.cut_at
 ORDER BY coming.due_at, coming.job_id & 255, coming.job_id
 LIMIT :most::integer;

-- name: due_together
-- Of a tenant's jobs whose ticks are due at one instant those after a job, by partition and id. It goes from partition to
-- partition until it has enough: of a million, it reads those of one. Indexes: queues_tenant_id_name_key,
-- timers_of_tenant.
WITH RECURSIVE mine AS MATERIALIZED (
    SELECT stream.queue_id, stream.priority
      FROM queues
     CROSS JOIN LATERAL (SELECT queues.queue_id, priority::smallint FROM generate_series(0, 2) AS priority) AS stream
     WHERE tenant_id = :tenant_id::bigint AND (:queue::text IS NULL OR name = :queue::text)
),
walked AS (
    SELECT :first_partition::integer - 1 AS partition, :after_id::bigint AS after_id, ARRAY[]::bigint[] AS job_ids,
           0 AS found
     UNION ALL
    SELECT walked.partition + 1, -1, next.job_ids, walked.found + cardinality(next.job_ids)
      FROM walked
     CROSS JOIN LATERAL (
               SELECT ARRAY(SELECT due.job_id
                              FROM mine
                             CROSS JOIN LATERAL (
                                       SELECT timers.job_id
                                         FROM timers
                                        WHERE timers.partition = (walked.partition + 1)::smallint
                                          AND timers.tenant_id = :tenant_id::bigint
                                          AND timers.priority = mine.priority AND timers.queue_id = mine.queue_id
                                          AND timers.due_at = :due_at::timestamptz AND timers.kind = 'tick'
                                          AND timers.job_id > walked.after_id
                                       OFFSET 0
                                   ) AS due
                             ORDER BY due.job_id
                             LIMIT :most::integer) AS job_ids
           ) AS next
     WHERE walked.partition < 255 AND walked.found < :most::integer
)
SELECT job_id
  FROM walked
 CROSS JOIN LATERAL unnest(walked.job_ids) AS job_id
 ORDER BY walked.partition, job_id
 LIMIT :most::integer;

-- name: next_by_failures
-- A tenant's next jobs by how many of its newest dead letters are theirs, most first. Index: dead_letters_of_tenant.
SELECT failing.job_id, (failing.letters::text || '.' || failing.job_id::text) AS position
  FROM (SELECT newest.job_id, count(*) AS letters
          FROM (SELECT job_id
                  FROM dead_letters
                 WHERE tenant_id = :tenant_id::bigint
                 ORDER BY died_at DESC
                 LIMIT :most_letters::integer) AS newest
         GROUP BY newest.job_id) AS failing
 WHERE (-failing.letters, failing.job_id) > (-:after_letters::bigint, :after_id::bigint)
 ORDER BY failing.letters DESC, failing.job_id
 LIMIT :most::integer;

-- name: count_letters
-- Of some jobs how many of the tenant's newest dead letters are theirs: the numbers that `next_by_failures` orders by.
-- Jobs without any are left out. Index: dead_letters_of_tenant.
SELECT newest.job_id, count(*) AS letters
  FROM (SELECT job_id
          FROM dead_letters
         WHERE tenant_id = :tenant_id::bigint
         ORDER BY died_at DESC
         LIMIT :most_letters::integer) AS newest
 WHERE newest.job_id = ANY(:job_ids::bigint[])
 GROUP BY newest.job_id;

-- name: next_by_last_failure
-- A tenant's next jobs by their newest dead letter, of its newest ones, the latest death first. Index:
-- dead_letters_of_tenant.
SELECT failed.job_id, (failed.died_us::text || '.' || failed.job_id::text) AS position
  FROM (SELECT newest.job_id, microseconds(max(newest.died_at)) AS died_us
          FROM (SELECT job_id, died_at
                  FROM dead_letters
                 WHERE tenant_id = :tenant_id::bigint
                 ORDER BY died_at DESC
                 LIMIT :most_letters::integer) AS newest
         GROUP BY newest.job_id) AS failed
 WHERE (-failed.died_us, failed.job_id) > (-:after_us::bigint, :after_id::bigint)
 ORDER BY failed.died_us DESC, failed.job_id
 LIMIT :most::integer;

-- name: last_looked_at
-- The last of the jobs that `page` looks at; none if they are fewer. Index: jobs_of_tenant.
SELECT job_id
  FROM jobs
 WHERE tenant_id BETWEEN :tenant_id::bigint AND :tenant_id::bigint
   AND (tenant_id, job_id) > (:tenant_id::bigint, :after::bigint)
   AND status <> 'deleted'
 ORDER BY tenant_id, job_id
OFFSET :most_looked_at::integer - 1
 LIMIT 1;
