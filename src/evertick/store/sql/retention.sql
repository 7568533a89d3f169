-- Rows that are older than they are kept: history, answers, deleted jobs, finished one-offs. Called by the janitor.
-- Nothing here waits for a lock: rows that somebody else has locked are left for the next round. Ages count
-- from the trusted time of `clock_marks`, which the caller passes: by a clock that was set wrong nothing is old.

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
