-- The archive: what a day of the history holds, which days were exported and checked, and in which files. Called by the
-- janitor, by commands, and by use cases that read archived runs. A run's line, of which digests are made, has the
-- columns of its file in their order; null is chr(30).

-- name: marks
-- Whether days must be archived, where, and why the last export failed.
SELECT is_on, url, failed_at, error FROM archive_marks;

-- name: turn
-- From now on days must be archived, or need not be.
UPDATE archive_marks
   SET is_on = :is_on::boolean, url = :url::text, failed_at = NULL, error = NULL
 WHERE is_on <> :is_on::boolean OR url IS DISTINCT FROM :url::text;

-- name: note_error
UPDATE archive_marks SET error = :error::text, failed_at = CASE WHEN :error::text IS NULL THEN NULL ELSE clock_at() END;

-- name: lock_exports
-- The lock of the one export at work. It ends with its transaction. With the schema, as that of the janitor.
SELECT pg_try_advisory_xact_lock(
           :lock::bigint # CASE current_schema() WHEN 'evertick' THEN 0 ELSE hashtextextended(current_schema()::text, 0) END);

-- name: loose_days
-- Days before an instant that have gaps or withdrawals. Indexes: gaps_by_age, withdrawals_by_age.
SELECT DISTINCT (at AT TIME ZONE 'UTC')::date AS day
  FROM (SELECT last_at AS at FROM gaps WHERE last_at < :before_at::timestamptz
         UNION ALL
        SELECT withdrawn_at FROM withdrawals WHERE withdrawn_at < :before_at::timestamptz) AS every
 ORDER BY day;

-- name: oldest_day
-- The first day of which there are attempts, gaps or withdrawals. Indexes: gaps_by_age, withdrawals_by_age.
SELECT least((SELECT min(to_date(right(child.relname, 8), 'YYYYMMDD'))
                FROM pg_inherits
                JOIN pg_class child ON child.oid = pg_inherits.inhrelid
               WHERE pg_inherits.inhparent = 'attempts'::regclass),
             (SELECT (min(last_at) AT TIME ZONE 'UTC')::date FROM gaps),
             (SELECT (min(withdrawn_at) AT TIME ZONE 'UTC')::date FROM withdrawals)) AS day;

-- name: claim
-- Begins the export of a day, or takes it over. Index: archived_days_pkey.
WITH latest AS (
    SELECT part + (state = 'dropped')::integer AS part
      FROM archived_days
     WHERE day = :day::date
     ORDER BY archived_days.part DESC
     LIMIT 1
)
INSERT INTO archived_days (day, part, token, claimed_at)
SELECT :day::date, coalesce((SELECT part FROM latest), 0), :token::text, clock_at()
    ON CONFLICT (day, part) DO UPDATE SET token = excluded.token, state = 'exporting', claimed_at = excluded.claimed_at
 WHERE archived_days.state <> 'dropped'
RETURNING part;

-- name: adopt
-- The files of earlier exports of a part that were checked belong to the one that has the claim. Index:
-- archive_files_of_day.
UPDATE archive_files file
   SET token = :token::text
 WHERE file.day = :day::date AND file.part = :part::integer AND file.is_checked AND NOT file.is_released
   AND EXISTS (SELECT FROM archived_days claimed
                WHERE claimed.day = file.day AND claimed.part = file.part AND claimed.token = :token::text)
RETURNING path, tenant_id, kind, rows, outcomes, bytes, digest::text AS digest, sha256;

-- name: measure
-- What the tables have of a day. Indexes: attempts_pkey, outcomes_pkey, gaps_by_age, withdrawals_by_age.
UPDATE archived_days
   SET attempts = (SELECT count(*) FROM attempts WHERE seq >= :first_seq::bigint AND seq < :end_seq::bigint),
       outcomes = (SELECT count(*) FROM outcomes WHERE seq >= :first_seq::bigint AND seq < :end_seq::bigint),
       (gaps, gaps_digest) = (
           SELECT count(*), coalesce(sum(gap_digest(job_id, first_at, last_at, ticks, spec_version, reason)), 0)
             FROM gaps WHERE last_at >= :from_at::timestamptz AND last_at < :end_at::timestamptz),
       (withdrawals, withdrawals_digest) = (
           SELECT count(*), coalesce(sum(withdrawal_digest(job_id, fire_at, withdrawn_at)), 0)
             FROM withdrawals
            WHERE withdrawn_at >= :from_at::timestamptz AND withdrawn_at < :end_at::timestamptz)
 WHERE day = :day::date AND part = :part::integer AND token = :token::text
RETURNING attempts, outcomes, gaps, withdrawals;

-- name: lanes_of_day
-- How many attempts and outcomes each lane has of a day, and of which tenant it is; 0 where nobody knows.
-- Indexes: attempts_pkey, outcomes_pkey, queues_pkey.
SELECT counted.lane_id, coalesce(queue.tenant_id, 0) AS tenant_id, counted.attempts, coalesce(ended.outcomes, 0) AS outcomes
  FROM (SELECT lane_id, count(*) AS attempts FROM attempts
         WHERE seq >= :first_seq::bigint AND seq < :end_seq::bigint GROUP BY lane_id) AS counted
  LEFT JOIN (SELECT lane_id, count(*) AS outcomes FROM outcomes
              WHERE seq >= :first_seq::bigint AND seq < :end_seq::bigint GROUP BY lane_id) AS ended
    ON ended.lane_id = counted.lane_id
  LEFT JOIN queues queue ON queue.queue_id = lane_queue(counted.lane_id)
 ORDER BY counted.lane_id;

-- name: loose_of_day
-- How many gaps and withdrawals each tenant has of a day, and the digest of the gaps.
-- Indexes: gaps_by_age, withdrawals_by_age, jobs_pkey.
SELECT coalesce(job.tenant_id, 0) AS tenant_id, sum(gaps)::bigint AS gaps, sum(withdrawals)::bigint AS withdrawals,
       sum(digest)::text AS gaps_digest
  FROM (SELECT job_id, 1 AS gaps, 0 AS withdrawals,
               gap_digest(job_id, first_at, last_at, ticks, spec_version, reason) AS digest
          FROM gaps WHERE last_at >= :from_at::timestamptz AND last_at < :end_at::timestamptz
         UNION ALL
        SELECT job_id, 0, 1, 0
          FROM withdrawals WHERE withdrawn_at >= :from_at::timestamptz AND withdrawn_at < :end_at::timestamptz) AS every
  LEFT JOIN jobs job ON job.job_id = every.job_id
 GROUP BY 1;

-- name: tenant_days
-- How long the archives of tenants are kept.
SELECT tenant_id, archive_days FROM tenants;

-- name: attempts_page
-- Some attempts of a day, of each lane those after a seq. The last attempt of a run is the one with a final outcome, or
-- the one that none follows. If later days are gone already, an attempt that ended without being the last has its
-- successor there. Indexes: attempts_pkey, outcomes_pkey, attempts_of_run, withdrawals_pkey, job_versions_pkey,
-- queues_pkey.
SELECT every.*,
       row_digest(concat_ws(chr(31),
           every.lane_id, every.seq, every.job_id, every.attempt, every.is_last::text, every.is_withdrawn::text,
           microseconds(every.fire_at), microseconds(every.due_at),
           coalesce(microseconds(every.started_at)::text, chr(30)),
           coalesce(microseconds(every.finished_at)::text, chr(30)),
           every.reason, every.spec_version, coalesce(every.result, chr(30)), coalesce(every.code::text, chr(30)),
           coalesce(every.worker, chr(30)), coalesce(every.error, chr(30)), coalesce(every.excerpt, chr(30)),
           every.job_name, every.queue, coalesce(every.handler, chr(30)), coalesce(every.target, chr(30)))) AS digest
  FROM (SELECT attempt.lane_id, attempt.seq, attempt.job_id, attempt.attempt::integer AS attempt,
               coalesce(outcome.is_final, false)
               OR ((SELECT true FROM attempts later
                     WHERE later.job_id = attempt.job_id AND later.fire_at = attempt.fire_at
                       AND later.seq > attempt.seq
                     LIMIT 1) IS NULL
                   AND (outcome.is_final IS NULL OR withdrawn.is_withdrawn OR NOT :are_later_gone::boolean)) AS is_last,
               coalesce(withdrawn.is_withdrawn, false) AS is_withdrawn,
               attempt.fire_at, attempt.due_at, outcome.started_at, outcome.finished_at,
               attempt.reason::text AS reason, attempt.spec_version, outcome.result::text AS result, outcome.code,
               outcome.worker, outcome.error, excerpt_of(outcome.excerpt, outcome.output) AS excerpt,
               coalesce(version.name, (SELECT name FROM jobs WHERE jobs.job_id = attempt.job_id), '') AS job_name,
               coalesce((SELECT name FROM queues WHERE queue_id = lane_queue(attempt.lane_id)), '') AS queue,
               version.handler, version.target
          FROM unnest(:lane_ids::bigint[], :after_seqs::bigint[]) AS lane (lane_id, after_seq)
         CROSS JOIN LATERAL (
                   SELECT * FROM attempts
                    WHERE attempts.lane_id = lane.lane_id AND attempts.seq > lane.after_seq
                      AND attempts.seq < :end_seq::bigint
                    ORDER BY attempts.seq
                    LIMIT :most::integer
               ) AS attempt
          LEFT JOIN LATERAL (
                   SELECT * FROM outcomes
                    WHERE outcomes.lane_id = attempt.lane_id AND outcomes.seq = attempt.seq LIMIT 1
               ) AS outcome ON true
          LEFT JOIN LATERAL (
                   SELECT true AS is_withdrawn FROM withdrawals
                    WHERE NOT coalesce(outcome.is_final, false)
                      AND withdrawals.job_id = attempt.job_id AND withdrawals.fire_at = attempt.fire_at LIMIT 1
               ) AS withdrawn ON true
          LEFT JOIN LATERAL (
                   SELECT name, handler, spec #>> '{target,type}' AS target FROM job_versions
                    WHERE job_versions.job_id = attempt.job_id AND job_versions.spec_version = attempt.spec_version
                    LIMIT 1
               ) AS version ON true) AS every
 ORDER BY every.lane_id, every.seq;

-- name: withdrawals_page
-- Some of a tenant's runs that were cancelled while they waited, by the day of that, as attempts with the number 0.
-- Indexes: withdrawals_by_age, jobs_pkey, attempts_of_run, job_versions_pkey.
SELECT every.*,
       row_digest(concat_ws(chr(31),
           every.lane_id, every.seq, every.job_id, every.attempt, every.is_last::text, every.is_withdrawn::text,
           microseconds(every.fire_at), microseconds(every.due_at), chr(30), microseconds(every.finished_at),
           every.reason, every.spec_version, every.result, chr(30), chr(30), chr(30), chr(30), every.job_name,
           every.queue, coalesce(every.handler, chr(30)), coalesce(every.target, chr(30)))) AS digest
  FROM (SELECT 0::bigint AS lane_id, microseconds(gone.withdrawn_at) AS seq, gone.job_id, 0 AS attempt,
               (SELECT true FROM attempts
                 WHERE attempts.job_id = gone.job_id AND attempts.fire_at = gone.fire_at LIMIT 1) IS NULL AS is_last,
               true AS is_withdrawn, gone.fire_at, gone.withdrawn_at AS due_at, NULL::timestamptz AS started_at,
               gone.withdrawn_at AS finished_at, gone.reason::text AS reason, gone.spec_version,
               'cancelled'::text AS result, NULL::integer AS code, NULL::text AS worker, NULL::text AS error,
               NULL::text AS excerpt, coalesce(version.name, job.name, '') AS job_name, coalesce(job.queue, '') AS queue,
               version.handler, version.target
          FROM withdrawals gone
          LEFT JOIN jobs job ON job.job_id = gone.job_id
          LEFT JOIN LATERAL (
                   SELECT name, handler, spec #>> '{target,type}' AS target FROM job_versions
                    WHERE job_versions.job_id = gone.job_id AND job_versions.spec_version = gone.spec_version LIMIT 1
               ) AS version ON true
         WHERE gone.withdrawn_at >= :from_at::timestamptz AND gone.withdrawn_at < :end_at::timestamptz
           AND (gone.withdrawn_at, gone.job_id, gone.fire_at)
               > (:from_at::timestamptz, :after_job_id::bigint, :after_fire_at::timestamptz)
           AND coalesce(job.tenant_id, 0) = :tenant_id::bigint
         ORDER BY gone.withdrawn_at, gone.job_id, gone.fire_at
         LIMIT :most::integer) AS every
 ORDER BY every.seq, every.job_id, every.fire_at;

-- name: gaps_page
-- Some of a tenant's gaps that end on a day. Indexes: gaps_by_age, jobs_pkey.
SELECT gap.job_id, gap.first_at, gap.last_at, gap.ticks, gap.spec_version, gap.reason::text AS reason,
       coalesce(job.name, '') AS job_name,
       gap_digest(gap.job_id, gap.first_at, gap.last_at, gap.ticks, gap.spec_version, gap.reason) AS digest
  FROM gaps gap
  LEFT JOIN jobs job ON job.job_id = gap.job_id
 WHERE gap.last_at >= :from_at::timestamptz AND gap.last_at < :end_at::timestamptz
   AND (gap.last_at, gap.job_id, gap.first_at, gap.reason)
       > (:from_at::timestamptz, :after_job_id::bigint, :after_first_at::timestamptz, :after_reason::text::gap_reason)
   AND coalesce(job.tenant_id, 0) = :tenant_id::bigint
 ORDER BY gap.last_at, gap.job_id, gap.first_at, gap.reason
 LIMIT :most::integer;

-- name: note_file
-- A file that is about to be written, if the export still has its claim.
INSERT INTO archive_files (path, day, part, tenant_id, noted_at, kind, token)
SELECT :path::text, day, part, :tenant_id::bigint, clock_at(), :kind::text, token
  FROM archived_days
 WHERE day = :day::date AND part = :part::integer AND token = :token::text
   FOR SHARE
RETURNING path;

-- name: check_file
-- A file was read back and holds what the tables had, if the export still has its claim. Locked: a claim that comes
-- meanwhile adopts the file, or is seen.
UPDATE archive_files file
   SET is_checked = true, rows = :rows::bigint, outcomes = :outcomes::bigint, bytes = :bytes::bigint,
       digest = :digest::text::numeric, sha256 = :sha256::text, first_seq = :first_seq::bigint,
       last_seq = :last_seq::bigint, first_at = :first_at::timestamptz, last_at = :last_at::timestamptz
 WHERE file.path = :path::text
   AND EXISTS (SELECT FROM archived_days claimed
                WHERE claimed.day = file.day AND claimed.part = file.part AND claimed.token = :token::text
                  AND claimed.token = file.token
                  FOR SHARE)
RETURNING path;

-- name: reject_files
-- Files that do not hold what they should: they are removed as others that were not finished.
UPDATE archive_files SET is_checked = false WHERE path = ANY(:paths::text[]) AND NOT is_released;

-- name: verify_day
-- All files of a part are there and checked. Index: archived_days_pkey.
UPDATE archived_days SET state = 'verified', verified_at = clock_at()
 WHERE day = :day::date AND part = :part::integer AND token = :token::text
RETURNING part;

-- name: drop_archived_day
SELECT drop_archived_day(:day::date, :part::integer, :token::text);

-- name: leftovers
-- Files of exports that were interrupted or have lost their claim. The manifest of a claim that was not lost stays.
-- Index: archive_files_unchecked.
SELECT file.path, file.noted_at
  FROM archive_files file
 WHERE NOT file.is_checked AND NOT file.is_released
   AND NOT EXISTS (SELECT FROM archived_days claimed
                    WHERE claimed.day = file.day AND claimed.part = file.part AND claimed.token = file.token
                      AND (claimed.state = 'exporting' OR file.kind = 'manifest'))
 ORDER BY file.noted_at
 LIMIT :most::integer;

-- name: forget_files
DELETE FROM archive_files WHERE path = ANY(:paths::text[]);

-- name: outdated
-- Files of tenants that keep their archive for a shorter time. Indexes: archive_files_of_tenant, tenants_pkey.
SELECT file.path, file.tenant_id, file.day
  FROM tenants tenant
 CROSS JOIN LATERAL (
           SELECT path, tenant_id, day
             FROM archive_files
            WHERE archive_files.tenant_id = tenant.tenant_id AND is_released
              AND day < (:now_at::timestamptz AT TIME ZONE 'UTC')::date - tenant.archive_days
            LIMIT :most::integer
       ) AS file
 WHERE tenant.archive_days < 36500
 LIMIT :most::integer;

-- name: days
-- The exports, newest first, with what their files hold.
SELECT exported.day, exported.part, exported.state::text AS state, exported.attempts, exported.gaps, exported.verified_at,
       exported.dropped_at, coalesce(sum(file.rows), 0)::bigint AS rows, coalesce(sum(file.bytes), 0)::bigint AS bytes,
       count(file.path) AS files
  FROM archived_days exported
  LEFT JOIN archive_files file ON file.day = exported.day AND file.part = exported.part AND file.is_checked
 GROUP BY exported.day, exported.part
 ORDER BY exported.day DESC, exported.part DESC
 LIMIT :most::integer;

-- name: files_of_day
-- Index: archive_files_of_day.
SELECT path, tenant_id, kind, rows, outcomes, bytes, digest::text AS digest, sha256
  FROM archive_files
 WHERE day = :day::date AND is_checked
 ORDER BY path;

-- name: summary
-- How far the archive has come.
SELECT (SELECT count(DISTINCT day) FROM archived_days WHERE state = 'dropped') AS days,
       (SELECT max(day) FROM archived_days WHERE state = 'dropped') AS last_day;

-- name: are_later_gone
-- Whether a day after this one was dropped already. Index: archived_days_pkey.
SELECT EXISTS (SELECT FROM archived_days WHERE day > :day::date AND state = 'dropped');

-- name: files_by_seq
-- A tenant's files with attempts before a place, those with the latest first. Index: archive_files_by_seq.
SELECT path, day, first_seq, last_seq, first_at, last_at
  FROM archive_files
 WHERE tenant_id = :tenant_id::bigint AND kind = 'runs' AND is_released
   AND first_seq <= :before_seq::bigint AND last_seq >= :from_seq::bigint
   AND last_at >= :from_at::timestamptz AND first_at < :before_at::timestamptz
 ORDER BY last_seq DESC
 LIMIT :most::integer;

-- name: files_by_fire_time
-- A tenant's files with fire times in a range, those with the latest first. Index: archive_files_of_tenant.
SELECT path, day, first_seq, last_seq, first_at, last_at
  FROM archive_files
 WHERE tenant_id = :tenant_id::bigint AND kind = :kind::text AND is_released
   AND last_at >= :from_at::timestamptz AND first_at < :before_at::timestamptz
 ORDER BY last_at DESC
 LIMIT :most::integer;
