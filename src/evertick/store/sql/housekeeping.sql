-- Housekeeping: days of the ledgers, rows that age, finished one-offs, what nothing refers to, how much tenants store, lost
-- timers, statistics. Called by the janitor.
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
    SELECT asked.ctid, job.tenant_id, requested_bytes(asked.payload::text) AS bytes
      FROM requested_runs asked
      JOIN jobs job ON job.job_id = asked.job_id
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
),
counted AS (
    INSERT INTO storage_changes (tenant_id, bytes) SELECT tenant_id, -sum(bytes) FROM old GROUP BY tenant_id
)
DELETE FROM requested_runs USING old WHERE requested_runs.ctid = old.ctid;

-- name: prune_audit_log
-- Index: audit_log_by_age.
WITH old AS (
    SELECT ctid, tenant_id FROM audit_log
     WHERE changed_at < :before_at::timestamptz
     ORDER BY changed_at
     LIMIT :most::integer
       FOR UPDATE SKIP LOCKED
),
counted AS (
    INSERT INTO storage_changes (tenant_id, bytes) SELECT tenant_id, -count(*) * audit_bytes() FROM old GROUP BY tenant_id
)
DELETE FROM audit_log USING old WHERE audit_log.ctid = old.ctid;

-- name: prune_api_keys
-- Keys that ended before the history; a tenant's newest stays, for who never had one is given a first.
-- Indexes: api_keys_ended, api_keys_of_tenant.
WITH old AS (
    SELECT key.ctid
      FROM api_keys key
     WHERE least(key.revoked_at, key.expires_at) < :before_at::timestamptz
       AND (key.revoked_at IS NOT NULL OR key.expires_at IS NOT NULL)
       AND EXISTS (SELECT FROM api_keys newer WHERE newer.tenant_id = key.tenant_id AND newer.key_id > key.key_id)
     ORDER BY least(key.revoked_at, key.expires_at)
     LIMIT :most::integer
       FOR UPDATE OF key SKIP LOCKED
)
DELETE FROM api_keys USING old WHERE api_keys.ctid = old.ctid;

-- name: prune_answers
-- Answers that were kept for as long as they are promised. Index: idempotency_keys_by_age.
WITH old AS (
    SELECT ctid, tenant_id, answer_bytes(body) AS bytes FROM idempotency_keys
     WHERE answered_at < :before_at::timestamptz
     ORDER BY answered_at
     LIMIT :most::integer
       FOR UPDATE SKIP LOCKED
),
counted AS (
    INSERT INTO storage_changes (tenant_id, answer_bytes) SELECT tenant_id, -sum(bytes) FROM old GROUP BY tenant_id
)
DELETE FROM idempotency_keys USING old WHERE idempotency_keys.ctid = old.ctid;

-- name: purge_jobs
-- Jobs that were deleted longer ago than history is kept, with all that is left of them; but none with a run that is
-- not over. Each job is looked for in every day since it was made, from a cold disk that takes long, and in the one
-- before: the clock may have been set back.
-- Indexes: jobs_to_purge, attempts_of_run, outcomes_pkey, and each table's own by job_id.
WITH old AS (
    SELECT job.job_id, job.tenant_id
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
versions AS (
    DELETE FROM job_versions USING old WHERE job_versions.job_id = old.job_id
 RETURNING old.tenant_id, version_bytes(payload::text, spec::text) AS bytes
),
superseded AS (DELETE FROM superseded_versions USING old WHERE superseded_versions.job_id = old.job_id),
finished AS (DELETE FROM finished_jobs USING old WHERE finished_jobs.job_id = old.job_id),
letters AS (DELETE FROM dead_letters USING old WHERE dead_letters.job_id = old.job_id),
asked AS (
    DELETE FROM requested_runs USING old WHERE requested_runs.job_id = old.job_id
 RETURNING old.tenant_id, requested_bytes(payload::text) AS bytes
),
counted AS (
    INSERT INTO storage_changes (tenant_id, bytes)
    SELECT tenant_id, -sum(bytes)
      FROM (SELECT tenant_id, bytes FROM versions UNION ALL SELECT tenant_id, bytes FROM asked) AS freed
     GROUP BY tenant_id
),
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
 RETURNING job.job_id, job.spec_version
),
-- A large payload need not stay for as long as the history; a small one is not worth the work.
superseded AS (
    INSERT INTO superseded_versions (job_id, spec_version, check_at)
    SELECT removed.job_id, removed.spec_version, clock_at()
      FROM removed
     CROSS JOIN LATERAL (
               SELECT payload FROM job_versions version
                WHERE version.job_id = removed.job_id AND version.spec_version = removed.spec_version LIMIT 1
           ) AS version
     WHERE pg_column_size(version.payload) > 1000
        ON CONFLICT DO NOTHING
)
DELETE FROM finished_jobs USING removed WHERE finished_jobs.job_id = removed.job_id;

