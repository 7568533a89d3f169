-- Housekeeping: days of the ledgers, rows that age, finished one-offs, lost timers, statistics. Called by the janitor.
-- Nothing here waits for anybody: rows that someone else has locked are left for the next round. Ages count from the
-- trusted time of `clock_marks`, which the caller passes: by a clock that was set wrong nothing is old.

-- name: take_turn
-- One janitor at a time. The lock goes with its transaction, which does nothing else and so holds up no vacuum.
SELECT pg_try_advisory_xact_lock(:lock::bigint);

-- name: hurry
-- For the rest of the transaction: give up soon when a lock cannot be had. Whoever waits for one on a ledger makes
-- all firing queue up behind. Shorter than deadlock_timeout, so that in a deadlock it is the janitor who steps back.
SELECT set_config('lock_timeout', '200ms', true);

-- name: missing_days
-- Which days from today on are no partition of the ledgers yet; takes no lock on them. After the clock was set back, seqs
-- go on from the furthest time that it showed: that day too, and the next.
SELECT day::date AS day
  FROM clock_marks
 CROSS JOIN LATERAL (VALUES (clock_at(), :ahead::integer), (furthest_at, 1)) AS stretch (from_at, ahead)
 CROSS JOIN LATERAL generate_series((from_at AT TIME ZONE 'UTC')::date, (from_at AT TIME ZONE 'UTC')::date + ahead,
                                    interval '1 day') AS day
 WHERE from_at >= clock_at() - interval '1 minute'
   AND to_regclass('outcomes_' || to_char(day, 'YYYYMMDD')) IS NULL
 GROUP BY day
 ORDER BY day;

-- name: add_day
SELECT add_day(:day::date);

-- name: expired_days
-- Days that ended longer ago than history is kept, and whether everything in them is finished: no attempt beyond its
-- lane's head, none out on a lease, none the latest of an open run. Nothing can become open in such a day any more,
-- as new attempts have new seqs. Indexes: attempts_pkey; leases and open runs are few and read whole.
WITH days AS MATERIALIZED (
    SELECT day, microseconds(day::timestamp AT TIME ZONE 'UTC') AS first_us,
           microseconds((day + 1)::timestamp AT TIME ZONE 'UTC') AS end_us
      FROM pg_inherits
      JOIN pg_class child ON child.oid = pg_inherits.inhrelid
     CROSS JOIN to_date(right(child.relname, 8), 'YYYYMMDD') AS day
     WHERE pg_inherits.inhparent = 'outcomes'::regclass
       AND (day + 1)::timestamp AT TIME ZONE 'UTC' < :before_at::timestamptz
)
SELECT days.day,
       NOT EXISTS (
           SELECT FROM leases WHERE leases.first_seq < days.end_us AND leases.last_seq >= days.first_us)
       AND NOT EXISTS (
           SELECT FROM open_runs WHERE open_runs.seq >= days.first_us AND open_runs.seq < days.end_us)
       AND NOT EXISTS (
           SELECT FROM lanes
            CROSS JOIN LATERAL (
                      SELECT FROM attempts
                       WHERE attempts.lane_id = lanes.lane_id
                         AND attempts.seq > greatest(lanes.head, days.first_us - 1) AND attempts.seq < days.end_us
                       LIMIT 1
                  ) AS waiting
            WHERE lanes.head < days.end_us) AS is_finished
  FROM days
 ORDER BY days.day;

-- name: drop_day
SELECT drop_day(:day::date);

-- name: prune_gaps
-- Gaps whose last tick is older than history is kept. Index: gaps_by_age.
WITH old AS (
    SELECT ctid FROM gaps
     WHERE last_at < :before_at::timestamptz
     ORDER BY last_at
     LIMIT :most::integer
       FOR UPDATE SKIP LOCKED
)
DELETE FROM gaps USING old WHERE gaps.ctid = old.ctid;

