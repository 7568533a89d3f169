-- The ledgers `attempts` and `outcomes`: their partitions by day, and the statistics of partitioned tables. Called by
-- the janitor, and by schedulers that lack a day.

-- name: set_lock_timeout
-- Bounds the wait for locks in the rest of the transaction: a session that waits for a lock on a ledger makes all
-- firing wait behind it. Shorter than deadlock_timeout, so that the janitor gives up in a deadlock.
SELECT set_config('lock_timeout', '200ms', true);

-- name: missing_days
-- Which days from today on are no partition of the ledgers yet; takes no lock on them. After the clock was set back,
-- seqs go on from the furthest time that it showed: that day too, and the next.
SELECT day::date AS day
  FROM clock_marks
 CROSS JOIN LATERAL (VALUES (clock_at(), :ahead::integer), (furthest_at, 1)) AS stretch (from_at, ahead)
 CROSS JOIN LATERAL generate_series((from_at AT TIME ZONE 'UTC')::date, (from_at AT TIME ZONE 'UTC')::date + ahead,
                                    interval '1 day') AS day
 WHERE from_at >= clock_at() - interval '1 minute'
   AND to_regclass('outcomes_' || to_char(day, 'YYYYMMDD')) IS NULL
 GROUP BY day
 ORDER BY day;

-- name: add_day
SELECT add_day(:day::date);

-- name: expired_days
-- Days that ended longer ago than history is kept, and whether everything in them is finished: no attempt beyond its
-- lane's head, none out on a lease, none the latest of an open run, as all are that wait at a gate. Nothing can become
-- open in such a day any more, as new attempts have new seqs. Indexes: attempts_pkey; leases and open runs are few and
-- read whole.
WITH days AS MATERIALIZED (
    SELECT day, microseconds(day::timestamp AT TIME ZONE 'UTC') AS first_us,
           microseconds((day + 1)::timestamp AT TIME ZONE 'UTC') AS end_us
      FROM pg_inherits
      JOIN pg_class child ON child.oid = pg_inherits.inhrelid
     CROSS JOIN to_date(right(child.relname, 8), 'YYYYMMDD') AS day
     WHERE pg_inherits.inhparent = 'outcomes'::regclass
       AND (day + 1)::timestamp AT TIME ZONE 'UTC' < :before_at::timestamptz
)
SELECT days.day,
       NOT EXISTS (
           SELECT FROM leases WHERE leases.first_seq < days.end_us AND leases.last_seq >= days.first_us)
       AND NOT EXISTS (
           SELECT FROM open_runs WHERE open_runs.seq >= days.first_us AND open_runs.seq < days.end_us)
       AND NOT EXISTS (
           SELECT FROM lanes
            CROSS JOIN LATERAL (
                      SELECT FROM attempts
                       WHERE attempts.lane_id = lanes.lane_id
                         AND attempts.seq > greatest(lanes.head, days.first_us - 1) AND attempts.seq < days.end_us
                       LIMIT 1
                  ) AS waiting
            WHERE lanes.head < days.end_us AND NOT lane_is_gated(lanes.lane_id)) AS is_finished
  FROM days
 ORDER BY days.day;

-- name: drop_day
SELECT drop_day(:day::date);

-- name: stale_statistics
-- Partitioned tables whose statistics are old: autovacuum analyses their partitions, never the tables. Due after the
-- first rows, whenever there are ten times as many, and each day. By the server's own clock, in which analyses are
-- noted.
SELECT parent.relname::text AS name
  FROM pg_class parent
  LEFT JOIN pg_stat_all_tables seen ON seen.relid = parent.oid
 CROSS JOIN LATERAL (
           SELECT coalesce(sum(part.n_live_tup), 0) AS rows
             FROM pg_inherits
             JOIN pg_stat_all_tables part ON part.relid = pg_inherits.inhrelid
            WHERE pg_inherits.inhparent = parent.oid
       ) AS now
 WHERE parent.oid IN ('timers'::regclass, 'attempts'::regclass, 'outcomes'::regclass)
   AND now.rows > 0
   AND (now.rows > 10 * parent.reltuples
        OR seen.last_analyze IS NULL
        OR seen.last_analyze < clock_timestamp() - interval '1 day')
 ORDER BY parent.relname;

-- name: analyze_timers
ANALYZE (SKIP_LOCKED) timers;

-- name: analyze_attempts
ANALYZE (SKIP_LOCKED) attempts;

-- name: analyze_outcomes
ANALYZE (SKIP_LOCKED) outcomes;
