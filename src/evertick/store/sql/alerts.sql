-- Alerts, and where their notices go. Looked for and told by janitors, opened by the fuse of schedulers, read by users.

-- name: take_look
-- Locks a look, unless another process has it or nothing is to do yet. Index: alert_looks_pkey.
SELECT after_id, began_at, clock_at() AS now_at
  FROM alert_looks
 WHERE look = :look::text
   -- One that lies further ahead than any pause is from before the clock was set back.
   AND (next_at <= clock_at() OR next_at > clock_at() + interval '10 minutes')
   FOR UPDATE SKIP LOCKED;

-- name: end_look
-- Where the next part of a locked look begins, and when. Index: alert_looks_pkey.
UPDATE alert_looks
   SET after_id = :after_id::bigint, began_at = :began_at::timestamptz, next_at = :next_at::timestamptz
 WHERE look = :look::text;

-- name: watched_jobs
-- The next jobs that have alert rules or an open alert. Indexes: jobs_with_alerts, alerts_open_of_job.
SELECT job_id
  FROM ((SELECT job_id
           FROM jobs
          WHERE has_alerts AND status <> 'deleted' AND job_id > :after_id::bigint
          ORDER BY job_id
          LIMIT :most::integer)
         UNION
        (SELECT job_id
           FROM alerts
          WHERE is_open AND job_id IS NOT NULL AND job_id > :after_id::bigint
          ORDER BY job_id
          LIMIT :most::integer)) AS watched
 ORDER BY job_id
 LIMIT :most::integer;

