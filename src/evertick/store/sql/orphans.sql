-- Open attempts without a lease, and leases that are wrong. Called by the reaper, for partitions that its node holds,
-- and by the doctor.

-- name: check
-- Checks some attempts of each lane, from `swept` or a later seq on up to the head, that are older than some minutes:
-- how far it came, which is the first open one, and which open ones have no lease. It sees one snapshot, so an
-- attempt without outcome and lease has no worker, unless it waits at its gate. Indexes: lanes_of_partition,
-- attempts_pkey, outcomes_pkey, leases_expired, leases_of_attempt, open_runs_pkey.
WITH clock AS MATERIALIZED (
    SELECT microseconds(clock_at() - :age_seconds::float * interval '1 second') AS old_seq
),
stretch AS MATERIALIZED (
    SELECT lane.lane_id, lane.partition, lane.swept, greatest(lane.swept, place.seq) AS after_seq,
           least(leased.last_seq, clock.old_seq) AS last_seq,
           lane_is_gated(lane.lane_id) AND lane.swept >= clock.old_seq - 86400000000 AS has_no_end
      FROM clock
     CROSS JOIN lanes lane
     CROSS JOIN LATERAL (
               SELECT CASE WHEN lane_is_gated(lane.lane_id) THEN clock.old_seq ELSE lane.head END AS last_seq
           ) AS leased
      LEFT JOIN unnest(:lane_ids::bigint[], :seqs::bigint[]) AS place (lane_id, seq) ON place.lane_id = lane.lane_id
     WHERE lane.partition = ANY(:partitions::smallint[]) AND lane.swept < least(leased.last_seq, clock.old_seq)
)
SELECT stretch.lane_id, stretch.partition, stretch.swept, stretch.after_seq,
       -- The whole stretch, unless there was more in it than this looked at. A gated lane has no head where it ends: while it
       -- is idle it is marked once a day, so that neither each look writes nor many days are searched.
       CASE WHEN looked.attempts = :most::integer THEN looked.last_seq
            WHEN stretch.has_no_end THEN greatest(stretch.after_seq, looked.last_seq)
            ELSE greatest(stretch.after_seq, stretch.last_seq) END AS last_seq,
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
                         AND own.first_seq = own.last_seq)
                  AND (NOT lane_is_gated(stretch.lane_id) OR (
                      SELECT true FROM open_runs
                       WHERE open_runs.job_id = each.job_id AND open_runs.fire_at = each.fire_at
                         AND open_runs.seq = each.seq AND NOT open_runs.is_inside
                       LIMIT 1) IS NULL)) AS orphans
             FROM (SELECT next.seq, next.job_id, next.fire_at,
                          (SELECT true FROM outcomes
                            WHERE outcomes.lane_id = stretch.lane_id AND outcomes.seq = next.seq LIMIT 1) IS NULL AS is_open
                     FROM (SELECT seq, job_id, fire_at
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
-- Removes free leases whose attempts were cancelled before a worker leased them, among the next leases after an id;
-- returns the id to go on after, 0 at the end. There may be very many: of a host that fails all attempts are put back.
-- Indexes: leases_pkey, outcomes_pkey.
WITH page AS MATERIALIZED (
    SELECT lease_id, lane_id, first_seq, partition, worker
      FROM leases
     WHERE lease_id > :after::bigint
     ORDER BY lease_id
     LIMIT :most::integer
),
-- Looked up before anything is locked (decision 35).
ended AS MATERIALIZED (
    SELECT lease_id
      FROM page
     WHERE worker IS NULL AND partition = ANY(:partitions::smallint[])
       AND (SELECT true FROM outcomes
             WHERE outcomes.lane_id = page.lane_id AND outcomes.seq = page.first_seq LIMIT 1)
),
over AS MATERIALIZED (
    SELECT lease.lease_id
      FROM ended
     CROSS JOIN LATERAL (
               SELECT lease_id
                 FROM leases
                -- Not IS NULL: on an empty table the index of all free leases looks as good.
                WHERE leases.lease_id = ended.lease_id AND coalesce(leases.worker, '') = ''
                LIMIT 1
                  FOR UPDATE SKIP LOCKED
           ) AS lease
     WHERE (SELECT count(*) FROM ended) >= 0  -- always; after all of those
),
dropped AS (
    DELETE FROM leases WHERE lease_id = ANY(ARRAY(SELECT lease_id FROM over))
)
SELECT coalesce(CASE WHEN count(*) = :most::integer THEN max(lease_id) END, 0) AS last_id FROM page;

-- name: rebase
-- Lets leases that lie further ahead than their own length run from now on: since they were made the clock was set
-- back. Of the next leases after an id; returns the id to go on after, 0 at the end, and how many there were. Those that
-- another session extends at this moment are passed over. Index: leases_pkey.
WITH clock AS MATERIALIZED (
    SELECT clock_at() AS now_at
),
page AS MATERIALIZED (
    SELECT lease_id, partition, expires_at, lease_seconds
      FROM leases
     WHERE lease_id > :after::bigint
     ORDER BY lease_id
     LIMIT :most::integer
),
ahead AS MATERIALIZED (
    SELECT lease.lease_id
      FROM clock
     CROSS JOIN page
     CROSS JOIN LATERAL (
               SELECT lease_id, expires_at, lease_seconds
                 FROM leases
                WHERE leases.lease_id = page.lease_id
                LIMIT 1
                  FOR UPDATE SKIP LOCKED
           ) AS lease
     WHERE page.partition = ANY(:partitions::smallint[])
       AND page.expires_at > clock.now_at + (page.lease_seconds + 1) * interval '1 second'
       AND lease.expires_at > clock.now_at + (lease.lease_seconds + 1) * interval '1 second'
),
moved AS (
    UPDATE leases lease
       SET expires_at = clock.now_at + lease.lease_seconds * interval '1 second',
           ends_at = lease.ends_at - (lease.expires_at - clock.now_at - lease.lease_seconds * interval '1 second')
      FROM clock
     WHERE lease.lease_id = ANY(ARRAY(SELECT lease_id FROM ahead))
 RETURNING lease.lease_id
)
SELECT coalesce(CASE WHEN count(*) = :most::integer THEN max(lease_id) END, 0) AS last_id,
       (SELECT count(*) FROM moved) AS moved
  FROM page;
