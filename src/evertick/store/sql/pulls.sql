-- Workers that pull over HTTP: the queues that they wait for, and what they hold, which a server looks up, because it
-- remembers nothing. Called by the use cases. A lease that ran out is the worker's until it is taken over; of several
-- that cover an attempt the narrowest counts.

-- name: held
-- Those of some attempts that a worker holds, with what decides about what follows them. Another tenant's are not
-- found, nor are those whose lease another worker has by now. Indexes: leases_of_worker, leases_of_attempt,
-- attempts_pkey, job_versions_pkey, queues_pkey, tenants_pkey.
SELECT attempt.lane_id, attempt.seq, attempt.job_id, attempt.fire_at, attempt.spec_version,
       attempt.reason::text AS reason, attempt.attempt, version.retry::text AS retry,
       least(queue.max_running, tenant.running_quota) < 2147483647 AS is_capped, lease.leased_at
  FROM unnest(:lane_ids::bigint[], :seqs::bigint[]) AS given (lane_id, seq)
 CROSS JOIN LATERAL (
           SELECT lease.leased_at
             FROM leases lease
            WHERE lease.worker = :worker::text AND lease.lane_id = given.lane_id
              AND given.seq BETWEEN lease.first_seq AND lease.last_seq
              AND NOT EXISTS (
                      SELECT FROM leases own
                       WHERE own.lane_id = given.lane_id AND own.first_seq BETWEEN given.seq AND given.seq
                         AND own.first_seq = own.last_seq AND own.worker IS DISTINCT FROM :worker::text)
            ORDER BY lease.first_seq DESC, lease.last_seq  -- the narrowest, past what a pinned snapshot keeps
            LIMIT 1
       ) AS lease
  JOIN queues queue ON queue.queue_id = lane_queue(given.lane_id) AND queue.tenant_id = :tenant_id::bigint
  JOIN tenants tenant ON tenant.tenant_id = queue.tenant_id
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
     ORDER BY lease.lease_id  -- as every statement that locks several: a heartbeat may be under way
       FOR UPDATE OF lease
)
DELETE FROM leases USING over WHERE leases.lease_id = over.lease_id;

-- name: leases
-- The leases of a worker that some attempts are in. Index: leases_of_worker.
SELECT DISTINCT lease.lease_id
  FROM unnest(:lane_ids::bigint[], :seqs::bigint[]) AS given (lane_id, seq)
 CROSS JOIN LATERAL (
           SELECT lease_id
             FROM leases
            WHERE leases.worker = :worker::text AND leases.lane_id = given.lane_id
              AND given.seq BETWEEN leases.first_seq AND leases.last_seq
            ORDER BY leases.first_seq DESC, leases.last_seq  -- the narrowest, past what a pinned snapshot keeps
            LIMIT 1
       ) AS lease;

-- name: cancelled
-- Attempts in a worker's leases that another session ended. Indexes: leases_of_worker, outcomes_pkey.
SELECT outcome.lane_id, outcome.seq
  FROM leases lease
  JOIN outcomes outcome ON outcome.lane_id = lease.lane_id AND outcome.seq BETWEEN lease.first_seq AND lease.last_seq
 WHERE lease.worker = :worker::text AND outcome.result = 'cancelled';

-- name: lost
-- Those of some attempts that a worker believes to run, and does not hold, or not any more. A consumer does not hold what
-- has an outcome, or is past its end. Indexes: leases_of_worker, leases_of_attempt, outcomes_pkey.
SELECT given.lane_id, given.seq
  FROM unnest(:lane_ids::bigint[], :seqs::bigint[]) AS given (lane_id, seq)
 WHERE (SELECT true
          FROM leases lease
         WHERE lease.worker = :worker::text AND lease.lane_id = given.lane_id
           AND given.seq BETWEEN lease.first_seq AND lease.last_seq
         ORDER BY lease.first_seq DESC  -- past what a pinned snapshot keeps
         LIMIT 1) IS NULL
    OR (SELECT true
          FROM leases own
         WHERE own.lane_id = given.lane_id AND own.first_seq BETWEEN given.seq AND given.seq
           AND own.first_seq = own.last_seq
           AND (own.worker IS DISTINCT FROM :worker::text
                OR own.ends_at <= clock_at()
                OR own.ends_at IS NOT NULL
                   AND (SELECT true FROM outcomes
                         WHERE outcomes.lane_id = given.lane_id AND outcomes.seq = given.seq LIMIT 1))
         LIMIT 1);

-- name: extend_all
-- A heartbeat of a worker that does not say what it holds. A lease of which it may never have heard is kept no longer
-- than its attempts may take, and a lease time more. Indexes: leases_of_worker, attempts_pkey, job_versions_pkey.
WITH timeouts AS MATERIALIZED (
    SELECT lease.lease_id, longest.seconds
      FROM leases lease
     CROSS JOIN LATERAL (
               SELECT max(version.timeout_seconds) AS seconds
                 FROM attempts attempt
                CROSS JOIN LATERAL (
                          SELECT timeout_seconds
                            FROM job_versions
                           WHERE job_versions.job_id = attempt.job_id
                             AND job_versions.spec_version = attempt.spec_version
                           LIMIT 1
                      ) AS version
                WHERE attempt.lane_id = lease.lane_id AND attempt.seq BETWEEN lease.first_seq AND lease.last_seq
           ) AS longest
     WHERE lease.worker = :worker::text
),
held AS MATERIALIZED (
    SELECT lease_id
      FROM leases
     WHERE worker = :worker::text
       AND (SELECT count(*) FROM timeouts) >= 0  -- always; after the attempts were looked up (decision 35)
     ORDER BY lease_id
       FOR UPDATE
)
UPDATE leases lease
   SET expires_at = least(lease.ends_at, greatest(
           least(lease.expires_at, clock_at() + :lease_seconds::float * interval '1 second'),
           least(clock_at(), lease.leased_at + coalesce(timeouts.seconds, 0) * interval '1 second')
           + :lease_seconds::float * interval '1 second')),
       lease_seconds = :lease_seconds::float
  FROM held
  LEFT JOIN timeouts ON timeouts.lease_id = held.lease_id
 WHERE lease.lease_id = held.lease_id;

