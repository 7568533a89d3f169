-- Heads of idle lanes. Called by schedulers, for partitions that they hold.

-- name: floor
-- A seq a day ago, by the time that is trusted: up to here heads of idle lanes may move on.
SELECT microseconds(least(trusted_at, clock_at()) - interval '1 day') AS seq FROM clock_marks;

-- name: advance
-- Lets the heads of lanes without waiting attempts move on to a seq, so that a look for work need not search the days
-- before it. The caller fires nothing at or below that seq any more, and has nothing under way that does; who takes its
-- partitions waits for this statement and then reads the heads. Lanes that someone leases from are left for later.
-- Heads that are nearly there stay, so that each is written a few times a day. Indexes: lanes_of_partition,
-- attempts_pkey.
WITH fence AS (
    SELECT held.partition
      FROM unnest(:partitions::smallint[], :epochs::integer[]) AS mine (partition, epoch)
      JOIN partitions held ON held.partition = mine.partition AND held.epoch = mine.epoch
     WHERE held.holder = :node::text
       FOR SHARE OF held
),
idle AS (
    SELECT lane.lane_id
      FROM fence
      JOIN lanes lane ON lane.partition = fence.partition
     WHERE lane.head < :seq::bigint - :slack::bigint
       -- Not EXISTS, which may become a join that reads all attempts.
       AND (SELECT true FROM attempts
             WHERE attempts.lane_id = lane.lane_id AND attempts.seq > lane.head AND attempts.seq <= :seq::bigint
             LIMIT 1) IS NULL
     LIMIT :most::integer
       FOR UPDATE OF lane SKIP LOCKED
)
UPDATE lanes SET head = :seq::bigint FROM idle WHERE lanes.lane_id = idle.lane_id;
