-- Attempts that a broker has accepted, and the consumers that report their outcomes. Called by dispatchers and by the use
-- cases.
--
-- Such an attempt has a lease of its own with an end, its run's timeout after the publication. It is held for any consumer
-- of the tenant, or by the one that has sent a heartbeat for it. A consumer may be faster than the dispatcher, which
-- hands an attempt over after the broker's acknowledgement. So a consumer may claim and end also what is still the
-- dispatcher's, if the job's outcomes are reported: the key of `outcomes` decides who ends an attempt, and that of
-- `leases_of_attempt` who holds it. Nobody knows the token of an attempt that was not published.

-- name: hand_over
-- Gives attempts that a broker has accepted to its consumers. What is over, or claimed by a consumer, stays as it is;
-- returns those. Indexes: leases_of_worker, leases_of_attempt, outcomes_pkey.
WITH clock AS MATERIALIZED (
    SELECT clock_at() AS now_at
),
given AS MATERIALIZED (
    SELECT lane_id, seq, consumer, timeout_seconds,
           (SELECT true FROM outcomes
             WHERE outcomes.lane_id = given.lane_id AND outcomes.seq = given.seq LIMIT 1) IS NOT NULL AS is_over
      FROM unnest(:lane_ids::bigint[], :seqs::bigint[], :consumers::text[], :timeouts::float[])
           AS given (lane_id, seq, consumer, timeout_seconds)
),
-- Locked in one order, against the heartbeat, and so that a reaper passes over them until this is done.
held AS MATERIALIZED (
    SELECT lease_id, lane_id, first_seq, last_seq, partition
      FROM leases
     WHERE worker = :holder::text AND lane_id = ANY(:lane_ids::bigint[])
       AND (SELECT count(*) FROM given) >= 0  -- always; after the outcomes were looked up (decision 35)
     ORDER BY lease_id
       FOR UPDATE
),
theirs AS MATERIALIZED (
    SELECT DISTINCT ON (given.lane_id, given.seq)
           given.lane_id, given.seq, given.consumer, given.timeout_seconds, held.lease_id, held.partition,
           clock.now_at + given.timeout_seconds * interval '1 second' AS ends_at, held.first_seq = held.last_seq AS is_own
      FROM clock
     CROSS JOIN given
      JOIN held ON held.lane_id = given.lane_id AND given.seq BETWEEN held.first_seq AND held.last_seq
     WHERE NOT given.is_over
     ORDER BY given.lane_id, given.seq, held.last_seq - held.first_seq
),
passed AS (
    UPDATE leases lease
       SET worker = theirs.consumer, expires_at = theirs.ends_at, ends_at = theirs.ends_at,
           lease_seconds = theirs.timeout_seconds, started = ARRAY[theirs.seq]
      FROM theirs
     WHERE theirs.is_own AND lease.lease_id = theirs.lease_id
 RETURNING lease.lane_id, lease.first_seq AS seq
),
-- A conflict: a consumer has claimed it.
parted AS (
    INSERT INTO leases (lease_id, lane_id, first_seq, last_seq, expires_at, ends_at, lease_seconds, partition, worker,
                        started)
    SELECT :first_lease_id::bigint + row_number() OVER (), lane_id, seq, seq, ends_at, ends_at, timeout_seconds, partition,
           consumer, ARRAY[seq]
      FROM theirs
     WHERE NOT is_own
     ORDER BY lane_id, seq
        ON CONFLICT DO NOTHING
 RETURNING lane_id, first_seq AS seq
)
SELECT lane_id, seq FROM given
EXCEPT ALL
(SELECT lane_id, seq FROM passed UNION ALL SELECT lane_id, seq FROM parted);

-- name: reportable
-- Those of some attempts whose outcome a consumer may report, as `held` in pulls returns them: of a job whose outcomes
-- are reported, leased, and claimed by no other consumer. Indexes: queues_pkey, tenants_pkey, lanes_pkey, attempts_pkey,
-- job_versions_pkey, leases_of_attempt.
SELECT attempt.lane_id, attempt.seq, attempt.job_id, attempt.fire_at, attempt.spec_version,
       attempt.reason::text AS reason, attempt.attempt, version.retry::text AS retry,
       least(queue.max_running, tenant.running_quota) < 2147483647 AS is_capped,
       NULL::timestamptz AS leased_at  -- its consumer's is another lease than that of the delivery
  FROM unnest(:lane_ids::bigint[], :seqs::bigint[]) AS given (lane_id, seq)
 -- One by one, by the LIMITs: a join might read whole tables.
 CROSS JOIN LATERAL (
           SELECT tenant_id, max_running
             FROM queues
            WHERE queues.queue_id = lane_queue(given.lane_id)  -- no cast: a token may have any number
            LIMIT 1
       ) AS queue
 CROSS JOIN LATERAL (
           SELECT running_quota FROM tenants WHERE tenants.tenant_id = queue.tenant_id LIMIT 1
       ) AS tenant
 CROSS JOIN LATERAL (
           SELECT head FROM lanes WHERE lanes.lane_id = given.lane_id LIMIT 1
       ) AS lane
 CROSS JOIN LATERAL (
           SELECT * FROM attempts WHERE attempts.lane_id = given.lane_id AND attempts.seq = given.seq LIMIT 1
       ) AS attempt
 CROSS JOIN LATERAL (
           SELECT retry
             FROM job_versions
            WHERE job_versions.job_id = attempt.job_id AND job_versions.spec_version = attempt.spec_version
              AND job_versions.spec -> 'target' ->> 'completion' = 'reported'
            LIMIT 1
       ) AS version
  LEFT JOIN LATERAL (
           SELECT lease_id, worker
             FROM leases
            WHERE leases.lane_id = given.lane_id AND leases.first_seq BETWEEN given.seq AND given.seq
              AND leases.first_seq = leases.last_seq
            LIMIT 1
       ) AS own ON true
 WHERE queue.tenant_id = :tenant_id::bigint
   AND CASE WHEN own.lease_id IS NULL THEN NOT lane_is_gated(given.lane_id) AND lane.head >= given.seq
            -- Dispatchers and reapers have no tenant in their names.
            ELSE own.worker IN (:worker::text, :consumer::text)
                 OR NOT starts_with(own.worker, :tenant_id::bigint || '/')
       END;