-- name: prune_withdrawals
-- Index: withdrawals_by_age.
WITH old AS (
    SELECT ctid FROM withdrawals
     WHERE withdrawn_at < :before_at::timestamptz
     ORDER BY withdrawn_at
     LIMIT :most::integer
       FOR UPDATE SKIP LOCKED
)
DELETE FROM withdrawals USING old WHERE withdrawals.ctid = old.ctid;

-- name: prune_requested_runs
-- Runs that were asked for by hand, when they are over: until then they hold the payload. Read whole: people ask for
-- few. Indexes: open_runs_pkey, timers_pkey.
WITH old AS (
    SELECT asked.ctid
      FROM requested_runs asked
     WHERE asked.fire_at < :before_at::timestamptz
       AND NOT EXISTS (SELECT FROM open_runs WHERE open_runs.job_id = asked.job_id AND open_runs.fire_at = asked.fire_at)
       AND NOT EXISTS (
               SELECT FROM timers
                WHERE timers.partition = (asked.job_id & 255)::smallint AND timers.job_id = asked.job_id
                  AND timers.fire_at = asked.fire_at)
       -- A dead letter is replayed with the payload of its run.
       AND NOT EXISTS (
               SELECT FROM dead_letters
                WHERE dead_letters.job_id = asked.job_id AND dead_letters.fire_at = asked.fire_at)
     LIMIT :most::integer
       FOR UPDATE OF asked SKIP LOCKED
)
DELETE FROM requested_runs USING old WHERE requested_runs.ctid = old.ctid;

-- name: purge_jobs
-- Jobs that were deleted longer ago than history is kept, with all that is left of them; but none with a run that is
-- not over. Each job is looked for in every day since it was made, from a cold disk that takes long, and in the one
-- before: the clock may have been set back.
-- Indexes: jobs_to_purge, attempts_of_run, outcomes_pkey, and each table's own by job_id.
WITH old AS (
    SELECT job.job_id
      FROM jobs job
     WHERE job.status = 'deleted' AND job.deleted_at < :before_at::timestamptz
       AND NOT EXISTS (SELECT FROM open_runs WHERE open_runs.job_id = job.job_id)
       AND NOT EXISTS (
               SELECT FROM attempts
                WHERE attempts.job_id = job.job_id
                  AND attempts.seq >= microseconds(least(job.created_at, job.deleted_at) - interval '1 day')
                  AND NOT EXISTS (
                          SELECT FROM outcomes
                           WHERE outcomes.lane_id = attempts.lane_id AND outcomes.seq = attempts.seq))
     ORDER BY job.deleted_at
     LIMIT :most::integer
       FOR UPDATE OF job SKIP LOCKED
),
versions AS (DELETE FROM job_versions USING old WHERE job_versions.job_id = old.job_id),
finished AS (DELETE FROM finished_jobs USING old WHERE finished_jobs.job_id = old.job_id),
letters AS (DELETE FROM dead_letters USING old WHERE dead_letters.job_id = old.job_id),
asked AS (DELETE FROM requested_runs USING old WHERE requested_runs.job_id = old.job_id),
withdrawn AS (DELETE FROM withdrawals USING old WHERE withdrawals.job_id = old.job_id),
missed AS (DELETE FROM gaps USING old WHERE gaps.job_id = old.job_id)
DELETE FROM jobs USING old WHERE jobs.job_id = old.job_id;

-- name: finished_one_offs
-- A page of jobs that finished after the given place, oldest first, and which of them are one-offs that were kept for
-- as long as they wanted. Indexes: finished_jobs_by_age, and the primary keys of the others.
WITH page AS MATERIALIZED (
    SELECT job_id, finished_at
      FROM finished_jobs
     WHERE (finished_at, job_id) > (:after_at::timestamptz, :after_id::bigint)
     ORDER BY finished_at, job_id
     LIMIT :most::integer
)
SELECT page.job_id, page.finished_at,
       coalesce(
           job.status <> 'deleted' AND rule.canonical LIKE '%"kind":"one_off"%'
           AND page.finished_at < :now_at::timestamptz - coalesce((version.spec ->> 'retain_seconds')::float, 86400)
                                                         * interval '1 second',
           false) AS is_kept_enough
  FROM page
  LEFT JOIN jobs job ON job.job_id = page.job_id
  LEFT JOIN job_versions version ON version.job_id = job.job_id AND version.spec_version = job.spec_version
  LEFT JOIN rules rule ON rule.rule_id = version.rule_id
 ORDER BY page.finished_at, page.job_id;

