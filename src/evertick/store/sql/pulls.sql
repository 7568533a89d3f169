-- Workers that pull over HTTP: what they hold, as a server that remembers nothing has to look it up. Called by the use
-- cases. A lease that ran out is the worker's until somebody takes it over; of several that cover an attempt the
-- narrowest counts.

-- name: held
-- Those of some attempts that a worker holds, with what decides about what follows them. Another tenant's are not found,
-- nor are those whose lease has gone to someone else. Indexes: leases_of_worker, leases_of_attempt, attempts_pkey,
-- job_versions_pkey.
SELECT attempt.lane_id, attempt.seq, attempt.job_id, attempt.fire_at, attempt.spec_version,
       attempt.reason::text AS reason, attempt.attempt, version.retry::text AS retry
  FROM unnest(:lane_ids::bigint[], :seqs::bigint[]) AS given (lane_id, seq)
 CROSS JOIN LATERAL (
           SELECT lease.lease_id
             FROM leases lease
            WHERE lease.worker = :worker::text AND lease.lane_id = given.lane_id
              AND given.seq BETWEEN lease.first_seq AND lease.last_seq
              AND NOT EXISTS (
                      SELECT FROM leases own
                       WHERE own.lane_id = given.lane_id AND own.first_seq BETWEEN given.seq AND given.seq
                         AND own.first_seq = own.last_seq AND own.worker IS DISTINCT FROM :worker::text)
            LIMIT 1
       ) AS lease
  JOIN queues queue ON queue.queue_id = given.lane_id >> 10 AND queue.tenant_id = :tenant_id::bigint
  JOIN attempts attempt ON attempt.lane_id = given.lane_id AND attempt.seq = given.seq
  JOIN job_versions version ON version.job_id = attempt.job_id AND version.spec_version = attempt.spec_version;

-- name: release
-- Lets go of a worker's leases in which nothing is open any more, but for what has a lease of its own.
-- Indexes: leases_of_worker, leases_of_attempt, attempts_pkey, outcomes_pkey.
WITH over AS MATERIALIZED (
    SELECT lease.lease_id
      FROM leases lease
     WHERE lease.worker = :worker::text AND lease.lane_id = ANY(:lane_ids::bigint[])
       AND NOT EXISTS (
               SELECT FROM attempts
                WHERE attempts.lane_id = lease.lane_id AND attempts.seq BETWEEN lease.first_seq AND lease.last_seq
                  AND NOT EXISTS (SELECT FROM outcomes
                                   WHERE outcomes.lane_id = attempts.lane_id AND outcomes.seq = attempts.seq)
                  AND NOT EXISTS (SELECT FROM leases own
                                   WHERE own.lane_id = attempts.lane_id AND own.first_seq = attempts.seq
                                     AND own.first_seq = own.last_seq AND own.lease_id <> lease.lease_id))
     ORDER BY lease.lease_id  -- as all who lock several: a heartbeat may be under way
       FOR UPDATE OF lease
)
DELETE FROM leases USING over WHERE leases.lease_id = over.lease_id;

-- name: leases
-- The leases of a worker that some attempts are in. Index: leases_of_worker.
SELECT DISTINCT lease.lease_id
  FROM unnest(:lane_ids::bigint[], :seqs::bigint[]) AS given (lane_id, seq)
  JOIN leases lease
    ON lease.worker = :worker::text AND lease.lane_id = given.lane_id
   AND given.seq BETWEEN lease.first_seq AND lease.last_seq;

-- name: cancelled
-- Attempts in a worker's leases that were ended by others. Indexes: leases_of_worker, outcomes_pkey.
SELECT outcome.lane_id, outcome.seq
  FROM leases lease
  JOIN outcomes outcome ON outcome.lane_id = lease.lane_id AND outcome.seq BETWEEN lease.first_seq AND lease.last_seq
 WHERE lease.worker = :worker::text AND outcome.result = 'cancelled';

-- name: lost
-- Those of some attempts that a worker believes to run, and does not hold, or not any more. Indexes: leases_of_worker,
-- leases_of_attempt.
SELECT given.lane_id, given.seq
  FROM unnest(:lane_ids::bigint[], :seqs::bigint[]) AS given (lane_id, seq)
 WHERE (SELECT true
          FROM leases lease
         WHERE lease.worker = :worker::text AND lease.lane_id = given.lane_id
           AND given.seq BETWEEN lease.first_seq AND lease.last_seq
         LIMIT 1) IS NULL
    OR (SELECT true
          FROM leases own
         WHERE own.lane_id = given.lane_id AND own.first_seq BETWEEN given.seq AND given.seq
           AND own.first_seq = own.last_seq AND own.worker IS DISTINCT FROM :worker::text
         LIMIT 1);

-- name: extend_all
-- A heartbeat of a worker that does not say what it holds. A lease of which it may never have heard is kept no longer
-- than its attempts may take, and a lease time more. Indexes: leases_of_worker, attempts_pkey, job_versions_pkey.
WITH held AS MATERIALIZED (
    SELECT lease_id FROM leases WHERE worker = :worker::text ORDER BY lease_id FOR UPDATE
)
UPDATE leases lease
   SET expires_at = greatest(
           least(lease.expires_at, clock_at() + :lease_seconds::float * interval '1 second'),
           least(clock_at(),
                 lease.leased_at
                 + coalesce((SELECT max(version.timeout_seconds)
                               FROM attempts attempt
                              CROSS JOIN LATERAL (
                                        SELECT timeout_seconds
                                          FROM job_versions
                                         WHERE job_versions.job_id = attempt.job_id
                                           AND job_versions.spec_version = attempt.spec_version
                                         LIMIT 1
                                    ) AS version
                              WHERE attempt.lane_id = lease.lane_id
                                AND attempt.seq BETWEEN lease.first_seq AND lease.last_seq), 0) * interval '1 second')
           + :lease_seconds::float * interval '1 second'),
       lease_seconds = :lease_seconds::float
  FROM held
 WHERE lease.lease_id = held.lease_id;
