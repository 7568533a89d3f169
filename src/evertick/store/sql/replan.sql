-- Timers that have to be computed anew: all of them after the database's clock was set back, partition by partition,
-- and those of jobs that lost theirs. Called by the janitor. No statement waits for a lock: locked rows are left for
-- another pass.

-- name: note_ran
-- Notes which ticks may have run while the clock was ahead, before any timer is moved back: `fire` looks whether a tick
-- of that stretch has a run already. An attempt's seq is never before its fire time. Reads the days ahead whole.
-- Indexes: attempts_pkey, withdrawals_by_age.
WITH ran AS (
    SELECT min(fire_at) AS first_at, timestamptz 'epoch' + max(seq) * interval '1 microsecond' AS last_at
      FROM attempts
     WHERE seq > microseconds(:after_at::timestamptz) AND fire_at > :after_at::timestamptz
       AND reason IN ('tick', 'late', 'catch_up')
),
withdrawn AS (
    SELECT min(fire_at) AS first_at, max(withdrawn_at) AS last_at
      FROM withdrawals
     WHERE withdrawn_at > :after_at::timestamptz AND fire_at > :after_at::timestamptz
       AND reason IN ('tick', 'late', 'catch_up')
)
UPDATE clock_marks
   SET ran_from_at = least(ran_from_at, ran.first_at, withdrawn.first_at),
       ran_until_at = greatest(ran_until_at, ran.last_at, withdrawn.last_at)
  FROM ran, withdrawn;

-- name: page
-- A page of a partition's timers that lie ahead: ticks by their fire times, all others by when they are due. `since_at`
-- is from when a run waits: it was asked for, or its last attempt ended.
-- Indexes: timers_pkey, requested_runs_pkey, open_runs_pkey, outcomes_pkey.
SELECT timer.job_id, timer.kind::text AS kind, timer.fire_at, timer.rule_id,
       CASE WHEN timer.kind <> 'tick' THEN timer.due_at END AS due_at,
       CASE
           WHEN timer.kind IN ('manual', 'replay') THEN (
               SELECT asked.requested_at FROM requested_runs asked
                WHERE asked.job_id = timer.job_id AND asked.fire_at = timer.fire_at)
           WHEN timer.kind = 'retry' THEN (
               -- One by one, where a join might read all outcomes.
               SELECT (SELECT outcome.finished_at FROM outcomes outcome
                        WHERE outcome.lane_id = run.lane_id AND outcome.seq = run.seq)
                 FROM open_runs run
                WHERE run.job_id = timer.job_id AND run.fire_at = timer.fire_at)
       END AS since_at
  FROM timers timer
 WHERE timer.partition = :partition::smallint
   AND (timer.job_id, timer.kind, timer.fire_at)
       > (:page_id::bigint, :page_kind::text::timer_kind, :page_at::timestamptz)
   AND CASE
           WHEN timer.kind = 'tick' THEN timer.fire_at > :now_at::timestamptz
           ELSE timer.due_at > :now_at::timestamptz AND timer.due_at < 'infinity'  -- else it waits for a resume
       END
 ORDER BY timer.job_id, timer.kind, timer.fire_at
 LIMIT :most::integer;

-- name: specs_ahead
-- The specs of those jobs that were made or edited while the clock was ahead. Indexes: jobs_pkey, job_versions_pkey.
SELECT job.job_id, version.spec::text AS spec
  FROM jobs job
  JOIN job_versions version ON version.job_id = job.job_id AND version.spec_version = job.spec_version
 WHERE job.job_id = ANY(:job_ids::bigint[]) AND version.effective_at > :now_at::timestamptz;

-- name: move
-- Moves timers that are still as they were read, and says which; those that another session has locked are passed over.
-- A paused job's timer stays due at infinity. A version that took effect ahead takes effect before its first tick.
-- Indexes: timers_pkey, job_versions_pkey.
WITH given AS MATERIALIZED (
    SELECT *
      FROM unnest(:job_ids::bigint[], :kinds::text[], :fire_ats::timestamptz[], :rule_ids::bigint[],
                  :new_fire_ats::timestamptz[], :new_due_ats::timestamptz[])
           AS g (job_id, kind, fire_at, rule_id, new_fire_at, new_due_at)
),
found AS MATERIALIZED (
    SELECT timer.tableoid AS table_id, timer.ctid AS row_id, timer.partition, timer.job_id, timer.kind, timer.fire_at,
           timer.spec_version, given.new_fire_at,
           CASE WHEN timer.due_at = 'infinity' THEN timer.due_at ELSE given.new_due_at END AS new_due_at
      FROM given
      JOIN timers timer
        ON timer.partition = (given.job_id & 255)::smallint AND timer.job_id = given.job_id
       AND timer.kind = given.kind::timer_kind AND timer.fire_at = given.fire_at AND timer.rule_id = given.rule_id
),
locked AS MATERIALIZED (
    SELECT partition, job_id, kind, fire_at, spec_version, new_fire_at, new_due_at
      FROM found
     WHERE ((table_id, row_id) IN (SELECT table_id, lock_rows(table_id, array_agg(row_id))
                                     FROM found
                                    GROUP BY table_id)) IS TRUE
),
moved AS (
    UPDATE timers timer
       SET fire_at = locked.new_fire_at, due_at = locked.new_due_at
      FROM locked
     WHERE timer.partition = locked.partition AND timer.job_id = locked.job_id
       AND timer.kind = locked.kind AND timer.fire_at = locked.fire_at
),
begun AS (
    UPDATE job_versions version
       SET effective_at = least(:after_at::timestamptz, locked.new_fire_at - interval '1 microsecond')
      FROM locked
     WHERE locked.kind = 'tick' AND version.job_id = locked.job_id AND version.spec_version = locked.spec_version
       AND version.effective_at >= locked.new_fire_at
)
SELECT job_id, kind::text AS kind FROM locked;