-- name: job_facts
-- What alert rules are judged by: each job with its last success and its failures in a row, looked for among its newest
-- attempts, with what has not started though it was due, and with what runs.
-- Indexes: jobs_pkey, job_versions_pkey, rules_pkey, alert_targets_pkey, timers_pkey, finished_jobs_pkey,
-- attempts_of_run, outcomes_pkey, lanes_pkey, leases_expired, leases_of_attempt, open_runs_pkey.
SELECT job.job_id, job.tenant_id, job.name, job.status::text AS status, finished.job_id IS NOT NULL AS is_finished,
       greatest(job.created_at, job.resumed_at, (version.spec ->> 'start_at')::timestamptz,
                -- What runs once need not have succeeded before it is due.
                CASE WHEN rule.canonical LIKE '%"kind":"one_off"%' THEN timer.fire_at END) AS since_at,
       -- Rules about notices would alert on alerts.
       CASE WHEN job.job_id = (SELECT target.job_id FROM alert_targets target WHERE target.tenant_id = job.tenant_id)
            THEN '{}' ELSE version.spec::text END AS spec,
       greatest(CASE WHEN outcome.result = 'success' THEN outcome.finished_at ELSE failed.success_at END,
                -- One that lies ahead is from before the clock was set back.
                CASE WHEN job.noted_success_at <= clock.now_at THEN job.noted_success_at END) AS success_at,
       job.noted_success_at,
       coalesce(failed.failures, 0) AS failures,
       least(CASE WHEN timer.due_at < clock.now_at THEN timer.due_at END,
             CASE WHEN outcome.result IS NULL
                       AND (CASE WHEN lane_is_gated(latest.lane_id) THEN held.leased_at IS NULL
                                 ELSE lane.head < latest.seq END
                            -- It was put back. Not IS NULL: on an empty table the index of all free leases looks as good.
                            OR (SELECT true FROM leases free
                                 WHERE free.lane_id = latest.lane_id AND free.first_seq BETWEEN latest.seq AND latest.seq
                                   AND free.first_seq = free.last_seq AND coalesce(free.worker, '') = ''
                                 LIMIT 1))
                  THEN latest.due_at END) AS waits_since_at,
       extract(epoch FROM coalesce(outcome.started_at, held.leased_at) - latest.due_at)::float AS seconds_late,
       running.since_at AS running_since_at, clock.now_at
  FROM (SELECT clock_at() AS now_at) AS clock
 CROSS JOIN unnest(:job_ids::bigint[]) AS given (job_id)
 CROSS JOIN LATERAL (SELECT * FROM jobs WHERE jobs.job_id = given.job_id LIMIT 1) AS job
 CROSS JOIN LATERAL (
           SELECT spec, rule_id FROM job_versions
            WHERE job_versions.job_id = job.job_id AND job_versions.spec_version = job.spec_version LIMIT 1
       ) AS version
 CROSS JOIN LATERAL (SELECT canonical FROM rules WHERE rules.rule_id = version.rule_id LIMIT 1) AS rule
  LEFT JOIN LATERAL (
           SELECT fire_at, due_at, last_lane, last_seq
             FROM timers
            WHERE timers.partition = (job.job_id & 255)::smallint AND timers.job_id = job.job_id
              AND timers.kind = 'tick'
            LIMIT 1
       ) AS timer ON true
  LEFT JOIN LATERAL (
           SELECT job_id FROM finished_jobs WHERE finished_jobs.job_id = job.job_id LIMIT 1
       ) AS finished ON true
  LEFT JOIN LATERAL (
           SELECT attempts.due_at, attempts.lane_id, attempts.seq
             FROM attempts
            WHERE attempts.job_id = job.job_id AND attempts.seq >= coalesce(timer.last_seq, 0) - 86400000000
            ORDER BY attempts.fire_at DESC, attempts.seq DESC
            LIMIT 1
       ) AS latest ON true
  LEFT JOIN LATERAL (SELECT head FROM lanes WHERE lanes.lane_id = latest.lane_id LIMIT 1) AS lane ON true
  LEFT JOIN LATERAL (
           SELECT outcomes.result, outcomes.started_at, outcomes.finished_at
             FROM outcomes
            WHERE outcomes.lane_id = latest.lane_id AND outcomes.seq = latest.seq
            LIMIT 1
       ) AS outcome ON true
  LEFT JOIN LATERAL (
           SELECT leases.leased_at
             FROM leases
            WHERE leases.partition = (job.job_id & 255)::smallint AND leases.worker IS NOT NULL
              AND (leases.lane_id = latest.lane_id) IS TRUE  -- so, it goes by partition
              AND latest.seq BETWEEN leases.first_seq AND leases.last_seq
            ORDER BY leases.last_seq - leases.first_seq
            LIMIT 1
       ) AS held ON true
  -- Not asked of a job whose latest run has succeeded.
  LEFT JOIN LATERAL failures_of_job(
           CASE WHEN outcome.result IS DISTINCT FROM 'success' THEN job.job_id END, :most_attempts::integer
       ) AS failed ON true
  LEFT JOIN LATERAL (
           -- All runs under way: the latest tick's, and those that are listed.
           SELECT min(lease.leased_at) AS since_at
             FROM (SELECT timer.last_lane AS lane_id, timer.last_seq AS seq
                    UNION ALL
                   (SELECT lane_id, seq FROM open_runs
                     WHERE open_runs.job_id = job.job_id
                     ORDER BY open_runs.fire_at
                     LIMIT :most_open::integer)) AS under_way
            CROSS JOIN LATERAL (
                      SELECT leases.leased_at
                        FROM leases
                       WHERE leases.partition = (job.job_id & 255)::smallint AND leases.worker IS NOT NULL
                         AND (leases.lane_id = under_way.lane_id) IS TRUE
                         AND under_way.seq BETWEEN leases.first_seq AND leases.last_seq
                       ORDER BY leases.last_seq - leases.first_seq
                       LIMIT 1
                  ) AS lease
            WHERE (SELECT true FROM outcomes
                    WHERE outcomes.lane_id = under_way.lane_id AND outcomes.seq = under_way.seq LIMIT 1) IS NULL
              AND (SELECT true FROM leases free
                    WHERE free.lane_id = under_way.lane_id AND free.first_seq BETWEEN under_way.seq AND under_way.seq
                      AND free.first_seq = free.last_seq AND coalesce(free.worker, '') = ''
                    LIMIT 1) IS NULL
       ) AS running ON true
 ORDER BY job.job_id;

-- name: note_successes
-- Remembers successes for longer than the history, but of jobs that others have locked. Index: jobs_pkey.
WITH available AS (
    SELECT jobs.job_id, given.success_at
      FROM unnest(:job_ids::bigint[], :success_ats::timestamptz[]) AS given (job_id, success_at)
      JOIN jobs ON jobs.job_id = given.job_id
     ORDER BY jobs.job_id
       FOR NO KEY UPDATE OF jobs SKIP LOCKED
)
UPDATE jobs SET noted_success_at = available.success_at FROM available WHERE jobs.job_id = available.job_id;