-- name: lock_jobs
-- Whoever edits, triggers or deletes these waits until the transaction ends; those it is being done to are left out.
-- What is decided about them is read by statements after this one, so that it is what the others left. Index: jobs_pkey.
SELECT job_id FROM jobs WHERE job_id = ANY(:job_ids::bigint[]) ORDER BY job_id FOR UPDATE SKIP LOCKED;

-- name: remove_one_offs
-- Deletes finished one-offs, locked by `lock_jobs`, of which nothing waits or runs; their history stays.
-- Attempts are looked for from the day before the job's creation on, so that older days need not be searched.
-- Indexes: finished_jobs_pkey, timers_pkey, open_runs_pkey, attempts_of_run, outcomes_pkey.
WITH removed AS (
    UPDATE jobs job
       SET status = 'deleted', deleted_at = clock_at(), updated_at = clock_at()
      FROM unnest(:job_ids::bigint[]) AS over (job_id)
     WHERE job.job_id = over.job_id AND job.status <> 'deleted'
       AND EXISTS (SELECT FROM finished_jobs WHERE finished_jobs.job_id = job.job_id)
       AND NOT EXISTS (
               SELECT FROM timers
                WHERE timers.partition = (job.job_id & 255)::smallint AND timers.job_id = job.job_id)
       AND NOT EXISTS (SELECT FROM open_runs WHERE open_runs.job_id = job.job_id)
       -- A dead letter may yet be replayed, and that needs its job.
       AND NOT EXISTS (SELECT FROM dead_letters WHERE dead_letters.job_id = job.job_id)
       AND NOT EXISTS (
               SELECT FROM attempts
                WHERE attempts.job_id = job.job_id AND attempts.seq >= microseconds(job.created_at - interval '1 day')
                  AND NOT EXISTS (
                          SELECT FROM outcomes
                           WHERE outcomes.lane_id = attempts.lane_id AND outcomes.seq = attempts.seq))
 RETURNING job.job_id
)
DELETE FROM finished_jobs USING removed WHERE finished_jobs.job_id = removed.job_id;

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
-- What is known of jobs, locked by `lock_jobs`, that have no tick's timer: `known_at` is the latest of their ticks that
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
-- Gives locked jobs their tick's timer back; those without a time are finished. A paused one's timer waits for ever.
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
SELECT (SELECT count(*) FROM healed) AS healed, (SELECT count(*) FROM finished) AS finished;

-- name: stale_statistics
-- Partitioned tables whose statistics no longer fit: autovacuum sees to their partitions, never to them. Right after
-- the first rows came, whenever there are ten times as many, and each day. By the server's own clock, as it noted.
SELECT parent.relname::text AS name
  FROM pg_class parent
  LEFT JOIN pg_stat_all_tables seen ON seen.relid = parent.oid
 CROSS JOIN LATERAL (
           SELECT coalesce(sum(part.n_live_tup), 0) AS rows
             FROM pg_inherits
             JOIN pg_stat_all_tables part ON part.relid = pg_inherits.inhrelid
            WHERE pg_inherits.inhparent = parent.oid
       ) AS now
 WHERE parent.oid IN ('timers'::regclass, 'attempts'::regclass, 'outcomes'::regclass)
   AND now.rows > 0
   AND (now.rows > 10 * parent.reltuples
        OR seen.last_analyze IS NULL
        OR seen.last_analyze < clock_timestamp() - interval '1 day')
 ORDER BY parent.relname;

-- name: analyze_timers
ANALYZE (SKIP_LOCKED) timers;

-- name: analyze_attempts
ANALYZE (SKIP_LOCKED) attempts;

-- name: analyze_outcomes
ANALYZE (SKIP_LOCKED) outcomes;
