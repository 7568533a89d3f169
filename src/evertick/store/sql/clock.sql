-- The marks of the database's clock. Called by schedulers when they notice a step, and by janitors each minute.
-- The table has one row.

-- name: mark
-- Notes the time, and says what it was at the mark before. No row: another session is marking at this moment. The
-- trusted time follows the clock at `speed` times the time between two marks, of which no more than `longest_seconds`
-- count: a jump ahead, or an outage, is made up for slowly. The steady time leaves steps of more than `jump_seconds`
-- out, and approaches the clock by a twentieth of the time that passes: some steps were outages, or right. A time
-- before the last mark means that the clock was set back. Ticks after it are to come again, but for those up to the
-- steady time, which have passed.
WITH clock AS MATERIALIZED (
    SELECT clock_at() AS now_at
),
last AS (
    SELECT marked_at, trusted_at, steady_at FROM clock_marks FOR UPDATE SKIP LOCKED
)
UPDATE clock_marks mark
   SET marked_at = clock.now_at,
       trusted_at = least(
           clock.now_at,
           last.trusted_at + :speed::integer * least(
               greatest(clock.now_at - last.marked_at, interval '0'), :longest_seconds::float * interval '1 second')),
       steady_at = CASE
           WHEN last.steady_at < clock.now_at THEN least(clock.now_at, last.steady_at + 1.05 * step.passed)
           ELSE greatest(clock.now_at, last.steady_at + 0.95 * step.passed)
       END,
       furthest_at = greatest(mark.furthest_at, clock.now_at),
       replan_from = CASE WHEN step.is_back THEN 0 ELSE mark.replan_from END,
       replan_after_at = CASE
           WHEN step.is_back THEN greatest(clock.now_at, last.steady_at) ELSE mark.replan_after_at
       END
  FROM clock
 CROSS JOIN last
 CROSS JOIN LATERAL (
           SELECT clock.now_at < last.marked_at - :tolerance_seconds::float * interval '1 second' AS is_back,
                  CASE
                      WHEN clock.now_at - last.marked_at
                           BETWEEN interval '0' AND :jump_seconds::float * interval '1 second'
                          THEN clock.now_at - last.marked_at
                      ELSE interval '0'
                  END AS passed
       ) AS step
RETURNING last.marked_at AS before_at, mark.marked_at, mark.trusted_at, mark.furthest_at, mark.replan_from,
          mark.replan_after_at;

-- name: marks
SELECT marked_at AS before_at, clock_at() AS marked_at, least(trusted_at, clock_at()) AS trusted_at, furthest_at,
       replan_from, replan_after_at
  FROM clock_marks;