-- name: durations
-- How long the newest successes of some jobs took, in seconds, newest first. Indexes: attempts_of_run, outcomes_pkey.
SELECT given.job_id, ended.seconds
  FROM unnest(:job_ids::bigint[]) AS given (job_id)
 CROSS JOIN LATERAL (
           SELECT took.seconds, recent.fire_at, recent.seq
             FROM (SELECT attempts.fire_at, attempts.lane_id, attempts.seq
                     FROM attempts
                    WHERE attempts.job_id = given.job_id
                    ORDER BY attempts.fire_at DESC, attempts.seq DESC
                    LIMIT :most_attempts::integer) AS recent
            CROSS JOIN LATERAL (
                      SELECT extract(epoch FROM outcomes.finished_at - outcomes.started_at)::float AS seconds
                        FROM outcomes
                       WHERE outcomes.lane_id = recent.lane_id AND outcomes.seq = recent.seq
                         AND outcomes.result = 'success' AND outcomes.started_at <= outcomes.finished_at
                       LIMIT 1
                  ) AS took
            ORDER BY recent.fire_at DESC, recent.seq DESC
            LIMIT :most::integer
       ) AS ended
 ORDER BY given.job_id, ended.fire_at DESC, ended.seq DESC;

-- name: tenant_facts
-- The next tenants with an alert target, with what their conditions are judged by. Dead letters of notices do not count.
-- Jobs are counted up to the part of their quota that matters.
-- Indexes: alert_targets_pkey, tenants_pkey, dead_letters_of_tenant, timers_of_tenant, jobs_of_tenant, storage_sums_pkey,
-- storage_changes_of_tenant.
SELECT target.tenant_id, target.conditions, letters.count AS letters, due.count AS due, counted.jobs, tenant.jobs_quota,
       stored.bytes AS stored_bytes, tenant.storage_quota_bytes
  FROM (SELECT clock_at() AS now_at) AS clock
 CROSS JOIN (SELECT tenant_id, job_id, conditions
               FROM alert_targets
              WHERE tenant_id > :after_id::bigint
              ORDER BY tenant_id
              LIMIT :most::integer) AS target
 CROSS JOIN LATERAL (
           SELECT jobs_quota, storage_quota_bytes FROM tenants WHERE tenants.tenant_id = target.tenant_id LIMIT 1
       ) AS tenant
 CROSS JOIN LATERAL (
           SELECT count(*)
             FROM (SELECT FROM dead_letters
                    WHERE dead_letters.tenant_id = target.tenant_id
                      AND dead_letters.died_at > clock.now_at - :letters_seconds::float * interval '1 second'
                      AND dead_letters.job_id <> target.job_id
                    LIMIT :most_letters::integer) AS lately
       ) AS letters
 CROSS JOIN LATERAL (
           SELECT count(*)
             FROM (SELECT
                     FROM generate_series(0, 255) AS place (partition)
                    CROSS JOIN generate_series(0, 2) AS share (priority)
                    CROSS JOIN LATERAL (
                              SELECT FROM timers
                               WHERE timers.partition = place.partition::smallint
                                 -- Compared as rows, which timers_due cannot do: it would go through all tenants'.
                                 AND (timers.tenant_id, timers.priority, timers.due_at)
                                     > (target.tenant_id, share.priority::smallint, '-infinity'::timestamptz)
                                 AND (timers.tenant_id, timers.priority, timers.due_at)
                                     < (target.tenant_id, share.priority::smallint,
                                        clock.now_at - :due_seconds::float * interval '1 second')
                               ORDER BY timers.tenant_id, timers.priority, timers.due_at
                               LIMIT :most_due::integer
                          ) AS overdue
                    WHERE 'catch_up' = ANY(target.conditions)
                    LIMIT :most_due::integer) AS overdue
       ) AS due
 CROSS JOIN LATERAL (
           SELECT count(*) AS jobs
             FROM (SELECT FROM jobs
                    WHERE jobs.tenant_id = target.tenant_id AND jobs.status <> 'deleted' AND 'quota' = ANY(target.conditions)
                    LIMIT ceil(:near_end::float * tenant.jobs_quota)::bigint) AS first_jobs
       ) AS counted
 CROSS JOIN LATERAL (
           SELECT coalesce(greatest(sum(bytes), 0), 0)::bigint AS bytes
             FROM (SELECT bytes FROM storage_sums WHERE storage_sums.tenant_id = target.tenant_id
                    UNION ALL
                   SELECT bytes FROM storage_changes WHERE storage_changes.tenant_id = target.tenant_id) AS every
       ) AS stored
 ORDER BY target.tenant_id;

