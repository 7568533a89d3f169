-- Timers and what firing does with them. Called by the scheduler, for partitions that it holds.

-- name: load
-- Timers that fall due in a stretch of time, for the wheel: the earliest of each partition, from an instant of its own
-- on, so that dead index entries of what was fired before it are not read. Index: timers_due.
-- Of the queued runs of one job only the first is read: many of them must not hide what is due after them.
SELECT timer.job_id, timer.kind::text AS kind, timer.fire_at, timer.due_at, timer.tenant_id, timer.rule_id,
       timer.priority, timer.queue_id
  FROM unnest(:partitions::smallint[], :from_ats::timestamptz[]) AS mine (partition, from_at)
 CROSS JOIN LATERAL (
           SELECT *
             FROM timers
            WHERE timers.partition = mine.partition
              AND timers.due_at >= mine.from_at
              AND timers.due_at < :before_at::timestamptz
              AND NOT (timers.kind = 'queued' AND EXISTS (
                           SELECT FROM timers first
                            WHERE first.partition = timers.partition AND first.job_id = timers.job_id
                              AND first.kind = 'queued' AND first.fire_at < timers.fire_at))
            ORDER BY timers.due_at
            LIMIT :most::integer
       ) AS timer;

-- name: walk_streams
-- The streams of some partitions, each with its earliest timer in a stretch of due time: a stream is the timers of one
-- tenant, priority and queue. Any number of timers of one stream cost no more than one. The walk goes down from a stream
-- of each partition, and passes so many of them at most. Down, because the last timer of a stream is seldom the dead
-- index entry of one that has fired. Streams without a timer in the stretch are left out, but for the one where a walk
-- ended.
-- Index: timers_of_tenant.
SELECT mine.partition, stream.tenant_id, stream.priority, stream.queue_id, stream.number,
       stream.number = mine.most AS is_cut, timer.job_id, timer.kind::text AS kind, timer.fire_at, timer.due_at
  FROM unnest(:partitions::smallint[], :tenant_ids::bigint[], :priorities::smallint[], :queue_ids::integer[],
              :from_ats::timestamptz[], :before_ats::timestamptz[], :mosts::integer[])
           AS mine (partition, tenant_id, priority, queue_id, from_at, before_at, most)
 CROSS JOIN LATERAL (
           WITH RECURSIVE walked AS (
               (SELECT tenant_id, priority, queue_id, 1 AS number
                  FROM timers
                 WHERE timers.partition = mine.partition
                   AND (timers.tenant_id, timers.priority, timers.queue_id)
                       < (mine.tenant_id, mine.priority, mine.queue_id)
                 ORDER BY timers.tenant_id DESC, timers.priority DESC, timers.queue_id DESC, timers.due_at DESC
                 LIMIT 1)
                UNION ALL
               SELECT next.tenant_id, next.priority, next.queue_id, walked.number + 1
                 FROM walked
                CROSS JOIN LATERAL (
                          SELECT tenant_id, priority, queue_id
                            FROM timers
                           WHERE timers.partition = mine.partition
                             AND (timers.tenant_id, timers.priority, timers.queue_id)
                                 < (walked.tenant_id, walked.priority, walked.queue_id)
                           ORDER BY timers.tenant_id DESC, timers.priority DESC, timers.queue_id DESC, timers.due_at DESC
                           LIMIT 1
                      ) AS next
                WHERE walked.number < mine.most
           )
           SELECT *, max(number) OVER () AS last_number FROM walked
       ) AS stream
  LEFT JOIN LATERAL (
           SELECT job_id, kind, fire_at, due_at
             FROM timers
            WHERE timers.partition = mine.partition
              AND (timers.tenant_id, timers.priority, timers.queue_id, timers.due_at)
                  >= (stream.tenant_id, stream.priority, stream.queue_id, mine.from_at)
              AND (timers.tenant_id, timers.priority, timers.queue_id, timers.due_at)
                  < (stream.tenant_id, stream.priority, stream.queue_id, mine.before_at)
              AND NOT (timers.kind = 'queued' AND EXISTS (
                           SELECT FROM timers first
                            WHERE first.partition = timers.partition AND first.job_id = timers.job_id
                              AND first.kind = 'queued' AND first.fire_at < timers.fire_at))
            ORDER BY timers.tenant_id, timers.priority, timers.queue_id, timers.due_at
            LIMIT 1
       ) AS timer ON true
 WHERE timer.job_id IS NOT NULL OR stream.number = stream.last_number;

