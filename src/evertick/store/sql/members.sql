-- Membership and ownership: which schedulers are alive, and which one holds a partition in which epoch. A heartbeat
-- counts for as long as its timeout, in both directions: after the clock was set back, old ones lie ahead.

-- name: heartbeat
-- A scheduler's heartbeat. Returns the database's time and the other members that are alive. Index: nodes_pkey.
WITH clock AS MATERIALIZED (
    SELECT clock_at() AS now_at
),
beaten AS (
    INSERT INTO nodes (node, region, version, started_at, seen_at)
    SELECT :node::text, :region::text, :version::text, now_at, now_at FROM clock
        ON CONFLICT (node) DO UPDATE SET seen_at = excluded.seen_at, region = excluded.region, version = excluded.version
)
SELECT now_at,
       ARRAY(SELECT node FROM nodes
              WHERE node <> :node::text AND abs(extract(epoch FROM now_at - seen_at)) < :timeout_seconds::float
              ORDER BY node) AS others,
       ARRAY(SELECT region FROM nodes
              WHERE node <> :node::text AND abs(extract(epoch FROM now_at - seen_at)) < :timeout_seconds::float
              ORDER BY node) AS regions
  FROM clock;

-- name: held
-- The partitions that a node holds, and the epoch of each.
SELECT partition, epoch FROM partitions WHERE holder = :node::text;

-- name: take
-- Takes partitions that no live node holds, each with a new epoch. Waits for a firing of the old holder to end.
-- A node that takes its own again fences off a firing whose end it does not know.
UPDATE partitions wanted
   SET holder = :node::text, epoch = wanted.epoch + 1, taken_at = clock_at()
 WHERE wanted.partition IN (
           SELECT partition
             FROM partitions
            WHERE partition = ANY(:partitions::smallint[])
            ORDER BY partition
              FOR UPDATE)
   AND (wanted.holder IS NULL
        OR wanted.holder = :node::text
        OR NOT EXISTS (
               SELECT FROM nodes
                WHERE nodes.node = wanted.holder
                  AND abs(extract(epoch FROM clock_at() - nodes.seen_at)) < :timeout_seconds::float))
RETURNING wanted.partition, wanted.epoch;

-- name: last_seq
-- The seq after which the new holder of some partitions goes on: the highest there, or the time if that is later. Called
-- after `take` committed, so that what the old holder wrote last is there to be seen. Only what lies ahead of the clock
-- is looked for, so that idle lanes cost no search of their history. Indexes: lanes_of_partition, attempts_pkey.
WITH clock AS MATERIALIZED (
    SELECT microseconds(clock_at()) AS now_us
)
SELECT greatest(clock.now_us, max(greatest(lane.head, latest.seq))) AS last_seq
  FROM clock
  LEFT JOIN lanes lane ON lane.partition = ANY(:partitions::smallint[])
  LEFT JOIN LATERAL (
           SELECT seq FROM attempts
            WHERE attempts.lane_id = lane.lane_id AND attempts.seq > greatest(lane.head, clock.now_us)
            ORDER BY seq DESC
            LIMIT 1
       ) AS latest ON true
 GROUP BY clock.now_us;

-- name: release
-- Gives partitions up, so that their next holder need not wait for a timeout.
UPDATE partitions SET holder = NULL WHERE holder = :node::text AND partition = ANY(:partitions::smallint[]);

-- name: leave
-- Ends a node's membership: it gives up all partitions.
WITH released AS (
    UPDATE partitions SET holder = NULL WHERE holder = :node::text
)
DELETE FROM nodes WHERE node = :node::text;

-- name: forget
-- Removes nodes that have not been seen for a day and hold nothing.
DELETE FROM nodes
 WHERE seen_at < clock_at() - interval '1 day'
   AND NOT EXISTS (SELECT FROM partitions WHERE partitions.holder = nodes.node);

-- name: members
-- All nodes, how many partitions each holds, and whether it is alive.
SELECT nodes.node, nodes.region, nodes.version, nodes.started_at, nodes.seen_at,
       abs(extract(epoch FROM clock_at() - nodes.seen_at)) < :timeout_seconds::float AS is_alive,
       (SELECT count(*) FROM partitions WHERE partitions.holder = nodes.node) AS partitions
  FROM nodes
 ORDER BY nodes.node;

-- name: unheld
-- How many partitions no live node holds.
SELECT count(*) AS partitions
  FROM partitions
 WHERE NOT EXISTS (
           SELECT FROM nodes
            WHERE nodes.node = partitions.holder
              AND abs(extract(epoch FROM clock_at() - nodes.seen_at)) < :timeout_seconds::float);

-- name: lock_janitor
-- The lock of the one janitor at work. It ends with its transaction, which does nothing else and so holds up no vacuum.
SELECT pg_try_advisory_xact_lock(:lock::bigint);
