-- The marks of the database's clock. Called by schedulers when they notice a step, and by janitors each minute.
-- The table has one row.

-- name: mark
-- Notes the time, and says what it was at the mark before. No row: somebody else is marking at this moment.
-- The trusted time follows the clock at `speed` times the time between two marks, of which no more than
-- `longest_seconds` count: a jump ahead, or an outage, is made up for slowly. A time before the last mark means that the
-- clock was set back, and timers have to be planned anew.
WITH clock AS MATERIALIZED (
    SELECT clock_at() AS now_at
),
last AS (
    SELECT marked_at, trusted_at FROM clock_marks FOR UPDATE SKIP LOCKED
)
UPDATE clock_marks mark
   SET marked_at = clock.now_at,
       trusted_at = least(
           clock.now_at,
           last.trusted_at + :speed::integer * least(
               greatest(clock.now_at - last.marked_at, interval '0'), :longest_seconds::float * interval '1 second')),
       furthest_at = greatest(mark.furthest_at, clock.now_at),
       replan_from = CASE
           WHEN clock.now_at < last.marked_at - :tolerance_seconds::float * interval '1 second' THEN 0
           ELSE mark.replan_from
       END
  FROM clock, last
RETURNING last.marked_at AS before_at, mark.marked_at, mark.trusted_at, mark.furthest_at, mark.replan_from;

-- name: marks
SELECT marked_at AS before_at, clock_at() AS marked_at, least(trusted_at, clock_at()) AS trusted_at, furthest_at,
       replan_from
  FROM clock_marks;