-- name: load_streams
-- As `load`, for streams: the earliest timers of each in a stretch of its own. Index: timers_of_tenant.
SELECT timer.job_id, timer.kind::text AS kind, timer.fire_at, timer.due_at, timer.tenant_id, timer.rule_id,
       timer.priority, timer.queue_id
  FROM unnest(:partitions::smallint[], :tenant_ids::bigint[], :priorities::smallint[], :queue_ids::integer[],
              :from_ats::timestamptz[], :before_ats::timestamptz[], :mosts::integer[])
           AS stream (partition, tenant_id, priority, queue_id, from_at, before_at, most)
 CROSS JOIN LATERAL (
           SELECT *
             FROM timers
            WHERE timers.partition = stream.partition
              -- Rows rather than columns: where most timers are one tenant's, the planner would go by due time, past
              -- all of those.
              AND (timers.tenant_id, timers.priority, timers.queue_id, timers.due_at)
                  >= (stream.tenant_id, stream.priority, stream.queue_id, stream.from_at)
              AND (timers.tenant_id, timers.priority, timers.queue_id, timers.due_at)
                  < (stream.tenant_id, stream.priority, stream.queue_id, stream.before_at)
              AND NOT (timers.kind = 'queued' AND EXISTS (
                           SELECT FROM timers first
                            WHERE first.partition = timers.partition AND first.job_id = timers.job_id
                              AND first.kind = 'queued' AND first.fire_at < timers.fire_at))
            ORDER BY timers.tenant_id, timers.priority, timers.queue_id, timers.due_at
            LIMIT stream.most
       ) AS timer;

-- name: count_due
-- How many timers of each partition fall due before an instant of its own, up to `most`; partitions without any are
-- left out. Of the queued runs of one job the first counts, as it is the one that `load` reads. Index: timers_due.
SELECT mine.partition, due.timers
  FROM unnest(:partitions::smallint[], :before_ats::timestamptz[]) AS mine (partition, before_at)
 CROSS JOIN LATERAL (
           SELECT count(*) AS timers
             FROM (SELECT
                     FROM timers
                    WHERE timers.partition = mine.partition AND timers.due_at < mine.before_at
                      AND NOT (timers.kind = 'queued' AND EXISTS (
                                   SELECT FROM timers first
                                    WHERE first.partition = timers.partition AND first.job_id = timers.job_id
                                      AND first.kind = 'queued' AND first.fire_at < timers.fire_at))
                    ORDER BY timers.due_at
                    LIMIT :most::integer) AS first
       ) AS due
 WHERE due.timers > 0;