-- name: queue
-- The queue that a request may lease from, looked up right before that: null if it has had no job yet. `is_valid`: its
-- API key was neither revoked nor has it expired. Indexes: queues_tenant_id_name_key, and either of api_keys.
SELECT queue.queue_id, queue.is_capped IS TRUE AS is_capped, queue.rate_limit, queue.rate_burst, key.is_valid
  FROM (SELECT (SELECT true
                  FROM api_keys
                 WHERE tenant_id = :tenant_id::bigint AND key_id = :key_id::bigint AND revoked_at IS NULL
                   AND (expires_at IS NULL OR expires_at > clock_at())) IS NOT NULL AS is_valid) AS key
  LEFT JOIN LATERAL (
           SELECT queues.queue_id, least(queues.max_running, tenant.running_quota) < 2147483647 AS is_capped,
                  queues.rate_limit, queues.rate_burst
             FROM queues
             JOIN tenants tenant ON tenant.tenant_id = queues.tenant_id
            WHERE queues.tenant_id = :tenant_id::bigint AND queues.name = :name::text
       ) AS queue ON true;

-- name: look
-- Which of the queues that long polls wait for have something to lease: in their lanes, or put back and ready, of these
-- handlers. It takes no locks. Indexes: queues_tenant_id_name_key, lanes_of_queue, ready_batches_pkey, leases_free.
WITH RECURSIVE clock AS MATERIALIZED (
    SELECT clock_at() AS now_at
),
waited_for AS MATERIALIZED (
    SELECT queue.queue_id, queue.tenant_id, queue.name
      FROM unnest(:tenant_ids::bigint[], :names::text[]) AS given (tenant_id, name)
     CROSS JOIN LATERAL (
               SELECT queue_id, tenant_id, name
                 FROM queues
                WHERE queues.tenant_id = given.tenant_id AND queues.name = given.name
                LIMIT 1
           ) AS queue
),
-- From one handler to the next: a queue may have many attempts that were put back, and has few handlers.
put_back AS (
    SELECT waited_for.queue_id, first.handler
      FROM waited_for
     CROSS JOIN LATERAL (
               SELECT handler
                 FROM leases
                WHERE worker IS NULL AND lane_queue(lane_id) = waited_for.queue_id::bigint
                ORDER BY lane_queue(lane_id), handler
                LIMIT 1
           ) AS first
     UNION ALL
    SELECT put_back.queue_id, next.handler
      FROM put_back
     CROSS JOIN LATERAL (
               SELECT handler
                 FROM leases
                WHERE worker IS NULL AND lane_queue(lane_id) = put_back.queue_id::bigint AND handler > put_back.handler
                ORDER BY lane_queue(lane_id), handler
                LIMIT 1
           ) AS next
)
SELECT waited_for.queue_id, waited_for.tenant_id, waited_for.name,
       (SELECT true
          FROM lanes lane
         WHERE lane.queue_id = waited_for.queue_id
           AND (SELECT true FROM ready_batches
                 WHERE ready_batches.lane_id = lane.lane_id AND ready_batches.last_seq > lane.head LIMIT 1)
         LIMIT 1) IS NOT NULL AS is_ready,
       ARRAY(SELECT put_back.handler
               FROM put_back
              WHERE put_back.queue_id = waited_for.queue_id
                AND (SELECT true
                       FROM leases lease
                      WHERE lease.worker IS NULL AND lane_queue(lease.lane_id) = waited_for.queue_id::bigint
                        AND lease.handler = put_back.handler AND lease.expires_at <= clock.now_at
                      LIMIT 1)) AS handlers
  FROM waited_for
 CROSS JOIN clock;

-- name: ended_keys
-- Those of some tenants' API keys that were revoked or have expired. Either index of api_keys will do.
SELECT given.tenant_id, given.key_id
  FROM unnest(:tenant_ids::bigint[], :key_ids::bigint[]) AS given (tenant_id, key_id)
 WHERE (SELECT true
          FROM api_keys
         WHERE api_keys.tenant_id = given.tenant_id AND api_keys.key_id = given.key_id AND revoked_at IS NULL
           AND (expires_at IS NULL OR expires_at > clock_at())) IS NULL;

-- name: answered
-- Those of some idempotency keys under which an answer is kept by now. Index: idempotency_keys_pkey.
SELECT given.tenant_id, given.key
  FROM unnest(:tenant_ids::bigint[], :keys::text[]) AS given (tenant_id, key)
 WHERE (SELECT true
          FROM idempotency_keys
         WHERE idempotency_keys.tenant_id = given.tenant_id AND idempotency_keys.key = given.key);