-- name: claim
-- The first heartbeat of a consumer: from now on it holds these attempts, until their end at most. Returns those that it
-- got. What another consumer has claimed, what is over, and what is none of a job whose outcomes are reported it does not
-- get. Indexes: queues_pkey, lanes_pkey, attempts_pkey, job_versions_pkey, outcomes_pkey, leases_of_attempt, leases_pkey.
WITH clock AS MATERIALIZED (
    SELECT clock_at() AS now_at
),
given AS MATERIALIZED (
    SELECT given.lane_id, given.seq, lane.partition, version.timeout_seconds, own.lease_id
      FROM unnest(:lane_ids::bigint[], :seqs::bigint[]) AS given (lane_id, seq)
     CROSS JOIN LATERAL (
               SELECT tenant_id
                 FROM queues
                WHERE queues.queue_id = lane_queue(given.lane_id)  -- no cast: a token may have any number
                LIMIT 1
           ) AS queue
     CROSS JOIN LATERAL (
               SELECT head, partition FROM lanes WHERE lanes.lane_id = given.lane_id LIMIT 1
           ) AS lane
     CROSS JOIN LATERAL (
               SELECT job_id, spec_version
                 FROM attempts
                WHERE attempts.lane_id = given.lane_id AND attempts.seq = given.seq
                LIMIT 1
           ) AS attempt
     CROSS JOIN LATERAL (
               SELECT timeout_seconds
                 FROM job_versions
                WHERE job_versions.job_id = attempt.job_id AND job_versions.spec_version = attempt.spec_version
                  AND job_versions.spec -> 'target' ->> 'completion' = 'reported'
                LIMIT 1
           ) AS version
      LEFT JOIN LATERAL (
               SELECT lease_id
                 FROM leases
                WHERE leases.lane_id = given.lane_id AND leases.first_seq BETWEEN given.seq AND given.seq
                  AND leases.first_seq = leases.last_seq
                LIMIT 1
           ) AS own ON true
     WHERE queue.tenant_id = :tenant_id::bigint
       AND (own.lease_id IS NOT NULL OR NOT lane_is_gated(given.lane_id) AND lane.head >= given.seq)
       AND (SELECT true FROM outcomes
             WHERE outcomes.lane_id = given.lane_id AND outcomes.seq = given.seq LIMIT 1) IS NULL
),
-- In one order, against the heartbeat of a dispatcher.
locked AS MATERIALIZED (
    SELECT lease_id
      FROM leases
     WHERE lease_id = ANY(ARRAY(SELECT lease_id FROM given))
     ORDER BY lease_id
       FOR UPDATE
)
INSERT INTO leases AS lease (lease_id, lane_id, first_seq, last_seq, expires_at, ends_at, lease_seconds, partition, worker,
                             started)
SELECT :first_lease_id::bigint + row_number() OVER (), lane_id, seq, seq,
       clock.now_at + least(:lease_seconds::float, timeout_seconds) * interval '1 second',
       clock.now_at + timeout_seconds * interval '1 second', :lease_seconds::float, partition, :worker::text, ARRAY[seq]
  FROM given
 CROSS JOIN clock
 WHERE (SELECT count(*) FROM locked) >= 0  -- always; first the locks
 ORDER BY lane_id, seq
    ON CONFLICT (lane_id, first_seq) WHERE first_seq = last_seq
    -- By the lease as it is now: it may have been handed over in the meantime.
    DO UPDATE SET worker = excluded.worker, lease_seconds = excluded.lease_seconds, started = excluded.started,
                  expires_at = least(excluded.expires_at, lease.ends_at),
                  ends_at = coalesce(lease.ends_at, excluded.ends_at)
            WHERE (lease.worker IN (excluded.worker, :consumer::text)
                   OR NOT starts_with(lease.worker, :tenant_id::bigint || '/'))
              AND coalesce(lease.ends_at > clock_at(), true)
RETURNING lane_id, first_seq AS seq;

-- name: release
-- Removes the leases of consumers' attempts that have ended. Indexes: leases_of_attempt, outcomes_pkey, leases_pkey.
WITH over AS MATERIALIZED (
    SELECT lease.lease_id
      FROM unnest(:lane_ids::bigint[], :seqs::bigint[]) AS given (lane_id, seq)
     CROSS JOIN LATERAL (
               SELECT lease_id
                 FROM leases
                WHERE leases.lane_id = given.lane_id AND leases.first_seq BETWEEN given.seq AND given.seq
                  AND leases.first_seq = leases.last_seq AND leases.ends_at IS NOT NULL
                LIMIT 1
           ) AS lease
     WHERE (SELECT true FROM outcomes
             WHERE outcomes.lane_id = given.lane_id AND outcomes.seq = given.seq LIMIT 1)
),
locked AS MATERIALIZED (
    SELECT lease_id FROM leases WHERE lease_id = ANY(ARRAY(SELECT lease_id FROM over)) ORDER BY lease_id FOR UPDATE
)
DELETE FROM leases WHERE lease_id = ANY(ARRAY(SELECT lease_id FROM locked));
