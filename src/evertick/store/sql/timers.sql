-- Timers and what firing does with them. Called by the scheduler, for partitions that it holds.

-- name: load
-- Timers that fall due in a stretch of time, for the wheel: the earliest of each partition. Index: timers_due.
-- Of runs that wait in line for one job only the first is read: a long line must not hide what is behind it.
SELECT timer.job_id, timer.kind::text AS kind, timer.fire_at, timer.due_at, timer.tenant_id, timer.rule_id
  FROM unnest(:partitions::smallint[]) AS mine (partition)
 CROSS JOIN LATERAL (
           SELECT *
             FROM timers
            WHERE timers.partition = mine.partition
              AND timers.due_at >= :from_at::timestamptz
              AND timers.due_at < :before_at::timestamptz
              AND NOT (timers.kind = 'queued' AND EXISTS (
                           SELECT FROM timers first
                            WHERE first.partition = timers.partition AND first.job_id = timers.job_id
                              AND first.kind = 'queued' AND first.fire_at < timers.fire_at))
            ORDER BY timers.due_at
            LIMIT :most::integer
       ) AS timer;

-- name: load_jobs
-- The timers of some jobs, after a wake-up named them. Index: timers_pkey.
SELECT timer.job_id, timer.kind::text AS kind, timer.fire_at, timer.due_at, timer.tenant_id, timer.rule_id
  FROM unnest(:job_ids::bigint[]) AS woken (job_id)
 CROSS JOIN LATERAL (
           SELECT *
             FROM timers
            WHERE timers.partition = (woken.job_id & 255)::smallint AND timers.job_id = woken.job_id
           OFFSET 0  -- keeps the condition on due_at out, which would ask for timers_due
       ) AS timer
 WHERE timer.due_at < :before_at::timestamptz;

-- name: next_due
-- When the earliest timer of all is due, for the test kit's leaps. Index: timers_due.
SELECT min(earliest.due_at) AS due_at
  FROM generate_series(0, 255) AS every (partition)
 CROSS JOIN LATERAL (
           SELECT due_at
             FROM timers
            WHERE timers.partition = every.partition::smallint AND timers.due_at < 'infinity'
            ORDER BY timers.due_at
            LIMIT 1
       ) AS earliest;

