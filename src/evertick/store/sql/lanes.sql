-- Lanes and leases: how ready attempts reach those who run them. Called by workers and dispatchers.

-- name: lease
-- Takes the next range of each of some lanes that have work, high priority first. Indexes: lanes_of_queue,
-- attempts_pkey. Lanes that others lease from at this moment are passed over, so nobody waits.
-- `only`: the lanes that a wake-up named, so that not all have to be looked at; null: any.
-- It answers in a few bytes: whoever stops in the middle of a long answer would keep the lanes locked.
WITH picked AS (
    SELECT lane.lane_id, lane.partition, lane.head
      FROM lanes lane
     WHERE lane.queue_id = ANY(:queue_ids::integer[])
       AND (:only::bigint[] IS NULL OR lane.lane_id = ANY(:only::bigint[]))
       -- Not EXISTS, which may become a join that reads all attempts.
       AND (SELECT true FROM attempts WHERE attempts.lane_id = lane.lane_id AND attempts.seq > lane.head LIMIT 1)
     -- In rotation, so that a flooded lane cannot starve the others.
     ORDER BY lane.priority, (lane.partition - :rotation::integer) & 255
     LIMIT :lanes::integer
       FOR UPDATE SKIP LOCKED
),
ranges AS MATERIALIZED (
    SELECT picked.lane_id, picked.partition, range.first_seq, range.last_seq
      FROM picked
     CROSS JOIN LATERAL (
               SELECT min(seq) AS first_seq, max(seq) AS last_seq
                 FROM (SELECT seq
                         FROM attempts
                        WHERE attempts.lane_id = picked.lane_id AND attempts.seq > picked.head
                        ORDER BY seq
                        LIMIT :most_per_lane::integer) AS next
           ) AS range
),
advanced AS (
    UPDATE lanes lane SET head = ranges.last_seq FROM ranges WHERE lane.lane_id = ranges.lane_id
)
INSERT INTO leases (lane_id, first_seq, last_seq, expires_at, partition, worker)
SELECT lane_id, first_seq, last_seq, clock_at() + :lease_seconds::float * interval '1 second', partition, :worker::text
  FROM ranges
RETURNING lease_id, lane_id, first_seq, last_seq;

-- name: leased
-- The attempts in ranges that were just leased, with all that running them needs. Indexes: attempts_pkey,
-- job_versions_pkey, outcomes_pkey, requested_runs_pkey.
-- One that was cancelled while it waited has its outcome already: nobody runs it, but its lease covers it.
SELECT attempt.lane_id, attempt.seq, range.lease_id, attempt.job_id, attempt.fire_at, attempt.due_at,
       attempt.spec_version, attempt.reason::text AS reason, attempt.attempt,
       version.name, version.handler, version.timezone, version.key_template, version.timeout_seconds,
       version.retry::text AS retry,
       -- Of a run that was asked for by hand only: the others should not pay for looking.
       CASE
           WHEN attempt.reason IN ('manual', 'replay') AND (
                   SELECT asked.has_payload
                     FROM requested_runs asked
                    WHERE asked.job_id = attempt.job_id AND asked.fire_at = attempt.fire_at)
               THEN (SELECT asked.payload
                       FROM requested_runs asked
                      WHERE asked.job_id = attempt.job_id AND asked.fire_at = attempt.fire_at)
           ELSE version.payload
       END::text AS payload,
       CASE WHEN version.handler IS NULL THEN version.spec::text END AS spec,
       CASE
           WHEN attempt.reason IN ('manual', 'replay')
               THEN (SELECT asked.replays_at
                       FROM requested_runs asked
                      WHERE asked.job_id = attempt.job_id AND asked.fire_at = attempt.fire_at)
       END AS replays_at,
       CASE
           WHEN ended.any THEN EXISTS (
               SELECT FROM outcomes WHERE outcomes.lane_id = attempt.lane_id AND outcomes.seq = attempt.seq)
           ELSE false
       END AS is_over,
       attempt.is_listed
  FROM unnest(:lease_ids::bigint[], :lane_ids::bigint[], :first_seqs::bigint[], :last_seqs::bigint[])
       AS range (lease_id, lane_id, first_seq, last_seq)
 -- Asked once for a range, which hardly ever has any.
 CROSS JOIN LATERAL (
           SELECT EXISTS (
                      SELECT FROM outcomes
                       WHERE outcomes.lane_id = range.lane_id
                         AND outcomes.seq BETWEEN range.first_seq AND range.last_seq) AS any
           OFFSET 0  -- else it would be asked for each attempt
       ) AS ended
 -- One by one, by the LIMITs: a join might read whole tables.
 CROSS JOIN LATERAL (
           SELECT *
             FROM attempts
            WHERE attempts.lane_id = range.lane_id AND attempts.seq BETWEEN range.first_seq AND range.last_seq
            ORDER BY seq
            LIMIT :most_per_lane::integer
       ) AS attempt
 CROSS JOIN LATERAL (
           SELECT *
             FROM job_versions
            WHERE job_versions.job_id = attempt.job_id AND job_versions.spec_version = attempt.spec_version
            LIMIT 1
       ) AS version;

-- name: extend
-- A heartbeat: extends a worker's leases that have not expired; null: all of them. Index: leases_of_worker.
-- One that it does not name was granted in an answer that got lost: nobody works on it, and it has to run out.
UPDATE leases
   SET expires_at = clock_at() + :lease_seconds::float * interval '1 second'
 WHERE worker = :worker::text AND expires_at > clock_at()
   AND (:lease_ids::bigint[] IS NULL OR lease_id = ANY(:lease_ids::bigint[]))
RETURNING lease_id;

-- name: ended_elsewhere
-- Attempts among those given that have an outcome which their worker did not record: cancelled, or lost to it.
-- Index: outcomes_pkey.
SELECT outcome.lane_id, outcome.seq
  FROM unnest(:lane_ids::bigint[], :seqs::bigint[]) AS mine (lane_id, seq)
  JOIN outcomes outcome ON outcome.lane_id = mine.lane_id AND outcome.seq = mine.seq;

-- name: clock
-- The database's time.
SELECT clock_at() AS now_at;

-- name: ready
-- How many attempts wait in the lanes of each queue, counted up to a limit per lane. Index: attempts_pkey.
SELECT lane.queue_id, sum(waiting.count)::bigint AS attempts, min(waiting.oldest_at) AS oldest_at
  FROM lanes lane
 CROSS JOIN LATERAL (
           SELECT count(*), min(due_at) AS oldest_at
             FROM (SELECT due_at FROM attempts
                    WHERE attempts.lane_id = lane.lane_id AND attempts.seq > lane.head
                    ORDER BY seq
                    LIMIT :most::integer) AS first
       ) AS waiting
 WHERE waiting.count > 0
 GROUP BY lane.queue_id;
