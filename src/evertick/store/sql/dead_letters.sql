-- Dead letters: runs whose attempts are used up, until they are replayed or dismissed. Called by the use cases.

-- name: page
-- A tenant's dead letters, newest first, with the last attempt's error. Indexes: dead_letters_of_tenant, outcomes_pkey.
SELECT letter.job_id, letter.fire_at, job.name, letter.died_at, letter.attempt, letter.reason, letter.spec_version,
       outcome.code, outcome.error
  FROM dead_letters letter
  JOIN jobs job ON job.job_id = letter.job_id
  LEFT JOIN outcomes outcome ON outcome.lane_id = letter.lane_id AND outcome.seq = letter.seq
 WHERE letter.tenant_id = :tenant_id::bigint
   AND letter.died_at >= :from_at::timestamptz AND letter.died_at <= :before_at::timestamptz
   AND (letter.died_at, letter.job_id, letter.fire_at)
       < (:before_at::timestamptz, :before_job_id::bigint, :before_fire_at::timestamptz)
   AND (:job_id::bigint IS NULL OR letter.job_id = :job_id::bigint)
   -- What is to be replayed needs its job.
   AND (NOT :of_live_jobs::boolean OR job.status <> 'deleted')
 ORDER BY letter.died_at DESC, letter.job_id DESC, letter.fire_at DESC
 LIMIT :most::integer;

-- name: take
-- Removes a dead letter and tells which version its run had. Index: dead_letters_pkey.
DELETE FROM dead_letters
 WHERE job_id = :job_id::bigint AND fire_at = :fire_at::timestamptz AND tenant_id = :tenant_id::bigint
RETURNING spec_version;