-- name: failing_hosts
-- Hosts of some tenants whose circuits are not closed, some of each tenant. Index: target_hosts_pkey.
SELECT failing.tenant_id, failing.host, failing.last_error
  FROM unnest(:tenant_ids::bigint[]) AS given (tenant_id)
 CROSS JOIN LATERAL (
           SELECT tenant_id, host, last_error
             FROM target_hosts
            WHERE target_hosts.tenant_id = given.tenant_id AND watched_until > (SELECT clock_at()) AND state <> 'closed'
            ORDER BY host
            LIMIT :most_each::integer
       ) AS failing;

-- name: of_jobs
-- The alerts of some jobs. Index: alerts_of_job.
SELECT alert.alert_id, alert.tenant_id, alert.condition, alert.subject, alert.job_id, alert.is_open, alert.opened_at,
       alert.closed_at, alert.openings
  FROM unnest(:job_ids::bigint[]) AS given (job_id)
 CROSS JOIN LATERAL (SELECT * FROM alerts WHERE alerts.job_id = given.job_id LIMIT :most_each::integer) AS alert;

-- name: of_tenants
-- The alerts of some tenants that are about no job. Index: alerts_about_tenant.
SELECT alert.alert_id, alert.tenant_id, alert.condition, alert.subject, alert.job_id, alert.is_open, alert.opened_at,
       alert.closed_at, alert.openings
  FROM unnest(:tenant_ids::bigint[]) AS given (tenant_id)
 CROSS JOIN LATERAL (
           SELECT *
             FROM alerts
            WHERE alerts.tenant_id = given.tenant_id AND alerts.job_id IS NULL
            -- Open ones in any case.
            ORDER BY alerts.is_open DESC
            LIMIT :most_each::integer
       ) AS alert;

-- name: open
-- Opens alerts; one that is open stays as it is. One about a tenant opens only if the tenant still has a target, which
-- cannot be removed meanwhile: nobody would close it. Indexes: alerts_tenant_id_condition_subject_key, alert_targets_pkey.
WITH watched AS MATERIALIZED (
    SELECT tenant_id
      FROM alert_targets
     WHERE tenant_id = ANY(:tenant_ids::bigint[])
     ORDER BY tenant_id
       FOR KEY SHARE SKIP LOCKED
)
INSERT INTO alerts (alert_id, tenant_id, job_id, opened_at, openings, is_open, condition, subject, detail)
-- Each has an instant of its own in its id.
SELECT ((microseconds(clock.now_at) + number) << 10) + floor(random() * 1024)::bigint, tenant_id, job_id, clock.now_at,
       openings, true, condition, subject, detail
  FROM unnest(:tenant_ids::bigint[], :job_ids::bigint[], :openings::integer[], :conditions::text[], :subjects::text[],
              :details::text[]) WITH ORDINALITY AS given (tenant_id, job_id, openings, condition, subject, detail, number)
 CROSS JOIN (SELECT clock_at() AS now_at) AS clock
 WHERE job_id IS NOT NULL OR tenant_id IN (SELECT watched.tenant_id FROM watched)
 ORDER BY tenant_id, condition, subject  -- in one order, against others that open the same
    ON CONFLICT (tenant_id, condition, subject) DO UPDATE
   SET job_id = excluded.job_id, opened_at = excluded.opened_at, closed_at = NULL, openings = excluded.openings,
       is_open = true, detail = excluded.detail, close_reason = NULL
 WHERE NOT alerts.is_open;