-- name: gaps_of_jobs
-- Gaps of some jobs that reach beyond an instant, with the rule by which their ticks count. What a change of the clocks
-- will swallow is known ahead and right. Indexes: gaps_pkey, job_versions_pkey, rules_pkey.
SELECT gap.job_id, gap.first_at, gap.last_at, gap.reason::text AS reason, rule.canonical
  FROM gaps gap
  JOIN job_versions version ON version.job_id = gap.job_id AND version.spec_version = gap.spec_version
  JOIN rules rule ON rule.rule_id = version.rule_id
 WHERE gap.job_id = ANY(:job_ids::bigint[]) AND gap.last_at > :after_at::timestamptz AND gap.reason <> 'dst';

-- name: gaps_page
-- The same of all jobs that are not deleted, in pages: the ticks of those will not come. Indexes: gaps_by_age, *_pkey.
SELECT gap.job_id, gap.first_at, gap.last_at, gap.reason::text AS reason, rule.canonical
  FROM gaps gap
  JOIN jobs job ON job.job_id = gap.job_id AND job.status <> 'deleted'
  JOIN job_versions version ON version.job_id = gap.job_id AND version.spec_version = gap.spec_version
  JOIN rules rule ON rule.rule_id = version.rule_id
 WHERE gap.last_at > :after_at::timestamptz AND gap.reason <> 'dst'
   AND (gap.last_at, gap.job_id, gap.first_at) > (:page_at::timestamptz, :page_id::bigint, :page_first::timestamptz)
 ORDER BY gap.last_at, gap.job_id, gap.first_at
 LIMIT :most::integer;

-- name: trim
-- Lets gaps end earlier, unless they changed meanwhile; one whose new end is null goes. Index: gaps_pkey.
WITH given AS MATERIALIZED (
    SELECT *
      FROM unnest(:job_ids::bigint[], :first_ats::timestamptz[], :last_ats::timestamptz[], :reasons::text[],
                  :new_last_ats::timestamptz[], :ticks::bigint[])
           AS g (job_id, first_at, last_at, reason, new_last_at, ticks)
),
removed AS (
    DELETE FROM gaps gap
     USING given
     WHERE gap.job_id = given.job_id AND gap.first_at = given.first_at AND gap.reason = given.reason::gap_reason
       AND gap.last_at = given.last_at AND given.new_last_at IS NULL
)
UPDATE gaps gap
   SET last_at = given.new_last_at, ticks = given.ticks
  FROM given
 WHERE gap.job_id = given.job_id AND gap.first_at = given.first_at AND gap.reason = given.reason::gap_reason
   AND gap.last_at = given.last_at AND given.new_last_at IS NOT NULL;

-- name: finished_page
-- Jobs whose last tick was settled while the clock was ahead. `has_run`: a tick of it led to a run.
-- Indexes: finished_jobs_by_age, jobs_pkey, job_versions_pkey, rules_pkey, attempts_of_run.
SELECT finished.job_id, finished.finished_at, job.created_at, rule.canonical, version.spec::text AS spec,
       EXISTS (SELECT FROM attempts
                WHERE attempts.job_id = finished.job_id AND attempts.reason IN ('tick', 'late', 'catch_up')) AS has_run
  FROM finished_jobs finished
  JOIN jobs job ON job.job_id = finished.job_id AND job.status <> 'deleted'
  JOIN job_versions version ON version.job_id = job.job_id AND version.spec_version = job.spec_version
  JOIN rules rule ON rule.rule_id = version.rule_id
 WHERE finished.finished_at > :after_at::timestamptz
   AND (finished.finished_at, finished.job_id) > (:page_at::timestamptz, :page_id::bigint)
 ORDER BY finished.finished_at, finished.job_id
 LIMIT :most::integer;

-- name: reopen
-- Jobs, locked by `jobs.lock_available`, are not finished after all: `repair_timers` gives them their timers. Index:
-- finished_jobs_pkey.
DELETE FROM finished_jobs WHERE job_id = ANY(:job_ids::bigint[]);

-- name: advance
-- A partition was planned anew, and the next one follows. If the clock was set back again meanwhile, all begin anew.
UPDATE clock_marks
   SET replan_from = replan_from + 1, is_replan_cut = is_replan_cut OR :is_cut::boolean
 WHERE replan_from = :partition::smallint;

-- name: complete
-- All partitions were planned anew; another pass follows if some rows were locked.
UPDATE clock_marks
   SET replan_from = CASE WHEN is_replan_cut THEN 0 END, is_replan_cut = false
 WHERE replan_from >= :partitions::smallint;

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
-- What is known of jobs, locked by `jobs.lock_available`, that have no tick's timer: `known_at` is the latest of their
-- ticks that is accounted for, by a run, a gap, or as one that waits. Indexes: as above, attempts_of_run, gaps_pkey.
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

-- name: repair_timers
-- Gives locked jobs their tick's timer back; those without a time are finished. A paused one's timer waits until it is
-- resumed. Indexes: jobs_pkey, job_versions_pkey, queues_tenant_id_name_key, timers_pkey, attempts_of_run.
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
    INSERT INTO timers (job_id, fire_at, due_at, tenant_id, rule_id, last_lane, last_seq, gate_id, queue_id,
                        spec_version, kind, partition, priority)
    SELECT job.job_id, healing.fire_at,
           CASE WHEN job.status = 'paused' THEN 'infinity' ELSE healing.due_at END,
           job.tenant_id, version.rule_id, latest.lane_id, latest.seq, version.gate_id, queue.queue_id,
           job.spec_version, 'tick',
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
