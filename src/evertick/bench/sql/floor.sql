-- Writes the rows of fired and recorded runs with minimal statements. Called by the bench, in a database of its own.

-- name: make_attempts
-- As `add_day` makes a day's partition.
CREATE TABLE IF NOT EXISTS floor_attempts (LIKE attempts INCLUDING ALL);

-- name: make_outcomes
CREATE TABLE IF NOT EXISTS floor_outcomes (LIKE outcomes INCLUDING ALL);

-- name: empty
TRUNCATE floor_attempts, floor_outcomes;

-- name: move
-- Updates timers of one fire time, as firing them does. Index: timers_pkey.
UPDATE timers timer
   SET fire_at = :next_at::timestamptz, due_at = :next_at::timestamptz, last_lane = moved.lane_id, last_seq = moved.seq
  FROM unnest(:job_ids::bigint[], :lane_ids::bigint[], :seqs::bigint[]) AS moved (job_id, lane_id, seq)
 WHERE timer.partition = (moved.job_id & 255)::smallint AND timer.job_id = moved.job_id
   AND timer.kind = 'tick' AND timer.fire_at = :fire_at::timestamptz;
