-- What one job did day by day, and its versions. Called by the use cases for pages.

-- name: days
-- A job's runs of a stretch by day, counted from 1970, and what became of them by their latest attempts, up to a limit of
-- runs; the newest ones count. Indexes: attempts_of_run, outcomes_pkey.
SELECT microseconds(latest.fire_at) / 86400000000 AS day, count(*) AS runs,
       count(*) FILTER (WHERE ended.result = 'success') AS succeeded,
       count(*) FILTER (WHERE ended.is_final AND ended.result IN ('failed', 'timed_out', 'lost')) AS failed
  FROM (SELECT DISTINCT ON (fire_at) fire_at, lane_id, seq
          FROM attempts
         -- An attempt is never before its fire time: the bound spares the days before.
         WHERE job_id = :job_id::bigint AND seq >= :from_seq::bigint
           AND fire_at >= :from_at::timestamptz AND fire_at < :before_at::timestamptz
         ORDER BY fire_at DESC, seq DESC
         LIMIT :most::integer) AS latest
  LEFT JOIN LATERAL (
           SELECT outcomes.result, outcomes.is_final
             FROM outcomes
            WHERE outcomes.lane_id = latest.lane_id AND outcomes.seq = latest.seq
            LIMIT 1
       ) AS ended ON true
 GROUP BY 1
 ORDER BY 1;

-- name: version
-- What one version of a job says, without its payload. Index: job_versions_pkey.
SELECT spec::text FROM job_versions WHERE job_id = :job_id::bigint AND spec_version = :spec_version::integer;

-- name: versions
-- A job's newest versions, each with who made it: the entry of the audit log that the same change wrote, looked for
-- shortly after the version took effect and before the next one did. Indexes: job_versions_pkey, audit_log_by_age.
SELECT version.spec_version, version.effective_at, version.spec::text AS spec, version.payload::text AS payload,
       change.actor
  FROM (SELECT spec_version, effective_at, spec, payload,
               lag(effective_at) OVER (ORDER BY spec_version DESC) AS next_at
          FROM job_versions
         WHERE job_id = :job_id::bigint
         ORDER BY spec_version DESC
         LIMIT :most::integer) AS version
  LEFT JOIN LATERAL (
           SELECT near.actor
             -- By age alone: a plan by tenant would read all changes of the tenant.
             FROM (SELECT tenant_id, subject, actor
                     FROM audit_log
                    WHERE changed_at >= version.effective_at
                      AND changed_at < least(version.effective_at + interval '5 seconds', version.next_at)
                    ORDER BY changed_at
                   OFFSET 0) AS near
            WHERE near.tenant_id = :tenant_id::bigint AND near.subject = :subject::text
            LIMIT 1
       ) AS change ON true
 ORDER BY version.spec_version DESC;