-- name: fire
-- Moves due timers and appends their attempts, all or nothing for each timer. Indexes: timers_pkey, outcomes_pkey.
--
-- A timer is touched only while its partition is held in the given epoch, and only if it is still exactly what was
-- planned: whoever edits, pauses or deletes its job at this moment holds its row and wins. At most one timer of a
-- job may be given, so that what one run leaves open is there to be seen by the next.
--
-- Timers that fire alike share a plan, which stands once: its jobs are a stretch of `job_ids`, its gaps one of the gaps'
-- columns.
WITH plans AS MATERIALIZED (
    SELECT kind::timer_kind AS kind, fire_at, due_at, rule_id, run_at, reason::run_reason AS reason, next_fire_at,
           next_due_at, policy, most, first, last, first_gap, last_gap
      FROM unnest(
               :kinds::text[], :fire_ats::timestamptz[], :due_ats::timestamptz[], :rule_ids::bigint[],
               :run_ats::timestamptz[], :reasons::text[], :next_fire_ats::timestamptz[], :next_due_ats::timestamptz[],
               :policies::text[], :limits::integer[], :firsts::integer[], :lasts::integer[],
               :first_gaps::integer[], :last_gaps::integer[]
           ) AS p (kind, fire_at, due_at, rule_id, run_at, reason, next_fire_at, next_due_at, policy, most, first, last,
                   first_gap, last_gap)
),
-- Stretch by stretch rather than by a join, which might compare each timer with each plan.
planned AS MATERIALIZED (
    SELECT (timer.job_id & 255)::smallint AS partition, timer.job_id, plans.first - 1 + timer.place AS number,
           kind, fire_at, due_at, rule_id, run_at, reason, next_fire_at, next_due_at, policy, most, first_gap,
           last_gap
      FROM plans
     CROSS JOIN LATERAL unnest((:job_ids::bigint[])[plans.first:plans.last]) WITH ORDINALITY AS timer (job_id, place)
),
-- A takeover waits for this lock, so two holders can never both write.
fence AS (
    SELECT held.partition, held.epoch
      FROM unnest(:held::smallint[], :epochs::integer[]) AS mine (partition, epoch)
      JOIN partitions held ON held.partition = mine.partition AND held.epoch = mine.epoch
     WHERE held.holder = :node::text
       FOR SHARE OF held
),
-- The hybrid logical clock: database time, yet always past what this holder wrote before.
clock AS MATERIALIZED (
    SELECT now_at, greatest(:last_seq::bigint, microseconds(now_at)) AS seq FROM clock_at() AS now_at
),
-- Passing over rows that someone else has locked keeps firing from ever waiting for a user, and from deadlocks.
locked AS (
    SELECT timer.partition, timer.job_id, timer.kind, timer.fire_at, timer.due_at, timer.tenant_id, timer.rule_id,
           timer.queue_id, timer.spec_version, timer.attempt, timer.priority, timer.last_lane, timer.last_seq,
           coalesce(timer.reason, planned.reason) AS reason,
           planned.run_at, planned.next_fire_at, planned.next_due_at, planned.policy, planned.most, planned.number,
           planned.first_gap, planned.last_gap,
           timer.due_at = planned.due_at AND timer.rule_id = planned.rule_id AS is_as_planned, fence.epoch
      FROM planned
      JOIN fence ON fence.partition = planned.partition
      JOIN timers timer
        ON timer.partition = planned.partition AND timer.job_id = planned.job_id
       AND timer.kind = planned.kind AND timer.fire_at = planned.fire_at
       FOR UPDATE OF timer SKIP LOCKED
),
-- Paused since: due at infinity. Edited: by another rule. No part of the join above, lest it use another index.
-- An attempt without an outcome is open. One that is gone is not: a day of history is dropped when all in it is over.
unchanged AS MATERIALIZED (
    SELECT locked.*,
           locked.last_seq IS NOT NULL
           AND NOT EXISTS (SELECT FROM outcomes
                            WHERE outcomes.lane_id = locked.last_lane AND outcomes.seq = locked.last_seq)
           AND EXISTS (SELECT FROM attempts
                        WHERE attempts.lane_id = locked.last_lane AND attempts.seq = locked.last_seq) AS is_last_open
      FROM locked
     WHERE is_as_planned
),
standing AS MATERIALIZED (
    SELECT timer.*, clock.now_at, clock.seq + timer.number AS seq,
           (timer.queue_id::bigint << 10) | (timer.partition::bigint << 2) | timer.priority AS lane_id,
           CASE
               WHEN timer.run_at IS NULL OR timer.kind NOT IN ('tick', 'queued') THEN false
               WHEN timer.policy = 'REPLACE' THEN false
               WHEN timer.policy = 'SKIP' AND timer.kind = 'tick' THEN
                   timer.is_last_open OR EXISTS (SELECT FROM open_runs WHERE open_runs.job_id = timer.job_id)
               WHEN timer.policy = 'SKIP' AND timer.is_last_open THEN true
               -- A run that waits asks what the tick's timer would.
               WHEN timer.kind = 'queued' AND EXISTS (
                       SELECT FROM timers tick
                         JOIN attempts ON attempts.lane_id = tick.last_lane AND attempts.seq = tick.last_seq
                        WHERE tick.partition = timer.partition AND tick.job_id = timer.job_id AND tick.kind = 'tick'
                          AND NOT EXISTS (
                                  SELECT FROM outcomes
                                   WHERE outcomes.lane_id = tick.last_lane AND outcomes.seq = tick.last_seq))
                   THEN true
               -- The last one has no row of its own if it was fired while the policy was SKIP.
               ELSE (SELECT count(*) + (timer.is_last_open AND count(*) FILTER (
                                            WHERE open_runs.lane_id = timer.last_lane
                                              AND open_runs.seq = timer.last_seq) = 0)::integer
                       FROM open_runs
                      WHERE open_runs.job_id = timer.job_id) >= timer.most
           END AS is_full,
           -- Whoever waits already goes first: before others that wait, and under QUEUE before the tick.
           (timer.kind = 'queued' OR timer.kind = 'tick' AND timer.policy = 'QUEUE') AND EXISTS (
               SELECT FROM timers waiting
                WHERE waiting.partition = timer.partition AND waiting.job_id = timer.job_id
                  AND waiting.kind = 'queued' AND waiting.fire_at < timer.fire_at) AS is_behind
      FROM unchanged timer
     CROSS JOIN clock
),
-- early: our guess of the database's clock was fast. wait: a run that stands already, or a tick of an outage, is put off
-- until there is room. skip: the tick becomes a gap. pass: no tick of it is left to run, only gaps.
judged AS MATERIALIZED (
    SELECT standing.*,
           CASE
               WHEN due_at > now_at THEN 'early'
               WHEN run_at IS NULL THEN 'pass'
               -- It ran while the clock was ahead. Subqueries, so that the bounds are read once.
               WHEN kind = 'tick' AND run_at >= (SELECT ran_from_at FROM clock_marks)
                    AND run_at <= (SELECT ran_until_at FROM clock_marks)
                    AND (EXISTS (SELECT FROM attempts
                                  WHERE attempts.job_id = standing.job_id AND attempts.fire_at = standing.run_at
                                    AND attempts.seq >= microseconds(standing.run_at))
                         OR EXISTS (SELECT FROM withdrawals
                                     WHERE withdrawals.job_id = standing.job_id
                                       AND withdrawals.fire_at = standing.run_at))
                   THEN 'pass'
               WHEN NOT is_full AND NOT is_behind THEN 'run'
               WHEN kind = 'queued' OR reason = 'catch_up' THEN 'wait'
               WHEN policy = 'QUEUE' AND NOT (is_full AND is_behind) THEN 'queue'
               ELSE 'skip'
           END AS verdict
      FROM standing
),
-- All but the plain tick that runs and moves on: few, so that what concerns them need not go through all.
other AS MATERIALIZED (
    SELECT *
      FROM judged
     WHERE verdict <> 'run' OR kind <> 'tick' OR policy <> 'SKIP' OR next_fire_at IS NULL
),
done AS MATERIALIZED (
    SELECT * FROM other WHERE verdict NOT IN ('early', 'wait')
),
moved AS (
    UPDATE timers timer
       SET fire_at = judged.next_fire_at,
           due_at = judged.next_due_at,
           last_lane = CASE WHEN judged.verdict = 'run' THEN judged.lane_id ELSE timer.last_lane END,
           last_seq = CASE WHEN judged.verdict = 'run' THEN judged.seq ELSE timer.last_seq END
      FROM judged
     WHERE timer.partition = judged.partition AND timer.job_id = judged.job_id
       AND timer.kind = judged.kind AND timer.fire_at = judged.fire_at
       AND judged.next_fire_at IS NOT NULL AND judged.verdict NOT IN ('early', 'wait')
),
-- Put off in the table too, so that those who wait do not stand before those who are due.
put_off AS (
    UPDATE timers timer
       SET due_at = other.now_at + :wait_seconds::float * interval '1 second'
      FROM other
     WHERE other.verdict = 'wait'
       AND timer.partition = other.partition AND timer.job_id = other.job_id
       AND timer.kind = other.kind AND timer.fire_at = other.fire_at
),
removed AS (
    DELETE FROM timers timer
     USING done
     WHERE timer.partition = done.partition AND timer.job_id = done.job_id
       AND timer.kind = done.kind AND timer.fire_at = done.fire_at
       AND done.next_fire_at IS NULL
),
appended AS (
    INSERT INTO attempts (lane_id, seq, job_id, fire_at, due_at, spec_version, epoch, reason, attempt, is_listed)
    SELECT lane_id, seq, job_id, run_at, due_at, spec_version, epoch, reason, attempt, policy <> 'SKIP' OR kind <> 'tick'
      FROM judged
     WHERE verdict = 'run'
     ORDER BY lane_id, seq
),
-- The tick's timer speaks for a first attempt under SKIP; every other open run has a row.
opened AS (
    INSERT INTO open_runs (job_id, fire_at, lane_id, seq)
    SELECT job_id, run_at, lane_id, seq
      FROM done
     WHERE verdict = 'run' AND (policy <> 'SKIP' OR kind <> 'tick')
        ON CONFLICT (job_id, fire_at) DO UPDATE SET lane_id = excluded.lane_id, seq = excluded.seq
),
queued AS (
    INSERT INTO timers (job_id, fire_at, due_at, tenant_id, rule_id, queue_id, spec_version, kind, reason, partition,
                        attempt, priority)
    SELECT job_id, run_at, now_at, tenant_id, rule_id, queue_id, spec_version, 'queued', reason, partition, 1, priority
      FROM done
     WHERE verdict = 'queue'
        ON CONFLICT DO NOTHING
),
-- REPLACE: whatever else is open ends as cancelled. An attempt takes the outcome if it has none yet …
replacing AS MATERIALIZED (
    SELECT * FROM done WHERE verdict = 'run' AND policy = 'REPLACE' AND kind = 'tick'
),
cancelled AS (
    INSERT INTO outcomes (lane_id, seq, finished_at, result, is_final, error)
    SELECT lane_id, seq, now_at, 'cancelled', true, 'replaced by the next tick'
      FROM (SELECT open_runs.lane_id, open_runs.seq, replacing.now_at
              FROM replacing
              JOIN open_runs ON open_runs.job_id = replacing.job_id AND open_runs.fire_at <> replacing.run_at
             UNION
            SELECT last_lane, last_seq, now_at FROM replacing WHERE is_last_open) AS open
     ORDER BY lane_id, seq
        ON CONFLICT DO NOTHING
 RETURNING lane_id, seq
),
-- After the outcomes, as `record` does it: the other way round each could wait for the other. A run whose outcome is
-- written by someone else at this moment keeps its row: its retry, if there is one, cannot be seen from here yet.
replaced AS (
    DELETE FROM open_runs
     USING replacing
     WHERE open_runs.job_id = replacing.job_id AND open_runs.fire_at <> replacing.run_at
       AND ((open_runs.lane_id, open_runs.seq) IN (SELECT lane_id, seq FROM cancelled)
            OR EXISTS (SELECT FROM outcomes
                        WHERE outcomes.lane_id = open_runs.lane_id AND outcomes.seq = open_runs.seq))
       AND (SELECT count(*) FROM cancelled) >= 0
 RETURNING open_runs.job_id, open_runs.fire_at, replacing.partition, replacing.now_at
),
-- … and a run that waits for its retry loses the timer.
withdrawn AS (
    DELETE FROM timers timer
     USING replaced
     WHERE timer.partition = replaced.partition AND timer.job_id = replaced.job_id
       AND timer.kind IN ('retry', 'queued') AND timer.fire_at = replaced.fire_at
 RETURNING timer.job_id, timer.fire_at, replaced.now_at, timer.spec_version, timer.reason
),
noted AS (
    INSERT INTO withdrawals (job_id, fire_at, withdrawn_at, spec_version, reason)
    SELECT job_id, fire_at, now_at, spec_version, reason FROM withdrawn
        ON CONFLICT DO NOTHING
),
skipped AS (
    SELECT done.job_id, done.run_at, done.spec_version, done.last_seq, latest.first_at AS joins
      FROM done
      -- Ticks that one attempt keeps out, with nothing else in between, are one gap. A run that waited its turn may
      -- be in between: it waits yet, was withdrawn, or has an attempt, which is never before its fire time.
      LEFT JOIN LATERAL (
               SELECT first_at, last_at, reason, blocked_by
                 FROM gaps
                WHERE gaps.job_id = done.job_id
                ORDER BY first_at DESC
                LIMIT 1
           ) AS latest
        ON latest.reason = 'overlap' AND latest.blocked_by IS NOT DISTINCT FROM done.last_seq
       AND NOT EXISTS (SELECT FROM timers
                        WHERE timers.partition = done.partition AND timers.job_id = done.job_id
                          AND timers.kind = 'queued' AND timers.fire_at > latest.last_at)
       AND NOT EXISTS (SELECT FROM withdrawals
                        WHERE withdrawals.job_id = done.job_id AND withdrawals.fire_at > latest.last_at
                          AND withdrawals.fire_at < done.run_at AND withdrawals.reason NOT IN ('manual', 'replay'))
       AND NOT EXISTS (SELECT FROM attempts
                        WHERE attempts.job_id = done.job_id AND attempts.fire_at > latest.last_at
                          AND attempts.fire_at < done.run_at AND attempts.seq > microseconds(latest.last_at)
                          AND attempts.reason NOT IN ('manual', 'replay'))
     WHERE done.verdict = 'skip'
),
widened AS (
    INSERT INTO gaps (job_id, first_at, last_at, ticks, blocked_by, spec_version, reason)
    SELECT job_id, coalesce(joins, run_at), run_at, 1, last_seq, spec_version, 'overlap' FROM skipped
        ON CONFLICT (job_id, first_at, reason) DO UPDATE
       SET last_at = excluded.last_at, ticks = gaps.ticks + 1
),
gapped AS (
    INSERT INTO gaps (job_id, first_at, last_at, ticks, spec_version, reason)
    -- By subscript, and the reasons as numbers: to find its place in an array of texts, one walks there.
    SELECT judged.job_id, (:gap_first_ats::timestamptz[])[gap.number], (:gap_last_ats::timestamptz[])[gap.number],
           (:gap_ticks::bigint[])[gap.number], judged.spec_version,
           ('{missed,paused,overlap,calendar,dst}'::gap_reason[])[(:gap_reasons::smallint[])[gap.number]]
      FROM judged
     CROSS JOIN LATERAL generate_series(judged.first_gap, judged.last_gap) AS gap (number)
     WHERE judged.first_gap IS NOT NULL AND judged.verdict NOT IN ('early', 'wait')
        ON CONFLICT DO NOTHING
),
ended AS (
    INSERT INTO finished_jobs (job_id, finished_at)
    SELECT job_id, now_at FROM done WHERE kind = 'tick' AND next_fire_at IS NULL
        ON CONFLICT (job_id) DO UPDATE SET finished_at = excluded.finished_at
)
SELECT clock.now_at, tally.runs, tally.lane_ids, coalesce(tally.last_seq, :last_seq::bigint) AS last_seq,
       -- Of the given timers, by their places: not as planned any more, put off, and left as they were.
       CASE WHEN tally.judged < cardinality(:job_ids::bigint[])
            THEN ARRAY(SELECT generate_series(1, cardinality(:job_ids::bigint[])) EXCEPT SELECT number FROM judged)
       END AS refused,
       ARRAY(SELECT number FROM other WHERE verdict = 'wait') AS waiting,
       ARRAY(SELECT number FROM other WHERE verdict = 'early') AS early
  FROM clock
 CROSS JOIN (
           SELECT count(*) AS judged, max(seq) AS last_seq, count(*) FILTER (WHERE verdict = 'run') AS runs,
                  array_agg(DISTINCT lane_id) FILTER (WHERE verdict = 'run') AS lane_ids
             FROM judged
       ) AS tally;

-- name: quarantine
-- Pauses jobs whose rule cannot be read, so that they harm nobody and wait for a person. Indexes: *_pkey.
WITH paused AS (
    UPDATE jobs
       SET status = 'paused', paused_at = clock_at(), updated_at = clock_at(), pause_reason = :reason::text
     WHERE job_id = ANY(:job_ids::bigint[]) AND status = 'active'
 RETURNING job_id
)
UPDATE timers
   SET due_at = 'infinity'
  FROM paused
 WHERE timers.partition = (paused.job_id & 255)::smallint AND timers.job_id = paused.job_id AND timers.kind = 'tick';
