-- Open attempts without a lease, and leases that are wrong. Called by the reaper, for partitions that its node holds,
-- and by the doctor.

-- name: check
-- Checks some attempts of each lane, from `swept` or a later seq on up to the head, that are older than some minutes:
-- how far it came, which is the first open one, and which open ones have no lease. It sees one snapshot, so an
-- attempt without outcome and lease has no worker. Indexes: lanes_of_partition, attempts_pkey, outcomes_pkey,
-- leases_expired, leases_of_attempt.
WITH clock AS MATERIALIZED (
    SELECT microseconds(clock_at() - :age_seconds::float * interval '1 second') AS old_seq
),
stretch AS MATERIALIZED (
    SELECT lane.lane_id, lane.partition, lane.swept, greatest(lane.swept, place.seq) AS after_seq,
           least(lane.head, clock.old_seq) AS last_seq
      FROM clock
     CROSS JOIN lanes lane
      LEFT JOIN unnest(:lane_ids::bigint[], :seqs::bigint[]) AS place (lane_id, seq) ON place.lane_id = lane.lane_id
     WHERE lane.partition = ANY(:partitions::smallint[]) AND lane.swept < least(lane.head, clock.old_seq)
)
SELECT stretch.lane_id, stretch.partition, stretch.swept, stretch.after_seq,
       -- The whole stretch, unless there was more in it than this looked at.
       CASE WHEN looked.attempts < :most::integer THEN greatest(stretch.after_seq, stretch.last_seq)
            ELSE looked.last_seq END AS last_seq,
       looked.attempts = :most::integer AS is_cut, looked.first_open,
       coalesce(looked.orphans, '{}') AS orphans
  FROM stretch
 CROSS JOIN LATERAL (
           SELECT count(*) AS attempts, max(each.seq) AS last_seq, min(each.seq) FILTER (WHERE each.is_open) AS first_open,
                  array_agg(each.seq) FILTER (WHERE each.is_open AND NOT EXISTS (
                      SELECT FROM leases
                       WHERE leases.partition = stretch.partition AND leases.worker IS NOT NULL
                         AND leases.lane_id = stretch.lane_id AND each.seq BETWEEN leases.first_seq AND leases.last_seq)
                  AND NOT EXISTS (
                      SELECT FROM leases own
                       WHERE own.lane_id = stretch.lane_id AND own.first_seq BETWEEN each.seq AND each.seq
                         AND own.first_seq = own.last_seq)) AS orphans
             FROM (SELECT next.seq,
                          (SELECT true FROM outcomes
                            WHERE outcomes.lane_id = stretch.lane_id AND outcomes.seq = next.seq LIMIT 1) IS NULL AS is_open
                     FROM (SELECT seq
                             FROM attempts
                            WHERE attempts.lane_id = stretch.lane_id
                              AND attempts.seq > stretch.after_seq AND attempts.seq <= stretch.last_seq
                            ORDER BY seq
                            LIMIT :most::integer) AS next) AS each
       ) AS looked;

-- name: adopt
-- Gives attempts without a lease one that has run out, for the reaper to take. Whether they were started is unknown, so
-- they count as started.
INSERT INTO leases (lease_id, lane_id, first_seq, last_seq, expires_at, lease_seconds, partition, worker, started)
SELECT :first_lease_id::bigint + row_number() OVER (), lane_id, seq, seq, clock_at(), 0, lane_partition(lane_id),
       :worker::text, ARRAY[seq]
  FROM unnest(:lane_ids::bigint[], :seqs::bigint[]) AS orphan (lane_id, seq)
    ON CONFLICT DO NOTHING;

-- name: mark_swept
-- Notes how far lanes are swept. One that another session leases from at this moment is passed over. Index: lanes_pkey.
WITH free AS MATERIALIZED (
    SELECT lane.lane_id, place.seq
      FROM unnest(:lane_ids::bigint[], :seqs::bigint[]) AS place (lane_id, seq)
      JOIN lanes lane ON lane.lane_id = place.lane_id AND lane.swept < place.seq
       FOR UPDATE OF lane SKIP LOCKED
)
UPDATE lanes lane SET swept = free.seq FROM free WHERE lane.lane_id = free.lane_id;

-- name: drop_ended
-- Removes free leases whose attempts were cancelled before a worker leased them. Index: outcomes_pkey;
-- free leases are few and read whole.
WITH over AS MATERIALIZED (
    SELECT lease.lease_id
      FROM leases lease
     WHERE lease.worker IS NULL AND lease.partition = ANY(:partitions::smallint[])
       AND (SELECT true FROM outcomes
             WHERE outcomes.lane_id = lease.lane_id AND outcomes.seq = lease.first_seq LIMIT 1)
       FOR UPDATE OF lease SKIP LOCKED
)
DELETE FROM leases USING over WHERE leases.lease_id = over.lease_id;

-- name: rebase
-- Lets leases that lie further ahead than their own length run from now on: since they were made the clock was set
-- back. Those that another session extends at this moment are passed over. Leases are few and read whole.
WITH clock AS MATERIALIZED (
    SELECT clock_at() AS now_at
),
ahead AS MATERIALIZED (
    SELECT lease.lease_id
      FROM clock
      JOIN leases lease
        ON lease.partition = ANY(:partitions::smallint[])
       AND lease.expires_at > clock.now_at + (lease.lease_seconds + 1) * interval '1 second'
       FOR UPDATE OF lease SKIP LOCKED
)
UPDATE leases lease
   SET expires_at = clock.now_at + lease.lease_seconds * interval '1 second'
  FROM clock, ahead
 WHERE lease.lease_id = ahead.lease_id
RETURNING lease.lease_id;