-- name: load_jobs
-- The timers of some jobs, after a wake-up named them; of queued runs the first. Index: timers_pkey.
SELECT timer.job_id, timer.kind::text AS kind, timer.fire_at, timer.due_at, timer.tenant_id, timer.rule_id,
       timer.priority, timer.queue_id
  FROM unnest(:job_ids::bigint[]) AS woken (job_id)
 CROSS JOIN LATERAL (
           (SELECT *
              FROM timers
             WHERE timers.partition = (woken.job_id & 255)::smallint AND timers.job_id = woken.job_id
               AND timers.kind <> 'queued'
            OFFSET 0)  -- keeps the condition on due_at out, which would ask for timers_due
            UNION ALL
           (SELECT *
              FROM timers
             WHERE timers.partition = (woken.job_id & 255)::smallint AND timers.job_id = woken.job_id
               AND timers.kind = 'queued'
             ORDER BY timers.fire_at
             LIMIT 1)
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
-- planned: a session that edits, pauses or deletes its job at this moment has its row locked and wins. At most
-- one timer of a job may be given, so that the next one sees what this one leaves open; or any number of manual runs,
-- replays and retries of different runs, which run whatever is open.
--
-- It does not wait for users. All existing rows that it changes are locked before anything is written, in the order
-- fence, timers, open_runs, retries, and rows that another session has locked are passed over, as are those that were
-- changed since this statement began: their timer is left as it was and called busy. What is left to wait for is the
-- key of a row that another session is inserting: an outcome that is being recorded. The session's lock_timeout bounds
-- that. It locks in `lock_rows` only, so that it may choose among partitions at any time (decision 35).
--
-- Timers that fire alike share a plan, which stands once: its jobs are a stretch of `job_ids`, its gaps one of the
-- gaps' columns.
WITH plans AS MATERIALIZED (
    SELECT kind::timer_kind AS kind, fire_at, due_at, rule_id, run_at, reason::run_reason AS reason, next_fire_at,
           next_due_at, policy, most, wait_seconds, first, last, first_gap, last_gap
      FROM unnest(
               :kinds::text[], :fire_ats::timestamptz[], :due_ats::timestamptz[], :rule_ids::bigint[],
               :run_ats::timestamptz[], :reasons::text[], :next_fire_ats::timestamptz[], :next_due_ats::timestamptz[],
               :policies::text[], :limits::integer[], :waits::float[], :firsts::integer[], :lasts::integer[],
               :first_gaps::integer[], :last_gaps::integer[]
           ) AS p (kind, fire_at, due_at, rule_id, run_at, reason, next_fire_at, next_due_at, policy, most,
                   wait_seconds, first, last, first_gap, last_gap)
),
-- Stretch by stretch rather than by a join, which might compare each timer with each plan.
planned AS MATERIALIZED (
    SELECT (timer.job_id & 255)::smallint AS partition, timer.job_id, plans.first - 1 + timer.place AS number,
           kind, fire_at, due_at, rule_id, run_at, reason, next_fire_at, next_due_at, policy, most, wait_seconds,
           first_gap, last_gap
      FROM plans
     CROSS JOIN LATERAL unnest((:job_ids::bigint[])[plans.first:plans.last]) WITH ORDINALITY AS timer (job_id, place)
),
own AS MATERIALIZED (
    SELECT held.ctid AS row_id, held.partition, held.epoch
      FROM unnest(:held::smallint[], :epochs::integer[]) AS mine (partition, epoch)
      JOIN partitions held ON held.partition = mine.partition AND held.epoch = mine.epoch
     WHERE held.holder = :node::text AND EXISTS (SELECT FROM confirmed_server)
),
-- A takeover waits for this lock, so two holders can never both write. One that is under way is not waited for.
fence AS MATERIALIZED (
    SELECT partition, epoch
      FROM own
     WHERE (row_id IN (SELECT lock_rows('partitions', ARRAY(SELECT row_id FROM own), 'SHARE'))) IS TRUE
),
-- The hybrid logical clock: database time, yet always past what this holder wrote before.
clock AS MATERIALIZED (
    SELECT now_at, greatest(:last_seq::bigint, microseconds(now_at)) AS seq FROM clock_at() AS now_at
),
found AS MATERIALIZED (
    SELECT timer.tableoid AS table_id, timer.ctid AS row_id, timer.partition, timer.job_id, timer.kind, timer.fire_at,
           timer.due_at, timer.tenant_id, timer.rule_id, timer.queue_id, timer.spec_version, timer.attempt,
           timer.priority, timer.last_lane, timer.last_seq, timer.gate_id,
           coalesce(timer.reason, planned.reason) AS reason, planned.run_at, planned.next_fire_at,
           planned.next_due_at, planned.policy, planned.most,
           planned.wait_seconds, planned.number, planned.first_gap, planned.last_gap,
           timer.due_at = planned.due_at AND timer.rule_id = planned.rule_id AS is_as_planned, fence.epoch
      FROM planned
      JOIN fence ON fence.partition = planned.partition
      JOIN timers timer
        ON timer.partition = planned.partition AND timer.job_id = planned.job_id
       AND timer.kind = planned.kind AND timer.fire_at = planned.fire_at
),
-- Paused since: due at infinity. Edited: by another rule. Not part of the join above, which might then use another
-- index. Passing over rows that another session has locked keeps firing from ever waiting for a user, and from
-- deadlocks.
locked AS MATERIALIZED (
    SELECT table_id, lock_rows(table_id, array_agg(row_id)) AS row_id FROM found WHERE is_as_planned GROUP BY table_id
),
-- An attempt without an outcome is open. One that is gone is not: a day of history is dropped when all in it is over.
unchanged AS MATERIALIZED (
    SELECT found.*,
           found.last_seq IS NOT NULL
           AND NOT EXISTS (SELECT FROM outcomes
                            WHERE outcomes.lane_id = found.last_lane AND outcomes.seq = found.last_seq)
           AND EXISTS (SELECT FROM attempts
                        WHERE attempts.lane_id = found.last_lane AND attempts.seq = found.last_seq) AS is_last_open
      FROM found
     -- IS TRUE keeps this a look-up in a hash table: a join might compare each with each.
     WHERE ((table_id, row_id) IN (SELECT table_id, row_id FROM locked)) IS TRUE
),
-- The few that change more than their timer: a retry its run, and under REPLACE a tick all unfinished runs of its job.
touching AS MATERIALIZED (
    SELECT partition, job_id, kind, fire_at
      FROM unchanged
     WHERE (SELECT bool_or(kind = 'retry' OR policy = 'REPLACE') FROM plans)  -- once, so that mostly none is looked at
       AND (kind = 'retry' OR kind = 'tick' AND policy = 'REPLACE' AND run_at IS NOT NULL)
),
seen_runs AS MATERIALIZED (
    SELECT touching.job_id, run.row_id, run.fire_at, run.lane_id, run.seq
      FROM touching
     CROSS JOIN LATERAL (
               SELECT ctid AS row_id, fire_at, lane_id, seq
                 FROM open_runs
                WHERE open_runs.job_id = touching.job_id
                  AND (touching.kind = 'tick' OR open_runs.fire_at = touching.fire_at)
               OFFSET 0
           ) AS run
),
-- The lock of a listed run's row guards the outcome of its attempt: the statement that ends or cancels it locks that
-- row first.
held_runs AS MATERIALIZED (
    SELECT job_id, fire_at, lane_id, seq
      FROM seen_runs
     WHERE (row_id IN (SELECT lock_rows('open_runs', ARRAY(SELECT row_id FROM seen_runs)))) IS TRUE
),
seen_timers AS MATERIALIZED (
    SELECT touching.partition, touching.job_id, timer.table_id, timer.row_id, timer.kind, timer.fire_at
      FROM touching
     CROSS JOIN LATERAL (
               SELECT tableoid AS table_id, ctid AS row_id, kind, fire_at
                 FROM timers
                WHERE timers.partition = touching.partition AND timers.job_id = touching.job_id
                  AND timers.kind IN ('retry', 'queued')
               OFFSET 0
           ) AS timer
     WHERE touching.kind = 'tick'
       AND (SELECT count(*) FROM held_runs) >= 0  -- after those
),
held_timers AS MATERIALIZED (
    SELECT partition, job_id, kind, fire_at
      FROM seen_timers
     WHERE ((table_id, row_id) IN (SELECT table_id, lock_rows(table_id, array_agg(row_id))
                                     FROM seen_timers
                                    GROUP BY table_id)) IS TRUE
),
-- Jobs of which another session has a run or its timer: all that can be seen, but for what could be locked.
busy AS MATERIALIZED (
    SELECT job_id
      FROM (SELECT job_id, fire_at FROM seen_runs EXCEPT SELECT job_id, fire_at FROM held_runs) AS others_run
     UNION
    SELECT job_id
      FROM (SELECT job_id, kind, fire_at FROM seen_timers
            EXCEPT
            SELECT job_id, kind, fire_at FROM held_timers) AS others_timer
),
standing AS MATERIALIZED (
    SELECT timer.*, clock.now_at, clock.seq + timer.number AS seq,
           lane_id_of(timer.queue_id, timer.partition, timer.priority, timer.gate_id IS NOT NULL) AS lane_id,
           CASE
               WHEN timer.run_at IS NULL OR timer.kind NOT IN ('tick', 'queued') THEN false
               WHEN timer.policy = 'REPLACE' AND timer.kind = 'tick' THEN false
               WHEN timer.policy = 'SKIP' AND timer.kind = 'tick' THEN
                   timer.is_last_open OR EXISTS (SELECT FROM open_runs WHERE open_runs.job_id = timer.job_id)
               -- A run that waits counts what is open, and the run that the tick's timer speaks for.
               WHEN timer.kind = 'queued' THEN
                   (SELECT count(*) FROM open_runs WHERE open_runs.job_id = timer.job_id)
                   + (SELECT count(*)
                        FROM timers tick
                        JOIN attempts ON attempts.lane_id = tick.last_lane AND attempts.seq = tick.last_seq
                       WHERE tick.partition = timer.partition AND tick.job_id = timer.job_id AND tick.kind = 'tick'
                         AND NOT EXISTS (SELECT FROM outcomes
                                          WHERE outcomes.lane_id = tick.last_lane AND outcomes.seq = tick.last_seq)
                         AND NOT EXISTS (SELECT FROM open_runs
                                          WHERE open_runs.job_id = tick.job_id AND open_runs.lane_id = tick.last_lane
                                            AND open_runs.seq = tick.last_seq))
                   >= timer.most
               -- The last one has no row of its own if it was fired while the policy was SKIP.
               ELSE (SELECT count(*) + (timer.is_last_open AND count(*) FILTER (
                                            WHERE open_runs.lane_id = timer.last_lane
                                              AND open_runs.seq = timer.last_seq) = 0)::integer
                       FROM open_runs
                      WHERE open_runs.job_id = timer.job_id) >= timer.most
           END AS is_full,
           -- A run that waits already goes first: before others that wait, and under QUEUE before the tick.
           (timer.kind = 'queued' OR timer.kind = 'tick' AND timer.policy = 'QUEUE') AND EXISTS (
               SELECT FROM timers waiting
                WHERE waiting.partition = timer.partition AND waiting.job_id = timer.job_id
                  AND waiting.kind = 'queued'
                  AND (timer.kind = 'tick' OR waiting.fire_at < timer.fire_at)) AS is_behind
      FROM unchanged timer
     CROSS JOIN clock
),
-- early: the scheduler's estimate of the database's clock was fast. busy: another session has locked what it would
-- change. wait: a run that stands already, or a tick of an outage, is put off until there is room; so is a tick while
-- there is room, but for the run that waits already: at most one does. skip: the tick becomes a gap. pass: no tick of
-- it is left to run, only gaps.
judged AS MATERIALIZED (
    SELECT standing.*,
           CASE
               WHEN due_at > now_at THEN 'early'
               WHEN run_at IS NULL THEN 'pass'
               WHEN (kind = 'retry' OR policy = 'REPLACE') AND job_id IN (SELECT job_id FROM busy) THEN 'busy'
               -- It ran while the clock was ahead. Subqueries, so that the bounds are read once. They are null unless
               -- that ever was: then nothing is looked up, by IS TRUE.
               WHEN kind = 'tick' AND (run_at BETWEEN (SELECT ran_from_at FROM clock_marks)
                                                  AND (SELECT ran_until_at FROM clock_marks)) IS TRUE
                    AND (EXISTS (SELECT FROM attempts
                                  WHERE attempts.job_id = standing.job_id AND attempts.fire_at = standing.run_at
                                    AND attempts.seq >= microseconds(standing.run_at))
                         OR EXISTS (SELECT FROM withdrawals
                                     WHERE withdrawals.job_id = standing.job_id
                                       AND withdrawals.fire_at = standing.run_at))
                   THEN 'pass'
               WHEN NOT is_full AND NOT is_behind THEN 'run'
               WHEN kind = 'queued' OR reason = 'catch_up' OR NOT is_full THEN 'wait'
               WHEN policy = 'QUEUE' AND NOT is_behind THEN 'queue'
               ELSE 'skip'
           END AS verdict
      FROM standing
),
-- All but the plain tick that runs and moves on: few, so that what concerns them need not go through all.
other AS MATERIALIZED (
    SELECT *
      FROM judged
     WHERE verdict <> 'run' OR kind <> 'tick' OR policy <> 'SKIP' OR next_fire_at IS NULL OR gate_id IS NOT NULL
),
done AS MATERIALIZED (
    SELECT * FROM other WHERE verdict NOT IN ('early', 'busy', 'wait')
),
-- What waits is put off in the table too, so that it does not stand before those that are due.
moved AS (
    UPDATE timers timer
       SET fire_at = CASE WHEN judged.verdict = 'wait' THEN timer.fire_at ELSE judged.next_fire_at END,
           due_at = CASE WHEN judged.verdict = 'wait' THEN judged.now_at + judged.wait_seconds * interval '1 second'
                         ELSE judged.next_due_at END,
           last_lane = CASE WHEN judged.verdict = 'run' THEN judged.lane_id ELSE timer.last_lane END,
           last_seq = CASE WHEN judged.verdict = 'run' THEN judged.seq ELSE timer.last_seq END
      FROM judged
     WHERE timer.partition = judged.partition AND timer.job_id = judged.job_id
       AND timer.kind = judged.kind AND timer.fire_at = judged.fire_at
       AND (judged.verdict = 'wait' OR judged.next_fire_at IS NOT NULL AND judged.verdict NOT IN ('early', 'busy'))
),
appended AS (
    INSERT INTO attempts (lane_id, seq, job_id, fire_at, due_at, spec_version, epoch, reason, attempt, is_listed)
    SELECT lane_id, seq, job_id, run_at, due_at, spec_version, epoch, reason, attempt,
           policy <> 'SKIP' OR kind <> 'tick' OR gate_id IS NOT NULL
      FROM judged
     WHERE verdict = 'run'
     ORDER BY lane_id, seq
),
-- What has a gate is not ready yet.
batches AS MATERIALIZED (
    SELECT lane_id, max(seq) AS last_seq, min(seq) AS first_seq, min(due_at) AS due_at, count(*)::integer AS attempts
      FROM judged
     WHERE verdict = 'run' AND gate_id IS NULL
     GROUP BY lane_id
),
announced AS (
    INSERT INTO ready_batches (lane_id, last_seq, first_seq, due_at, attempts, is_dispatched)
    SELECT lane_id, last_seq, first_seq, due_at, attempts,
           coalesce((SELECT is_dispatched FROM queues WHERE queues.queue_id = lane_queue(lane_id)::integer), false)
      FROM batches
),
-- The tick's timer speaks for a first attempt under SKIP without a gate; every other open run has a row. At a gate it
-- waits.
opened AS (
    INSERT INTO open_runs (job_id, fire_at, lane_id, seq, gate_id)
    SELECT job_id, run_at, lane_id, seq, gate_id
      FROM done
     WHERE verdict = 'run' AND (policy <> 'SKIP' OR kind <> 'tick' OR gate_id IS NOT NULL)
        ON CONFLICT (job_id, fire_at) DO UPDATE
       SET lane_id = excluded.lane_id, seq = excluded.seq, gate_id = excluded.gate_id, is_inside = false
),
queued AS (
    INSERT INTO timers (job_id, fire_at, due_at, tenant_id, rule_id, gate_id, queue_id, spec_version, kind, reason,
                        partition, attempt, priority)
    SELECT job_id, run_at, now_at, tenant_id, rule_id, gate_id, queue_id, spec_version, 'queued', reason, partition, 1,
           priority
      FROM done
     WHERE verdict = 'queue'
        ON CONFLICT DO NOTHING
),
-- REPLACE: whatever else is open ends as cancelled. An attempt takes the outcome if it has none yet …
replacing AS MATERIALIZED (
    SELECT * FROM done WHERE verdict = 'run' AND policy = 'REPLACE' AND kind = 'tick'
),
cancelled AS (
    INSERT INTO outcomes (lane_id, seq, finished_at, result, is_final, worker, error)
    SELECT lane_id, seq, now_at, 'cancelled', true,
           (SELECT worker FROM leases
             WHERE worker IS NOT NULL AND lane_queue(leases.lane_id) = lane_queue(open.lane_id)
               AND leases.lane_id = open.lane_id AND open.seq BETWEEN first_seq AND last_seq
             ORDER BY last_seq - first_seq LIMIT 1), 'replaced by the next tick'
      FROM (SELECT held_runs.lane_id, held_runs.seq, replacing.now_at
              FROM replacing
              JOIN held_runs ON held_runs.job_id = replacing.job_id AND held_runs.fire_at <> replacing.run_at
             UNION
            SELECT last_lane, last_seq, now_at FROM replacing WHERE is_last_open) AS open
     ORDER BY lane_id, seq
        ON CONFLICT DO NOTHING
 RETURNING lane_id, seq
),
-- A run whose outcome was written by another session at this moment keeps its row: its retry, if there is one, cannot
-- be seen from here yet.
replaced AS (
    DELETE FROM open_runs
     USING replacing
     WHERE open_runs.job_id = replacing.job_id AND open_runs.fire_at <> replacing.run_at
       AND ((open_runs.lane_id, open_runs.seq) IN (SELECT lane_id, seq FROM cancelled)
            OR EXISTS (SELECT FROM outcomes
                        WHERE outcomes.lane_id = open_runs.lane_id AND outcomes.seq = open_runs.seq))
 RETURNING open_runs.job_id, open_runs.fire_at, replacing.partition, replacing.now_at
),
-- … and a run that waits, for its retry or its turn, loses the timer, as whatever has fired for the last time does.
removed AS (
    DELETE FROM timers timer
     USING (SELECT partition, job_id, kind, fire_at, now_at, false AS is_withdrawn FROM done WHERE next_fire_at IS NULL
             UNION ALL
            SELECT partition, job_id, 'retry', fire_at, now_at, true FROM replaced
             UNION ALL
            SELECT held_timers.partition, held_timers.job_id, held_timers.kind, held_timers.fire_at, replacing.now_at, true
              FROM replacing
              JOIN held_timers ON held_timers.job_id = replacing.job_id AND held_timers.kind = 'queued') AS over
     WHERE timer.partition = over.partition AND timer.job_id = over.job_id
       AND timer.kind = over.kind AND timer.fire_at = over.fire_at
 RETURNING timer.job_id, timer.fire_at, over.now_at, timer.spec_version, timer.reason, over.is_withdrawn
),
noted AS (
    INSERT INTO withdrawals (job_id, fire_at, withdrawn_at, spec_version, reason)
    SELECT job_id, fire_at, now_at, spec_version, reason FROM removed WHERE is_withdrawn
        ON CONFLICT DO NOTHING
),
seen_gaps AS MATERIALIZED (
    SELECT done.job_id, done.run_at, done.spec_version, done.last_seq, latest.first_at, latest.row_id
      FROM done
      -- Ticks that one attempt keeps out, with nothing else in between, are one gap. Gaps that the plan itself brings
      -- are in between. A run that waited its turn may be: it waits yet, was withdrawn, or has an attempt, which is
      -- never before its fire time.
      LEFT JOIN LATERAL (
               SELECT row_id, first_at, last_at
                 FROM (SELECT ctid AS row_id, first_at, last_at, reason, blocked_by
                         FROM gaps
                        WHERE gaps.job_id = done.job_id
                        ORDER BY first_at DESC
                        LIMIT 1) AS newest
                WHERE reason = 'overlap' AND blocked_by IS NOT DISTINCT FROM done.last_seq
           ) AS latest
        ON done.first_gap IS NULL
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
-- A gap that another session has locked is not joined.
skipped AS (
    SELECT job_id, run_at, spec_version, last_seq,
           CASE WHEN row_id IN (SELECT lock_rows('gaps', ARRAY(SELECT row_id FROM seen_gaps WHERE row_id IS NOT NULL)))
                THEN first_at END AS joins
      FROM seen_gaps
),
widened AS (
    INSERT INTO gaps (job_id, first_at, last_at, ticks, blocked_by, spec_version, reason)
    SELECT job_id, coalesce(joins, run_at), run_at, 1, last_seq, spec_version, 'overlap' FROM skipped
        ON CONFLICT (job_id, first_at, reason) DO UPDATE
       SET last_at = excluded.last_at, ticks = gaps.ticks + 1
),
gapped AS (
    INSERT INTO gaps (job_id, first_at, last_at, ticks, spec_version, reason)
    -- By subscript, and the reasons as numbers: an element of an array of texts is found by going through all before
    -- it.
    SELECT judged.job_id, (:gap_first_ats::timestamptz[])[gap.number], (:gap_last_ats::timestamptz[])[gap.number],
           (:gap_ticks::bigint[])[gap.number], judged.spec_version,
           ('{missed,paused,overlap,calendar,dst}'::gap_reason[])[(:gap_reasons::smallint[])[gap.number]]
      FROM judged
     CROSS JOIN LATERAL generate_series(judged.first_gap, judged.last_gap) AS gap (number)
     WHERE judged.first_gap IS NOT NULL AND judged.verdict NOT IN ('early', 'busy', 'wait')
        ON CONFLICT DO NOTHING
),
ended AS (
    INSERT INTO finished_jobs (job_id, finished_at)
    SELECT job_id, now_at FROM done WHERE kind = 'tick' AND next_fire_at IS NULL
        ON CONFLICT DO NOTHING
)
SELECT clock.now_at, reached.runs, tally.lane_ids, tally.lane_runs, coalesce(reached.last_seq, :last_seq::bigint) AS last_seq,
       -- Of the given timers, by their places: not as planned any more, put off, and left as they were.
       CASE WHEN reached.judged < cardinality(:job_ids::bigint[])
            THEN ARRAY(SELECT generate_series(1, cardinality(:job_ids::bigint[])) EXCEPT SELECT number FROM judged)
       END AS refused,
       ARRAY(SELECT number FROM other WHERE verdict = 'wait') AS waiting,
       ARRAY(SELECT number FROM other WHERE verdict = 'early') AS early,
       ARRAY(SELECT number FROM other WHERE verdict = 'busy') AS busy,
       -- Those that moved on without an attempt, how many of them overlapped, and the partitions that are still held.
       ARRAY(SELECT number FROM done WHERE verdict <> 'run') AS passed,
       (SELECT count(*) FROM done WHERE verdict = 'skip') AS overlaps,
       CASE WHEN reached.judged < cardinality(:job_ids::bigint[]) THEN ARRAY(SELECT partition FROM fence) END AS fenced,
       -- Whatever became of a timer: something may have waited for it at its gate.
       ARRAY(SELECT DISTINCT gate_id FROM other WHERE gate_id IS NOT NULL) AS gate_ids
  FROM clock
 CROSS JOIN (SELECT count(*) AS judged, max(seq) AS last_seq, count(*) FILTER (WHERE verdict = 'run') AS runs
               FROM judged) AS reached
 CROSS JOIN (SELECT array_agg(lane_id) AS lane_ids, array_agg(attempts) AS lane_runs FROM batches) AS tally;

-- name: trace_parents
-- The trace contexts that runs were asked for with. Only asked while the process traces. Index: requested_runs_pkey.
SELECT run.job_id, run.fire_at, asked.trace_parent
  FROM unnest(:job_ids::bigint[], :fire_ats::timestamptz[]) AS run (job_id, fire_at)
 CROSS JOIN LATERAL (
           SELECT trace_parent
             FROM requested_runs
            WHERE requested_runs.job_id = run.job_id AND requested_runs.fire_at = run.fire_at
            LIMIT 1
       ) AS asked
 WHERE asked.trace_parent IS NOT NULL;

-- name: trace_authors
-- The trace contexts of the requests that wrote the versions which timers are about to fire. Only asked while the process
-- traces. Indexes: timers_pkey, job_versions_pkey.
SELECT given.job_id, version.trace_parent
  FROM unnest(:job_ids::bigint[], :kinds::text[]::timer_kind[], :fire_ats::timestamptz[])
       AS given (job_id, kind, fire_at)
 CROSS JOIN LATERAL (
           SELECT spec_version
             FROM timers
            WHERE timers.partition = (given.job_id & 255)::smallint AND timers.job_id = given.job_id
              AND timers.kind = given.kind
              -- A job has one timer for its ticks, which may stand at an earlier one.
              AND (given.kind = 'tick' OR timers.fire_at = given.fire_at)
            LIMIT 1
       ) AS timer
 CROSS JOIN LATERAL (
           SELECT trace_parent
             FROM job_versions
            WHERE job_versions.job_id = given.job_id AND job_versions.spec_version = timer.spec_version
            LIMIT 1
       ) AS version
 WHERE version.trace_parent IS NOT NULL;

-- name: as_planned
-- Which of some timers that `fire` refused are as planned, in partitions that are held as before: another session has
-- them locked, or had. Indexes: timers_pkey, partitions_pkey.
SELECT planned.number
  FROM unnest(:numbers::integer[], :job_ids::bigint[], :kinds::text[], :fire_ats::timestamptz[], :due_ats::timestamptz[],
              :rule_ids::bigint[], :epochs::integer[])
           AS planned (number, job_id, kind, fire_at, due_at, rule_id, epoch)
 CROSS JOIN LATERAL (
           SELECT due_at, rule_id
             FROM timers
            WHERE timers.partition = (planned.job_id & 255)::smallint AND timers.job_id = planned.job_id
              AND timers.kind = planned.kind::timer_kind AND timers.fire_at = planned.fire_at
            LIMIT 1
       ) AS timer
 CROSS JOIN LATERAL (
           SELECT epoch, holder FROM partitions WHERE partitions.partition = (planned.job_id & 255)::smallint LIMIT 1
       ) AS held
 WHERE timer.due_at = planned.due_at AND timer.rule_id = planned.rule_id
   AND held.holder = :node::text AND held.epoch = planned.epoch;

-- name: quarantine
-- Pauses jobs whose rule cannot be read, until a user edits them; returns how many, and those that another session has
-- locked. One that has another rule by now, or is not active, is left alone. So is one whose rule was
-- missing and is there: a rule is committed before what refers to it, so the timer came from a server that has lost it.
-- Indexes: *_pkey.
WITH broken AS MATERIALIZED (
    SELECT job_id, rule_id FROM unnest(:job_ids::bigint[], :rule_ids::bigint[]) AS b (job_id, rule_id)
),
seen_jobs AS MATERIALIZED (
    SELECT broken.job_id, broken.rule_id, job.row_id, job.status
      FROM broken
     CROSS JOIN LATERAL (
               SELECT ctid AS row_id, status FROM jobs WHERE jobs.job_id = broken.job_id LIMIT 1
           ) AS job
),
-- The job first, then its timer, as in every change of a job. As in `fire`, what was changed just now counts as locked.
held_jobs AS MATERIALIZED (
    SELECT job_id, rule_id, status
      FROM seen_jobs
     WHERE (row_id IN (SELECT lock_rows('jobs', ARRAY(SELECT row_id FROM seen_jobs), 'NO KEY UPDATE'))) IS TRUE
),
seen_timers AS MATERIALIZED (
    SELECT held_jobs.job_id, timer.table_id, timer.row_id,
           held_jobs.status = 'active' AND timer.rule_id = held_jobs.rule_id
           AND NOT (:is_missing::boolean AND EXISTS (SELECT FROM rules WHERE rules.rule_id = held_jobs.rule_id))
               AS is_broken
      FROM held_jobs
     CROSS JOIN LATERAL (
               SELECT tableoid AS table_id, ctid AS row_id, rule_id
                 FROM timers
                WHERE timers.partition = (held_jobs.job_id & 255)::smallint AND timers.job_id = held_jobs.job_id
                  AND timers.kind = 'tick'
                LIMIT 1
           ) AS timer
),
held_timers AS MATERIALIZED (
    SELECT job_id, is_broken
      FROM seen_timers
     WHERE ((table_id, row_id) IN (SELECT table_id, lock_rows(table_id, array_agg(row_id))
                                     FROM seen_timers
                                    GROUP BY table_id)) IS TRUE
),
paused AS (
    UPDATE jobs
       SET status = 'paused', paused_at = clock_at(), updated_at = clock_at(), pause_reason = :reason::text
      FROM held_timers
     WHERE jobs.job_id = held_timers.job_id AND held_timers.is_broken
 RETURNING jobs.job_id
),
stopped AS (
    UPDATE timers
       SET due_at = 'infinity'
      FROM held_timers
     WHERE timers.partition = (held_timers.job_id & 255)::smallint AND timers.job_id = held_timers.job_id
       AND timers.kind = 'tick' AND held_timers.is_broken
)
SELECT (SELECT count(*) FROM paused) AS paused,
       ARRAY(SELECT broken.job_id
               FROM broken
              WHERE broken.job_id NOT IN (SELECT job_id FROM held_timers)
                AND EXISTS (SELECT FROM timers
                             WHERE timers.partition = (broken.job_id & 255)::smallint
                               AND timers.job_id = broken.job_id AND timers.kind = 'tick')) AS locked;
