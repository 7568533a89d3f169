-- Smears: jitter for many jobs. Started, read and undone by the use cases, worked off by the janitor.

-- name: candidates
-- Active jobs of a tenant in some partitions that some rules fire, by rule, except those that want no jitter by the label
-- that says so; how many these are. Up to a number of jobs in all. Indexes: timers_of_tenant, jobs_pkey, queues_pkey.
SELECT rule_id, min(fire_at) AS fire_at, count(*) FILTER (WHERE is_opted_out) AS opted_out,
       coalesce(array_agg(job_id) FILTER (WHERE NOT is_opted_out), '{}') AS job_ids,
       coalesce(array_agg(spec_version) FILTER (WHERE NOT is_opted_out), '{}') AS spec_versions
  FROM (SELECT timer.job_id, timer.rule_id, timer.fire_at, timer.spec_version,
               coalesce((SELECT jobs.labels ->> :never_label::text = :never_value::text
                           FROM jobs WHERE jobs.job_id = timer.job_id), false) AS is_opted_out
          FROM unnest(:partitions::smallint[]) AS given (partition)
         CROSS JOIN LATERAL (
                   SELECT job_id, rule_id, fire_at, spec_version
                     FROM timers
                    WHERE timers.partition = given.partition AND timers.tenant_id = :tenant_id::bigint
                      AND timers.kind = 'tick' AND timers.due_at < 'infinity'
                      AND timers.rule_id = ANY(:rule_ids::bigint[])
                      AND (:queue::text IS NULL
                           OR (SELECT name FROM queues WHERE queues.queue_id = timers.queue_id) = :queue::text)
                      AND (:labels::text = '{}'
                           OR (SELECT labels FROM jobs WHERE jobs.job_id = timers.job_id) @> :labels::text::jsonb)
               ) AS timer
         LIMIT :most::integer) AS candidate
 GROUP BY rule_id;

-- name: candidates_of_many
-- The same in all partitions, for a tenant with so many jobs that reading all timers is faster.
-- Indexes: jobs_pkey, queues_pkey.
SELECT rule_id, min(fire_at) AS fire_at, count(*) FILTER (WHERE is_opted_out) AS opted_out,
       coalesce(array_agg(job_id) FILTER (WHERE NOT is_opted_out), '{}') AS job_ids,
       coalesce(array_agg(spec_version) FILTER (WHERE NOT is_opted_out), '{}') AS spec_versions
  FROM (SELECT timer.job_id, timer.rule_id, timer.fire_at, timer.spec_version,
               coalesce((SELECT jobs.labels ->> :never_label::text = :never_value::text
                           FROM jobs WHERE jobs.job_id = timer.job_id), false) AS is_opted_out
          FROM timers timer
         WHERE timer.tenant_id = :tenant_id::bigint AND timer.kind = 'tick' AND timer.due_at < 'infinity'
           AND timer.rule_id = ANY(:rule_ids::bigint[])
           AND (:queue::text IS NULL
                OR (SELECT name FROM queues WHERE queues.queue_id = timer.queue_id) = :queue::text)
           AND (:labels::text = '{}'
                OR (SELECT labels FROM jobs WHERE jobs.job_id = timer.job_id) @> :labels::text::jsonb)
         LIMIT :most::integer) AS candidate
 GROUP BY rule_id;

-- name: start
-- A new smear.
INSERT INTO smears (tenant_id, jitter_seconds, actor)
VALUES (:tenant_id::bigint, :jitter_seconds::integer, :actor::text)
RETURNING smear_id;

-- name: add_jobs
-- Jobs of a new smear, with their versions: one that has another when its turn comes was edited meanwhile.
INSERT INTO smeared_jobs (smear_id, job_id, spec_version)
SELECT :smear_id::bigint, job_id, spec_version
  FROM unnest(:job_ids::bigint[], :spec_versions::integer[]) AS given (job_id, spec_version);

-- name: count_running
-- How many smears of a tenant are under way. Index: smears_of_tenant.
SELECT count(*) FROM smears WHERE tenant_id = :tenant_id::bigint AND finished_at IS NULL;