-- name: check_versions
-- Looks whether runs need versions that were superseded. New runs get their job's newest version, so what no run needs at
-- one instant none will ever need.
-- 1. First check: unless a run of the history has the version, or one that waits, payload, labels and headers go. The
--    rest tells which ticks the job had.
-- 2. When no run of it is open, and all days of the ledgers began later, it is removed.
-- Of a deleted job no run can be replayed: payload, labels and headers go as soon as no attempt is open, and the rest
-- goes with the job. Of waiting runs, attempts and dead letters some are looked at; if there are more, a version is kept.
-- Indexes: superseded_versions_to_check, timers_pkey, attempts_of_run, attempts_pkey, outcomes_pkey, dead_letters_pkey,
-- open_runs_pkey.
WITH ledgers AS MATERIALIZED (
    SELECT min(to_date(right(child.relname, 8), 'YYYYMMDD'))::timestamp AT TIME ZONE 'UTC' AS oldest_at
      FROM pg_inherits
      JOIN pg_class child ON child.oid = pg_inherits.inhrelid
     WHERE pg_inherits.inhparent = 'attempts'::regclass
),
due AS MATERIALIZED (
    SELECT superseded.ctid AS place, superseded.job_id, superseded.spec_version, superseded.idle_at, job.tenant_id,
           job.is_deleted
      FROM superseded_versions superseded
     CROSS JOIN LATERAL (
               SELECT tenant_id, status = 'deleted' AS is_deleted FROM jobs WHERE jobs.job_id = superseded.job_id LIMIT 1
           ) AS job
     WHERE superseded.check_at <= :now_at::timestamptz
     ORDER BY superseded.check_at
     LIMIT :most::integer
       FOR UPDATE OF superseded SKIP LOCKED
),
looked AS MATERIALIZED (
    SELECT due.*, version.version_place, version.bytes,
           waiting.rows = :most_looked_at::integer OR coalesce(waiting.any, false)
           OR dead.rows = :most_looked_at::integer OR coalesce(dead.any, false) AS is_waiting,
           (SELECT true
              FROM open_runs
             WHERE open_runs.job_id = due.job_id
               AND (SELECT spec_version FROM attempts
                     WHERE attempts.lane_id = open_runs.lane_id AND attempts.seq = open_runs.seq LIMIT 1)
                   = due.spec_version
             LIMIT 1) IS NOT NULL
           -- The tick's timer speaks for the last run of a job whose runs are not listed.
           OR (SELECT true
                 FROM timers
                WHERE timers.partition = (due.job_id & 255)::smallint AND timers.job_id = due.job_id
                  AND timers.kind = 'tick'
                  AND (SELECT spec_version FROM attempts
                        WHERE attempts.lane_id = timers.last_lane AND attempts.seq = timers.last_seq LIMIT 1)
                      = due.spec_version
                  AND (SELECT true FROM outcomes
                        WHERE outcomes.lane_id = timers.last_lane AND outcomes.seq = timers.last_seq LIMIT 1) IS NULL
                LIMIT 1) IS NOT NULL
           OR coalesce(started.any_open, false) AS is_open,
           started.rows = :most_looked_at::integer AS is_cut, coalesce(started.any, false) AS is_in_history
      FROM due
     CROSS JOIN clock_marks
     CROSS JOIN LATERAL (
               SELECT ctid AS version_place, version_bytes(payload::text, spec::text) AS bytes, effective_at
                 FROM job_versions
                WHERE job_versions.job_id = due.job_id AND job_versions.spec_version = due.spec_version LIMIT 1
           ) AS version
     CROSS JOIN LATERAL (
               SELECT count(*) AS rows, bool_or(first.spec_version = due.spec_version) AS any
                 FROM (SELECT spec_version FROM timers
                        WHERE timers.partition = (due.job_id & 255)::smallint AND timers.job_id = due.job_id
                        LIMIT :most_looked_at::integer) AS first
           ) AS waiting
     CROSS JOIN LATERAL (
               SELECT count(*) AS rows, bool_or(first.spec_version = due.spec_version) AS any
                 FROM (SELECT spec_version FROM dead_letters
                        WHERE dead_letters.job_id = due.job_id AND NOT due.is_deleted
                        LIMIT :most_looked_at::integer) AS first
           ) AS dead
     CROSS JOIN LATERAL (
               SELECT count(*) AS rows, bool_or(first.spec_version = due.spec_version) AS any,
                      bool_or(first.spec_version = due.spec_version
                              AND (SELECT true FROM outcomes
                                    WHERE outcomes.lane_id = first.lane_id AND outcomes.seq = first.seq LIMIT 1) IS NULL)
                          AS any_open
                 FROM (SELECT spec_version, lane_id, seq FROM attempts
                        WHERE attempts.job_id = due.job_id AND due.idle_at IS NULL
                          -- Made while the clock was ahead, it may have run since the clock was set back.
                          AND attempts.seq >= microseconds(
                                  CASE WHEN version.effective_at BETWEEN clock_marks.ran_from_at AND clock_marks.ran_until_at
                                       THEN clock_marks.ran_from_at ELSE version.effective_at END - interval '1 minute')
                        LIMIT :most_looked_at::integer) AS first
           ) AS started
),
judged AS MATERIALIZED (
    SELECT looked.*,
           CASE
               WHEN is_deleted THEN CASE WHEN is_waiting OR is_open OR is_cut THEN 'wait' ELSE 'empty' END
               WHEN is_waiting OR is_open THEN 'wait'
               WHEN idle_at IS NULL THEN CASE WHEN is_cut OR is_in_history THEN 'keep' ELSE 'empty' END
               WHEN idle_at < (SELECT oldest_at FROM ledgers) THEN 'remove'
               ELSE 'keep'
           END AS verdict
      FROM looked
),
removed AS (
    DELETE FROM job_versions version
     USING judged
     WHERE version.ctid = judged.version_place AND judged.verdict = 'remove'
 RETURNING judged.tenant_id, judged.bytes
),
emptied AS (
    UPDATE job_versions version
       SET payload = NULL, spec = (version.spec::jsonb - 'labels' #- '{target,headers}')::json
      FROM judged
     WHERE version.ctid = judged.version_place AND judged.verdict = 'empty'
 RETURNING judged.tenant_id, judged.bytes - version_bytes(NULL, version.spec::text) AS bytes
),
counted AS (
    INSERT INTO storage_changes (tenant_id, bytes)
    SELECT tenant_id, -sum(bytes)
      FROM (SELECT tenant_id, bytes FROM removed UNION ALL SELECT tenant_id, bytes FROM emptied) AS freed
     GROUP BY tenant_id
),
settled AS (
    DELETE FROM superseded_versions superseded
     USING judged
     WHERE superseded.ctid = judged.place
       AND (judged.verdict = 'remove' OR judged.verdict = 'empty' AND judged.is_deleted)
),
later AS (
    UPDATE superseded_versions superseded
       SET idle_at = CASE WHEN judged.verdict <> 'wait' THEN coalesce(judged.idle_at, :now_at::timestamptz) END,
           check_at = CASE WHEN judged.verdict = 'wait' THEN :now_at::timestamptz + interval '1 hour'
                           WHEN judged.idle_at IS NULL THEN :now_at::timestamptz + :history_seconds::float * interval '1 second'
                           ELSE :now_at::timestamptz + interval '1 day' END
      FROM judged
     WHERE superseded.ctid = judged.place
       AND (judged.verdict IN ('wait', 'keep') OR judged.verdict = 'empty' AND NOT judged.is_deleted)
),
-- The earlier versions of a deleted job: what kept them was that their runs might be replayed.
sooner AS (
    UPDATE superseded_versions superseded
       SET idle_at = NULL, check_at = :now_at::timestamptz
     WHERE superseded.job_id = ANY(ARRAY(SELECT job_id FROM judged WHERE is_deleted AND verdict = 'empty'))
       AND superseded.check_at > :now_at::timestamptz
)
SELECT (SELECT count(*) FROM due) AS checked, (SELECT count(*) FROM emptied) AS emptied,
       (SELECT count(*) FROM removed) AS removed;

-- name: sweep_rules
-- A page of rules: those that no version refers to are marked, and removed when they have been marked for an hour. Who
-- refers to a marked one takes the mark away first, so within the hour all are done who did not see it: nobody has to
-- lock a rule. Indexes: rules_pkey, job_versions_of_rule.
WITH page AS MATERIALIZED (
    SELECT rule_id, unused_at
      FROM rules
     WHERE rule_id > :after_id::bigint
     ORDER BY rule_id
     LIMIT :most::integer
),
judged AS MATERIALIZED (
    SELECT page.rule_id, page.unused_at,
           (SELECT true FROM job_versions WHERE job_versions.rule_id = page.rule_id LIMIT 1) IS NOT NULL AS is_used
      FROM page
),
marked AS (
    UPDATE rules
       SET unused_at = :now_at::timestamptz
     WHERE rule_id = ANY(ARRAY(SELECT rule_id FROM judged WHERE NOT is_used AND unused_at IS NULL))
),
reused AS (
    UPDATE rules
       SET unused_at = NULL
     WHERE rule_id = ANY(ARRAY(SELECT rule_id FROM judged WHERE is_used AND unused_at IS NOT NULL))
),
-- The mark is looked at again under the row's lock: somebody may just have taken it away.
removed AS (
    DELETE FROM rules
     WHERE rule_id = ANY(ARRAY(SELECT rule_id FROM judged WHERE NOT is_used))
       AND unused_at < :now_at::timestamptz - interval '1 hour'
 RETURNING rule_id
)
SELECT (SELECT max(rule_id) FROM page) AS last_id, (SELECT count(*) FROM removed) AS removed;

-- name: crowded_tenants
-- Tenants with more queues than this.
SELECT tenant_id FROM queues GROUP BY tenant_id HAVING count(*) > :least::integer ORDER BY tenant_id;

-- name: sweep_queues
-- The same as `sweep_rules` for a tenant's queues, which go with their lanes: neither a job nor a timer refers to them,
-- and nothing of the history is in their lanes.
-- Indexes: jobs_of_tenant, timers_pkey, lanes_of_queue, attempts_pkey.
WITH mine AS MATERIALIZED (
    SELECT job_id, queue FROM jobs WHERE tenant_id = :tenant_id::bigint AND status <> 'deleted'
),
judged AS MATERIALIZED (
    SELECT queue.queue_id, queue.unused_at,
           (queue.name IN (SELECT mine.queue FROM mine)) IS TRUE
           OR (queue.queue_id IN (
                  SELECT timer.queue_id
                    FROM mine
                   CROSS JOIN LATERAL (
                             SELECT DISTINCT queue_id FROM timers
                              WHERE timers.partition = (mine.job_id & 255)::smallint AND timers.job_id = mine.job_id
                         ) AS timer)) IS TRUE
           OR (SELECT true
                 FROM lanes lane
                CROSS JOIN LATERAL (
                          SELECT FROM attempts WHERE attempts.lane_id = lane.lane_id LIMIT 1
                      ) AS attempt
                WHERE lane.queue_id = queue.queue_id
                LIMIT 1) IS NOT NULL AS is_used
      FROM queues queue
     WHERE queue.tenant_id = :tenant_id::bigint
),
marked AS (
    UPDATE queues queue
       SET unused_at = CASE WHEN judged.is_used THEN NULL ELSE :now_at::timestamptz END
      FROM judged
     WHERE queue.queue_id = judged.queue_id AND judged.is_used = (judged.unused_at IS NOT NULL)
       AND queue.unused_at IS NOT DISTINCT FROM judged.unused_at
),
removed AS (
    DELETE FROM queues queue
     USING judged
     WHERE queue.queue_id = judged.queue_id AND NOT judged.is_used
       AND judged.unused_at < :now_at::timestamptz - interval '1 hour' AND queue.unused_at = judged.unused_at
 RETURNING queue.queue_id
),
emptied AS (
    DELETE FROM lanes USING removed WHERE lanes.queue_id = removed.queue_id
)
SELECT count(*) AS removed FROM removed;

-- name: sum_storage
-- Sums up what has changed of tenants' storage. Index: storage_sums_pkey.
WITH first AS (
    SELECT ctid FROM storage_changes LIMIT :most::integer FOR UPDATE SKIP LOCKED
),
taken AS (
    DELETE FROM storage_changes USING first WHERE storage_changes.ctid = first.ctid
 RETURNING tenant_id, bytes, answer_bytes
),
added AS (
    INSERT INTO storage_sums (tenant_id, bytes, answer_bytes)
    SELECT tenant_id, sum(bytes), sum(answer_bytes) FROM taken GROUP BY tenant_id ORDER BY tenant_id
        ON CONFLICT (tenant_id) DO UPDATE
       SET bytes = storage_sums.bytes + excluded.bytes, answer_bytes = storage_sums.answer_bytes + excluded.answer_bytes
)
SELECT count(*) AS summed FROM taken;

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
