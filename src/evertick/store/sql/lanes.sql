-- Lanes and leases: how ready attempts reach those who run them. Called by workers and dispatchers.

-- name: lease
-- Takes the next range of each of some lanes that have work, high priority first. Indexes: lanes_of_queue,
-- attempts_pkey, job_versions_pkey. Lanes that others lease from at this moment are passed over, so nobody waits.
WITH picked AS (
    SELECT lane.lane_id, lane.partition, lane.head
      FROM lanes lane
     WHERE lane.queue_id = ANY(:queue_ids::integer[])
       -- Not EXISTS, which may become a join that reads all attempts.
       AND (SELECT true FROM attempts WHERE attempts.lane_id = lane.lane_id AND attempts.seq > lane.head LIMIT 1)
     -- In rotation, so that a flooded lane cannot starve the others.
     ORDER BY lane.priority, (lane.partition - :rotation::integer) & 255
     LIMIT :lanes::integer
       FOR UPDATE SKIP LOCKED
),
taken AS (
    SELECT picked.lane_id, picked.partition, attempt.*
      FROM picked
     CROSS JOIN LATERAL (
               SELECT seq, job_id, fire_at, due_at, spec_version, reason, attempt
                 FROM attempts
                WHERE attempts.lane_id = picked.lane_id AND attempts.seq > picked.head
                ORDER BY seq
                LIMIT :most_per_lane::integer
           ) AS attempt
),
ranges AS (
    SELECT lane_id, partition, min(seq) AS first_seq, max(seq) AS last_seq
      FROM taken
     GROUP BY lane_id, partition
),
advanced AS (
    UPDATE lanes lane SET head = ranges.last_seq FROM ranges WHERE lane.lane_id = ranges.lane_id
),
granted AS (
    INSERT INTO leases (lane_id, first_seq, last_seq, expires_at, partition, worker)
    SELECT lane_id, first_seq, last_seq, clock_at() + :lease_seconds::float * interval '1 second', partition,
           :worker::text
      FROM ranges
 RETURNING lease_id, lane_id
)
-- An attempt that was cancelled while it waited has its outcome already: nobody runs it, but its lease covers it.
SELECT taken.lane_id, taken.seq, granted.lease_id, taken.job_id, taken.fire_at, taken.due_at, taken.spec_version,
       taken.reason::text AS reason, taken.attempt,
       version.name, version.handler, version.timezone, version.key_template, version.timeout_seconds,
       version.retry::text AS retry,
       CASE WHEN asked.has_payload THEN asked.payload ELSE version.payload END::text AS payload,
       CASE WHEN version.handler IS NULL THEN version.spec::text END AS spec,
       asked.replays_at,
       EXISTS (SELECT FROM outcomes WHERE outcomes.lane_id = taken.lane_id AND outcomes.seq = taken.seq) AS is_over
  FROM taken
  JOIN granted ON granted.lane_id = taken.lane_id
  JOIN job_versions version ON version.job_id = taken.job_id AND version.spec_version = taken.spec_version
  LEFT JOIN LATERAL (
           SELECT has_payload, payload, replays_at
             FROM requested_runs
            WHERE taken.reason IN ('manual', 'replay')
              AND requested_runs.job_id = taken.job_id AND requested_runs.fire_at = taken.fire_at
            LIMIT 1  -- one by one: a join might read them all
       ) AS asked ON true
 ORDER BY taken.lane_id, taken.seq;

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