-- name: page
-- A tenant's smears, newest first; one alone if it is given. What has become of their jobs is counted.
-- Indexes: smears_of_tenant, smeared_jobs_pkey.
SELECT smear.smear_id, smear.status::text AS status, smear.jitter_seconds, smear.created_at, smear.finished_at,
       smear.actor, counted.jobs, counted.waiting, counted.changed, counted.skipped, counted.undone, counted.kept
  FROM (SELECT smear_id, status, jitter_seconds, created_at, finished_at, actor
          FROM smears
         WHERE tenant_id = :tenant_id::bigint AND smear_id < :before::bigint
           AND (:only::bigint IS NULL OR smear_id = :only::bigint)
         ORDER BY smear_id DESC
         LIMIT :most::integer) AS smear
 CROSS JOIN LATERAL (
           SELECT count(*) AS jobs, count(*) FILTER (WHERE state = 'waiting') AS waiting,
                  count(*) FILTER (WHERE state = 'changed') AS changed,
                  count(*) FILTER (WHERE state = 'skipped') AS skipped,
                  count(*) FILTER (WHERE state = 'undone') AS undone,
                  count(*) FILTER (WHERE state = 'kept') AS kept
             FROM smeared_jobs
            WHERE smeared_jobs.smear_id = smear.smear_id
       ) AS counted
 ORDER BY smear.smear_id DESC;

-- name: undo
-- Lets a smear take back what it changed; jobs that wait for it are left alone. A batch that is under way ends first.
-- Index: smears_pkey.
WITH undone AS (
    UPDATE smears
       SET status = 'undoing', finished_at = NULL, next_batch_at = clock_at(), reached_job_id = 0
     WHERE smear_id = :smear_id::bigint AND tenant_id = :tenant_id::bigint AND status IN ('running', 'done')
 RETURNING smear_id
),
left_alone AS (
    UPDATE smeared_jobs
       SET state = 'skipped'
      FROM undone
     WHERE smeared_jobs.smear_id = undone.smear_id AND smeared_jobs.state = 'waiting'
)
SELECT smear_id FROM undone;

-- name: take
-- Locks the smear whose next batch is due first, unless another janitor has it. Index: smears_running.
SELECT smear_id, tenant_id, jitter_seconds, status = 'undoing' AS is_undone, reached_job_id, actor
  FROM smears
 WHERE finished_at IS NULL AND next_batch_at <= clock_at()
 ORDER BY next_batch_at
 LIMIT 1
   FOR UPDATE SKIP LOCKED;

-- name: next_jobs
-- The next jobs of a locked smear that it has to change, or to change back. Index: smeared_jobs_pkey.
SELECT job_id
  FROM smeared_jobs
 WHERE smear_id = :smear_id::bigint AND job_id > :after::bigint AND state::text = :state::text
 ORDER BY job_id
 LIMIT :most::integer;

-- name: locked
-- Locked jobs as they are now, and the version of each that the smear found, or wrote. Their ticks' timers are locked too.
-- Indexes: *_pkey.
WITH timer AS MATERIALIZED (
    SELECT timers.job_id, timers.fire_at, timers.due_at
      FROM unnest(:job_ids::bigint[]) AS given (job_id)
      JOIN timers ON timers.partition = (given.job_id & 255)::smallint AND timers.job_id = given.job_id
                     AND timers.kind = 'tick'
       FOR UPDATE OF timers
)
SELECT job.job_id, job.status = 'deleted' AS is_deleted, job.spec_version, version.spec::text AS spec, rule.canonical,
       timer.fire_at, coalesce(timer.fire_at <= clock_at() AND timer.due_at > clock_at() AND timer.due_at < 'infinity',
                               false) AS is_delayed, mine.spec_version AS known_version,
       coalesce(job.labels ->> :never_label::text = :never_value::text, false) AS is_opted_out
  FROM smeared_jobs mine
  JOIN jobs job ON job.job_id = mine.job_id
  JOIN job_versions version ON version.job_id = job.job_id AND version.spec_version = job.spec_version
  JOIN rules rule ON rule.rule_id = version.rule_id
  LEFT JOIN timer ON timer.job_id = job.job_id
 WHERE mine.smear_id = :smear_id::bigint AND mine.job_id = ANY(:job_ids::bigint[]);

