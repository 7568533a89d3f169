-- Removes what is older than it is kept (history, answers, deleted jobs, finished one-offs) and what nothing refers to
-- any more (superseded versions, rules, queues with their lanes). Called by the janitor. Nothing here waits for a lock:
-- rows that another session has locked are left for the next round. Ages count from the trusted time of `clock_marks`,
-- which the caller passes: by a clock that was set wrong nothing is old.

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
-- Runs that were asked for by hand, when they are over: until then they hold the payload. Read whole: there are
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

-- name: prune_target_hosts
-- Hosts without a rate limit that nothing was said of for so long: they work again, or nothing is delivered to them.
-- Index: target_hosts_by_age.
WITH old AS (
    SELECT ctid FROM target_hosts
     WHERE reported_at < :before_at::timestamptz AND rate_limit IS NULL
     ORDER BY reported_at
     LIMIT :most::integer
       FOR UPDATE SKIP LOCKED
)
DELETE FROM target_hosts USING old WHERE target_hosts.ctid = old.ctid;

-- name: prune_dead_letters
-- Dead letters that were neither replayed nor dismissed. Index: dead_letters_by_age.
WITH old AS (
    SELECT ctid FROM dead_letters
     WHERE died_at < :before_at::timestamptz
     ORDER BY died_at
     LIMIT :most::integer
       FOR UPDATE SKIP LOCKED
)
DELETE FROM dead_letters USING old WHERE dead_letters.ctid = old.ctid;

-- name: prune_alerts
-- Alerts that were closed before the history. Index: alerts_by_age.
WITH old AS (
    SELECT ctid FROM alerts
     WHERE NOT is_open AND closed_at < :before_at::timestamptz
     ORDER BY closed_at
     LIMIT :most::integer
       FOR UPDATE SKIP LOCKED
)
DELETE FROM alerts USING old WHERE alerts.ctid = old.ctid;

-- name: prune_replays
-- Replays that ended before the history. Index: replays_by_age.
WITH old AS (
    SELECT ctid, tenant_id FROM replays
     WHERE finished_at < :before_at::timestamptz
     ORDER BY finished_at
     LIMIT :most::integer
       FOR UPDATE SKIP LOCKED
),
counted AS (
    INSERT INTO storage_changes (tenant_id, bytes) SELECT tenant_id, -count(*) * replay_bytes() FROM old GROUP BY tenant_id
)
DELETE FROM replays USING old WHERE replays.ctid = old.ctid;

-- name: prune_smears
-- Smears that ended before the history, with the notes about their jobs: they cannot be undone any more.
-- Index: smears_by_age.
WITH old AS (
    SELECT smear_id FROM smears
     WHERE finished_at < :before_at::timestamptz
     ORDER BY finished_at
     LIMIT :most::integer
       FOR UPDATE SKIP LOCKED
)
DELETE FROM smears USING old WHERE smears.smear_id = old.smear_id;

-- name: prune_api_keys
-- Keys that ended before the history; a tenant's newest stays: a tenant that never had one is given a first.
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

-- name: remove_one_offs
-- Deletes finished one-offs, locked by `jobs.lock_available`, of which nothing waits or runs; their history stays.
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
-- Looks whether runs need versions that were superseded. New runs get their job's newest version, so what no run needs
-- at one instant none will ever need.
-- 1. First check: unless a run of the history has the version, or one that waits, payload, labels and headers go. The
--    rest tells which ticks the job had.
-- 2. When no run of it is open, and all days of the ledgers began later, it is removed.
-- Of a deleted job no run can be replayed: payload, labels and headers go as soon as no attempt is open, and the rest
-- goes with the job. Of waiting runs, attempts and dead letters some are looked at; if there are more, a version is
-- kept. Indexes: superseded_versions_to_check, timers_pkey, attempts_of_run, attempts_pkey, outcomes_pkey,
-- dead_letters_pkey, open_runs_pkey.
WITH ledgers AS MATERIALIZED (
    SELECT min(to_date(right(child.relname, 8), 'YYYYMMDD'))::timestamp AT TIME ZONE 'UTC' AS oldest_at
      FROM pg_inherits
      JOIN pg_class child ON child.oid = pg_inherits.inhrelid
     WHERE pg_inherits.inhparent = 'attempts'::regclass
),
old AS MATERIALIZED (
    SELECT superseded.ctid AS place, superseded.job_id, superseded.spec_version, superseded.idle_at, job.tenant_id,
           job.is_deleted
      FROM superseded_versions superseded
     CROSS JOIN LATERAL (
               SELECT tenant_id, status = 'deleted' AS is_deleted FROM jobs WHERE jobs.job_id = superseded.job_id LIMIT 1
           ) AS job
     WHERE superseded.check_at <= :now_at::timestamptz
     ORDER BY superseded.check_at
     LIMIT :most::integer
),
due AS MATERIALIZED (
    SELECT *
      FROM old
     WHERE (place IN (SELECT lock_rows('superseded_versions', ARRAY(SELECT place FROM old)))) IS TRUE
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
-- A page of rules: those that no version refers to are marked, and removed when they have been marked for an hour; but
-- for that of plain one-offs, which stays. A
-- statement that refers to a marked rule removes the mark first, and transactions that did not see the mark end within
-- the hour: no statement has to lock a rule. Indexes: rules_pkey, job_versions_of_rule.
WITH page AS MATERIALIZED (
    SELECT rule_id, unused_at, digest
      FROM rules
     WHERE rule_id > :after_id::bigint
     ORDER BY rule_id
     LIMIT :most::integer
),
judged AS MATERIALIZED (
    SELECT page.rule_id, page.unused_at,
           page.digest = one_off_digest()
           OR (SELECT true FROM job_versions WHERE job_versions.rule_id = page.rule_id LIMIT 1) IS NOT NULL AS is_used
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
-- The mark is read again under the row's lock: another session may just have removed it.
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
-- they have no limit, and nothing of the history is in their lanes.
-- Indexes: jobs_of_tenant, timers_pkey, lanes_of_queue, attempts_pkey.
WITH mine AS MATERIALIZED (
    SELECT job_id, queue FROM jobs WHERE tenant_id = :tenant_id::bigint AND status <> 'deleted'
),
judged AS MATERIALIZED (
    SELECT queue.queue_id, queue.unused_at,
           queue.max_running < 2147483647 OR queue.max_ready <> 250000 OR queue.rate_limit IS NOT NULL
           OR (queue.name IN (SELECT mine.queue FROM mine)) IS TRUE
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