-- name: close
-- Closes alerts that are open, locked in the order of their ids, as by all who change several. Index: alerts_pkey.
WITH still_open AS MATERIALIZED (
    SELECT alert_id FROM alerts WHERE alert_id = ANY(:alert_ids::bigint[]) AND is_open ORDER BY alert_id FOR UPDATE
)
UPDATE alerts
   SET is_open = false, closed_at = clock_at(),
       close_reason = (:reasons::text[])[array_position(:alert_ids::bigint[], alert_id)]
 WHERE alert_id = ANY(ARRAY(SELECT alert_id FROM still_open));

-- name: untold
-- Alerts that opened or closed since their last notice, of tenants that want to know, unless that notice is under way;
-- some of each tenant, and none of one that has many notices under way. Indexes: alerts_untold, timers_pkey,
-- open_runs_pkey, jobs_pkey.
SELECT alert.alert_id, alert.tenant_id, alert.job_id, alert.opened_at, alert.closed_at, alert.openings, alert.is_open,
       alert.condition, alert.subject, alert.detail, alert.close_reason, target.job_id AS notice_job_id,
       (SELECT name FROM jobs WHERE jobs.job_id = alert.job_id LIMIT 1) AS job_name
  FROM alert_targets target
 CROSS JOIN LATERAL (
           SELECT alerts.*
             FROM alerts
            WHERE alerts.untold_tenant_id = target.tenant_id
              -- IS TRUE keeps it from an index that has the condition in second place.
              AND (alerts.condition = ANY(target.conditions)) IS TRUE
              AND (SELECT true FROM timers
                    WHERE timers.partition = (alerts.notice_job_id & 255)::smallint
                      AND timers.job_id = alerts.notice_job_id AND timers.kind <> 'tick'
                      AND timers.fire_at = alerts.notice_at
                    LIMIT 1) IS NULL
              AND (SELECT true FROM open_runs
                    WHERE open_runs.job_id = alerts.notice_job_id AND open_runs.fire_at = alerts.notice_at
                    LIMIT 1) IS NULL
            LIMIT :most_of_tenant::integer
       ) AS alert
 WHERE (SELECT jobs.status <> 'deleted' FROM jobs WHERE jobs.job_id = target.job_id LIMIT 1)
   AND (SELECT count(*)
          FROM ((SELECT FROM timers
                  WHERE timers.partition = (target.job_id & 255)::smallint AND timers.job_id = target.job_id
                    AND timers.kind <> 'tick'
                  LIMIT :most_under_way::integer)
                 UNION ALL
                (SELECT FROM open_runs WHERE open_runs.job_id = target.job_id LIMIT :most_under_way::integer)) AS under_way)
       < :most_under_way::integer
 LIMIT :most::integer;

-- name: lock_targets
-- Locks the jobs of targets, as `jobs.lock_available`, but those that were deleted since they were read. Index: jobs_pkey.
SELECT job_id FROM jobs
 WHERE job_id = ANY(:job_ids::bigint[]) AND (status <> 'deleted') IS TRUE  -- which no other index has
 ORDER BY job_id
   FOR UPDATE SKIP LOCKED;

-- name: tell
-- Notes the run that tells of an alert as it is. Index: alerts_pkey.
UPDATE alerts
   SET is_told_open = :is_open::boolean, notice_job_id = :notice_job_id::bigint, notice_at = :notice_at::timestamptz
 WHERE alert_id = :alert_id::bigint;