-- name: write
-- The next version of locked jobs: as the one before, but for the rule, and the jitter in the specification. The timers
-- keep their fire times. Nothing is written while a rule is missing. Indexes: *_pkey, rules_digest_key.
WITH given AS MATERIALIZED (
    SELECT g.*, (SELECT rules.rule_id FROM rules WHERE rules.digest = g.digest AND rules.unused_at IS NULL) AS rule_id
      FROM unnest(:job_ids::bigint[], :specs::text[], :digests::bytea[], :due_ats::timestamptz[])
           AS g (job_id, spec, digest, due_at)
),
complete AS MATERIALIZED (
    SELECT * FROM given WHERE NOT EXISTS (SELECT FROM given missing WHERE missing.rule_id IS NULL)
),
edited AS (
    UPDATE jobs
       SET spec_version = jobs.spec_version + 1, updated_at = :now_at::timestamptz
      FROM complete
     WHERE jobs.job_id = complete.job_id
 RETURNING jobs.job_id, jobs.tenant_id, jobs.spec_version
),
versions AS (
    INSERT INTO job_versions (job_id, rule_id, effective_at, gate_id, spec_version, timeout_seconds, gate_limit, name,
                              timezone, handler, key_template, retry, payload, spec)
    SELECT edited.job_id, complete.rule_id, :now_at::timestamptz, before.gate_id, edited.spec_version,
           before.timeout_seconds, before.gate_limit, before.name, before.timezone, before.handler, before.key_template,
           before.retry, before.payload, complete.spec::json
      FROM edited
      JOIN complete ON complete.job_id = edited.job_id
      JOIN job_versions before ON before.job_id = edited.job_id AND before.spec_version = edited.spec_version - 1
 RETURNING job_id, payload, spec
),
superseded AS (
    INSERT INTO superseded_versions (job_id, spec_version, check_at)
    SELECT job_id, spec_version - 1, :now_at::timestamptz FROM edited
        ON CONFLICT DO NOTHING
),
counted AS (
    INSERT INTO storage_changes (tenant_id, bytes)
    SELECT edited.tenant_id, sum(version_bytes(versions.payload::text, versions.spec::text))
      FROM versions
      JOIN edited ON edited.job_id = versions.job_id
     GROUP BY edited.tenant_id
),
moved AS (
    UPDATE timers
       SET rule_id = complete.rule_id, spec_version = edited.spec_version,
           -- A paused job's timer is never due.
           due_at = CASE WHEN timers.due_at = 'infinity' THEN timers.due_at ELSE complete.due_at END
      FROM edited
      JOIN complete ON complete.job_id = edited.job_id
     WHERE timers.partition = (edited.job_id & 255)::smallint AND timers.job_id = edited.job_id AND timers.kind = 'tick'
),
noted AS (
    UPDATE smeared_jobs
       SET state = :state::text::smeared_state, spec_version = edited.spec_version
      FROM edited
     WHERE smeared_jobs.smear_id = :smear_id::bigint AND smeared_jobs.job_id = edited.job_id
)
SELECT count(*) AS jobs FROM edited;

-- name: leave
-- Jobs that a smear does not change, or does not change back. Index: smeared_jobs_pkey.
UPDATE smeared_jobs
   SET state = :state::text::smeared_state
 WHERE smear_id = :smear_id::bigint AND job_id = ANY(:job_ids::bigint[]);

-- name: leave_gone
-- The same for those of some jobs that are there no more. Indexes: smeared_jobs_pkey, jobs_pkey.
UPDATE smeared_jobs
   SET state = :state::text::smeared_state
 WHERE smear_id = :smear_id::bigint AND job_id = ANY(:job_ids::bigint[])
   AND NOT EXISTS (SELECT FROM jobs WHERE jobs.job_id = smeared_jobs.job_id);

-- name: postpone
-- Lets the others come first after a batch that failed. Index: smears_pkey.
UPDATE smears
   SET next_batch_at = clock_at() + :seconds::float * interval '1 second'
 WHERE smear_id = :smear_id::bigint AND finished_at IS NULL;

-- name: advance
-- Where the next batch of a locked smear begins, and when; it is over if no job waits for it. Indexes: smears_pkey,
-- smeared_jobs_pkey.
WITH open AS (
    SELECT EXISTS (SELECT FROM smeared_jobs
                    WHERE smear_id = :smear_id::bigint AND state::text = :open_state::text) AS is_open
)
UPDATE smears
   SET reached_job_id = :reached_job_id::bigint,
       next_batch_at = clock_at() + :wait_seconds::float * interval '1 second',
       finished_at = CASE WHEN NOT open.is_open THEN clock_at() END,
       status = CASE WHEN open.is_open THEN smears.status
                     WHEN smears.status = 'undoing' THEN 'undone'
                     ELSE 'done' END
  FROM open
 WHERE smear_id = :smear_id::bigint
RETURNING finished_at IS NOT NULL AS is_done;
