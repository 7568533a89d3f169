-- Membership and ownership: which schedulers are alive, and which one holds a partition in which epoch. A heartbeat
-- counts for as long as its timeout, in both directions: after the clock was set back, old ones lie ahead.

-- name: heartbeat
-- A scheduler's heartbeat. Returns the database's time and the other members that are alive. Index: nodes_pkey.
-- A node that comes back after an outage gives up what it held, as of its last heartbeat: `take` then notes the outage.
-- It does not wait for a firing: what fires is not given up.
-- A server that is to be confirmed first (`confirmed_server`) has no members: a heartbeat there leaves no trace.
WITH clock AS MATERIALIZED (
    SELECT clock_at() AS now_at
),
confirmed AS MATERIALIZED (
    SELECT is_known FROM confirmed_server
),
away AS MATERIALIZED (
    SELECT nodes.seen_at
      FROM clock, confirmed, nodes
     WHERE nodes.node = :node::text AND nodes.seen_at < now_at - :outage::interval
),
given_up AS (
    UPDATE partitions
       SET holder = NULL, released_at = (SELECT seen_at FROM away)
     WHERE partition IN (
               SELECT partition
                 FROM partitions
                WHERE holder = :node::text AND EXISTS (SELECT FROM away)
                ORDER BY partition
                  FOR UPDATE SKIP LOCKED)
),
beaten AS (
    INSERT INTO nodes (node, region, version, started_at, seen_at, fired_per_second)
    SELECT :node::text, :region::text, :version::text, now_at, now_at, :fired_per_second::real FROM clock, confirmed
        ON CONFLICT (node) DO UPDATE SET seen_at = excluded.seen_at, region = excluded.region, version = excluded.version,
               fired_per_second = excluded.fired_per_second
)
SELECT now_at,
       ARRAY(SELECT node FROM nodes
              WHERE node <> :node::text AND abs(extract(epoch FROM now_at - seen_at)) < :timeout_seconds::float
              ORDER BY node) AS others,
       ARRAY(SELECT region FROM nodes
              WHERE node <> :node::text AND abs(extract(epoch FROM now_at - seen_at)) < :timeout_seconds::float
              ORDER BY node) AS regions,
       coalesce((SELECT is_known FROM confirmed), false) AS is_confirmed
  FROM clock;

-- name: held
-- The partitions that a node holds, and the epoch of each.
SELECT partition, epoch FROM partitions WHERE holder = :node::text;

-- name: take
-- Takes partitions that no live node holds, each with a new epoch. Waits for a firing of the old holder to end.
-- A node that takes its own again fences off a firing whose end it does not know. A partition that nobody held for
-- longer than an outage takes has one from now on; that of an earlier outage stays, for what is left from it.
UPDATE partitions wanted
   SET holder = :node::text, epoch = wanted.epoch + 1, taken_at = clock_at(),
       outage_at = CASE
           WHEN coalesce(CASE WHEN wanted.holder IS NULL THEN wanted.released_at
                              ELSE coalesce((SELECT seen_at FROM nodes WHERE nodes.node = wanted.holder),
                                            wanted.taken_at) END,
                         '-infinity') < clock_at() - :outage::interval
           THEN clock_at() - :outage::interval
           ELSE wanted.outage_at END
 WHERE wanted.partition IN (
           SELECT partition
             FROM partitions
            WHERE partition = ANY(:partitions::smallint[])
            ORDER BY partition
              FOR UPDATE)
   AND EXISTS (SELECT FROM confirmed_server)
   AND (wanted.holder IS NULL
        OR wanted.holder = :node::text
        OR NOT EXISTS (
               SELECT FROM nodes
                WHERE nodes.node = wanted.holder
                  AND abs(extract(epoch FROM clock_at() - nodes.seen_at)) < :timeout_seconds::float))
RETURNING wanted.partition, wanted.epoch;

-- name: outages
-- Of partitions that an outage left timers in: what was due before is left from it.
SELECT partition, outage_at FROM partitions WHERE partition = ANY(:partitions::smallint[]) AND outage_at IS NOT NULL;

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
-- Gives partitions up, so that their next holder need not wait for a timeout. As a heartbeat it leaves no trace where
-- there are no members.
UPDATE partitions SET holder = NULL, released_at = clock_at()
 WHERE holder = :node::text AND partition = ANY(:partitions::smallint[]) AND EXISTS (SELECT FROM confirmed_server);

-- name: leave
-- Ends a node's membership: it gives up all partitions. As a heartbeat it leaves no trace where there are no members.
WITH released AS (
    UPDATE partitions SET holder = NULL, released_at = clock_at()
     WHERE holder = :node::text AND EXISTS (SELECT FROM confirmed_server)
)
DELETE FROM nodes WHERE node = :node::text AND EXISTS (SELECT FROM confirmed_server);

-- name: forget
-- Removes nodes that have not been seen for a day and hold nothing.
DELETE FROM nodes
 WHERE seen_at < clock_at() - interval '1 day'
   AND NOT EXISTS (SELECT FROM partitions WHERE partitions.holder = nodes.node);

-- name: members
-- All nodes, how many partitions each holds, and whether it is alive.
SELECT nodes.node, nodes.region, nodes.version, nodes.started_at, nodes.seen_at,
       abs(extract(epoch FROM clock_at() - nodes.seen_at)) < :timeout_seconds::float AS is_alive,
       (SELECT count(*) FROM partitions WHERE partitions.holder = nodes.node) AS partitions,
       nodes.fired_per_second::float AS fired_per_second
  FROM nodes
 ORDER BY nodes.node;

-- name: last_seen
-- The newest heartbeat of any node up to an instant: one that lies ahead is from before the clock was set back. On a
-- standby its age is the lag.
SELECT max(seen_at) AS seen_at FROM nodes WHERE seen_at <= :now_at::timestamptz;

-- name: unheld
-- How many partitions no live node holds.
SELECT count(*) AS partitions
  FROM partitions
 WHERE NOT EXISTS (
           SELECT FROM nodes
            WHERE nodes.node = partitions.holder
              AND abs(extract(epoch FROM clock_at() - nodes.seen_at)) < :timeout_seconds::float);

-- name: partition_holders
-- Who holds each partition, and its epoch.
SELECT partition, holder, epoch FROM partitions ORDER BY partition;

-- name: lock_janitor
-- The lock of the one janitor at work. It ends with its transaction, which does nothing else and so holds up no vacuum.
-- Advisory locks are those of a database: with the schema in them, two installations in one database do not meet. That
-- of the default schema is left out, as earlier versions do, which may run beside this one.
SELECT pg_try_advisory_xact_lock(
           :lock::bigint # CASE current_schema() WHEN 'evertick' THEN 0 ELSE hashtextextended(current_schema()::text, 0) END);