-- name: page
-- A tenant's alerts, those that were opened first most lately at the top, with the state of their last notice.
-- Indexes: alerts_of_tenant, jobs_pkey, timers_pkey, open_runs_pkey, withdrawals_pkey, attempts_of_run, outcomes_pkey.
SELECT alert.alert_id, alert.job_id, alert.opened_at, alert.closed_at, alert.openings, alert.is_open, alert.condition,
       alert.subject, alert.detail, alert.close_reason, alert.notice_job_id, alert.notice_at,
       (SELECT name FROM jobs WHERE jobs.job_id = alert.job_id LIMIT 1) AS job_name,
       (SELECT true FROM timers
         WHERE timers.partition = (alert.notice_job_id & 255)::smallint AND timers.job_id = alert.notice_job_id
           AND timers.kind <> 'tick' AND timers.fire_at = alert.notice_at
         LIMIT 1) IS NOT NULL
           OR (SELECT true FROM open_runs
                WHERE open_runs.job_id = alert.notice_job_id AND open_runs.fire_at = alert.notice_at
                LIMIT 1) IS NOT NULL AS is_notice_under_way,
       (SELECT true FROM withdrawals
         WHERE withdrawals.job_id = alert.notice_job_id AND withdrawals.fire_at = alert.notice_at
         LIMIT 1) IS NOT NULL AS is_notice_withdrawn,
       last_notice.result::text AS notice_result
  FROM (SELECT *
          FROM alerts
         WHERE tenant_id = :tenant_id::bigint AND alert_id < :before::bigint
           AND (:is_open::boolean IS NULL OR is_open = :is_open::boolean)
           AND (:condition::text IS NULL OR condition = :condition::text)
         ORDER BY alert_id DESC
         LIMIT :most::integer) AS alert
  LEFT JOIN LATERAL (
           SELECT outcome.result
             FROM (SELECT lane_id, seq
                     FROM attempts
                    WHERE attempts.job_id = alert.notice_job_id AND attempts.fire_at = alert.notice_at
                      AND attempts.seq >= microseconds(alert.notice_at)
                    ORDER BY attempts.seq DESC
                    LIMIT 1) AS last_attempt
            CROSS JOIN LATERAL (
                      SELECT result FROM outcomes
                       WHERE outcomes.lane_id = last_attempt.lane_id AND outcomes.seq = last_attempt.seq
                       LIMIT 1
                  ) AS outcome
       ) AS last_notice ON true
 ORDER BY alert.alert_id DESC;

-- name: target
-- A tenant's alert target, unless its job was deleted. Indexes: alert_targets_pkey, jobs_pkey.
SELECT target.job_id, target.conditions
  FROM alert_targets target
  JOIN jobs job ON job.job_id = target.job_id AND job.status <> 'deleted'
 WHERE target.tenant_id = :tenant_id::bigint;

-- name: put_target
-- What is open was not told to this target unless its job did so. Indexes: alert_targets_pkey, alerts_of_tenant.
WITH told AS MATERIALIZED (
    SELECT alert_id
      FROM alerts
     WHERE tenant_id = :tenant_id::bigint AND is_open AND is_told_open AND notice_job_id <> :job_id::bigint
     ORDER BY alert_id
       FOR UPDATE
),
retold AS (
    UPDATE alerts SET is_told_open = false WHERE alert_id = ANY(ARRAY(SELECT alert_id FROM told))
)
INSERT INTO alert_targets (tenant_id, job_id, conditions)
VALUES (:tenant_id::bigint, :job_id::bigint, :conditions::text[])
    ON CONFLICT (tenant_id) DO UPDATE SET job_id = excluded.job_id, conditions = excluded.conditions;

-- name: remove_target
-- Waits for a janitor that opens an alert about the tenant. Index: alert_targets_pkey.
DELETE FROM alert_targets WHERE tenant_id = :tenant_id::bigint;

-- name: close_of_tenant
-- After the target was removed, in the same transaction: nobody looks at the tenant's conditions from now on, so what is
-- open about them is closed. A statement of its own sees what was opened before. Index: alerts_about_tenant.
WITH still_open AS MATERIALIZED (
    SELECT alert_id
      FROM alerts
     WHERE tenant_id = :tenant_id::bigint AND job_id IS NULL AND is_open
     ORDER BY alert_id
       FOR UPDATE
)
UPDATE alerts
   SET is_open = false, closed_at = clock_at(), close_reason = :reason::text
 WHERE alert_id = ANY(ARRAY(SELECT alert_id FROM still_open));

-- name: count
-- How many alerts are open, and how many have a last notice that could not be delivered, each counted up to a limit.
-- Indexes: alerts_open, alerts_told, dead_letters_pkey.
SELECT (SELECT count(*) FROM (SELECT FROM alerts WHERE is_open LIMIT :most::integer) AS first_open)::integer AS open,
       (SELECT count(*)
          FROM (SELECT notice_job_id, notice_at FROM alerts WHERE notice_at IS NOT NULL LIMIT :most::integer) AS told
         WHERE (SELECT true FROM dead_letters
                 WHERE dead_letters.job_id = told.notice_job_id AND dead_letters.fire_at = told.notice_at
                 LIMIT 1))::integer AS failed;
