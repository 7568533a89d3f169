-- Runs: reading their history, asking for further ones, cancelling them; and dead letters, the runs whose attempts are
-- used up, until they are replayed or dismissed. Called by the use cases.

-- name: of_job
-- A job's runs, newest first: those with attempts, each by its latest one, those that wait for their first, and those
-- that were cancelled before it. Indexes: attempts_of_run, timers_pkey, withdrawals_pkey, outcomes_pkey, lanes_pkey.
WITH attempted AS MATERIALIZED (
    SELECT DISTINCT ON (fire_at) fire_at, lane_id, seq, attempt, reason, spec_version
      FROM attempts
     -- An attempt is never before its fire time: the bound spares the days before.
     WHERE job_id = :job_id::bigint AND seq >= :from_seq::bigint
       AND fire_at >= :from_at::timestamptz AND fire_at < :before_at::timestamptz
     ORDER BY fire_at DESC, seq DESC
     LIMIT :most::integer
),
waiting AS MATERIALIZED (
    SELECT fire_at, reason, spec_version, kind = 'queued' AS is_queued
      FROM timers
     WHERE partition = (:job_id::bigint & 255)::smallint AND job_id = :job_id::bigint AND kind <> 'tick'
       AND fire_at >= :from_at::timestamptz AND fire_at < :before_at::timestamptz
),
withdrawn AS MATERIALIZED (
    SELECT fire_at, reason, spec_version
      FROM withdrawals
     WHERE job_id = :job_id::bigint AND fire_at >= :from_at::timestamptz AND fire_at < :before_at::timestamptz
     ORDER BY fire_at DESC
     LIMIT :most::integer
),
runs AS (
    SELECT fire_at FROM attempted UNION SELECT fire_at FROM waiting UNION SELECT fire_at FROM withdrawn
     ORDER BY fire_at DESC
     LIMIT :most::integer
)
SELECT :job_id::bigint AS job_id, fire_at,
       coalesce(attempted.reason, waiting.reason, withdrawn.reason)::text AS reason,
       coalesce(attempted.spec_version, waiting.spec_version, withdrawn.spec_version) AS spec_version,
       waiting.reason IS NOT NULL AS has_timer, coalesce(waiting.is_queued, false) AS is_queued,
       CASE WHEN lane_is_gated(attempted.lane_id) AND outcome.seq IS NULL THEN
           (SELECT gate_id FROM open_runs
             WHERE open_runs.job_id = :job_id::bigint AND open_runs.fire_at = attempted.fire_at AND NOT is_inside)
       END AS waits_at_gate,
       withdrawn.reason IS NOT NULL AS is_withdrawn,
       attempted.lane_id, attempted.seq, attempted.attempt,
       leased.is_leased,
       outcome.result::text AS result, coalesce(outcome.started_at, lease.started_at) AS started_at,
       outcome.finished_at, coalesce(outcome.worker, lease.worker) AS worker, outcome.code, outcome.error,
       version.name, version.handler, queue.name AS queue, lease.progress
  FROM runs
  LEFT JOIN attempted USING (fire_at)
  LEFT JOIN waiting USING (fire_at)
  LEFT JOIN withdrawn USING (fire_at)
  LEFT JOIN LATERAL lease_of_attempt(attempted.lane_id, attempted.seq) AS leased ON true
  LEFT JOIN outcomes outcome ON outcome.lane_id = attempted.lane_id AND outcome.seq = attempted.seq
  LEFT JOIN LATERAL (
           SELECT leases.worker, leases.progress ->> attempted.seq::text AS progress,
                  running_since(running_seqs, running_since, leases.worker, leased_at, attempted.seq) AS started_at
             FROM leases
            WHERE outcome.seq IS NULL AND leases.lane_id = attempted.lane_id
              AND attempted.seq BETWEEN leases.first_seq AND leases.last_seq
            ORDER BY leases.last_seq - leases.first_seq
            LIMIT 1
       ) AS lease ON true
  LEFT JOIN job_versions version
    ON version.job_id = :job_id::bigint
   AND version.spec_version = coalesce(attempted.spec_version, waiting.spec_version, withdrawn.spec_version)
  LEFT JOIN queues queue ON queue.queue_id = lane_queue(attempted.lane_id)::integer
 ORDER BY fire_at DESC;

-- name: of_tenant
-- A tenant's attempts, newest first: the place of each, its run by the latest attempt, and whether a walk meets the run
-- elsewhere, at a later attempt. Those that came after the walk began are no places of it: the run keeps the one it
-- has. A few are read of each lane; `is_cut`: more may follow the last at once. Indexes: lanes_of_queue, attempts_pkey,
-- attempts_of_run, timers_pkey, withdrawals_pkey, outcomes_pkey, lanes_pkey.
WITH placed AS MATERIALIZED (
    SELECT first.*
      FROM queues queue
      JOIN lanes lane ON lane.queue_id = queue.queue_id
     CROSS JOIN LATERAL (
               SELECT attempts.lane_id, seq, job_id, fire_at
                 FROM attempts
                WHERE attempts.lane_id = lane.lane_id AND seq >= :from_seq::bigint
                  AND (seq < :before_seq::bigint
                       OR (seq = :before_seq::bigint AND attempts.lane_id < :before_lane::bigint))
                  AND seq <= :before_seq::bigint
                  AND fire_at >= :from_at::timestamptz AND fire_at < :before_at::timestamptz
                ORDER BY seq DESC
                LIMIT :per_lane::integer
           ) AS first
     WHERE queue.tenant_id = :tenant_id::bigint
),
-- Before the last of a lane that may have more, others may be missing.
cut AS MATERIALIZED (
    SELECT max(last.seq) AS seq
      FROM (SELECT min(seq) AS seq FROM placed GROUP BY lane_id HAVING count(*) >= :per_lane::integer) AS last
),
newest AS MATERIALIZED (
    SELECT placed.*
      FROM placed
     WHERE placed.seq >= coalesce((SELECT seq FROM cut), 0)
     ORDER BY placed.seq DESC, placed.lane_id DESC
     LIMIT :most::integer
)
SELECT newest.job_id, newest.fire_at, latest.reason::text AS reason, latest.spec_version,
       -- One by one: as EXISTS, a plan that is made on empty tables reads them whole when they are full.
       (SELECT true FROM timers timer
         WHERE timer.partition = (newest.job_id & 255)::smallint AND timer.job_id = newest.job_id
           AND timer.kind <> 'tick' AND timer.fire_at = newest.fire_at
         LIMIT 1) IS NOT NULL AS has_timer, false AS is_queued,
       CASE WHEN lane_is_gated(latest.lane_id) AND outcome.result IS NULL THEN
           (SELECT gate_id FROM open_runs
             WHERE open_runs.job_id = newest.job_id AND open_runs.fire_at = newest.fire_at AND NOT is_inside
             LIMIT 1)
       END AS waits_at_gate,
       (SELECT true FROM withdrawals
         WHERE withdrawals.job_id = newest.job_id AND withdrawals.fire_at = newest.fire_at
         LIMIT 1) IS NOT NULL AS is_withdrawn,
       latest.lane_id, latest.seq, latest.attempt,
       leased.is_leased,
       outcome.result::text AS result, coalesce(outcome.started_at, lease.started_at) AS started_at,
       outcome.finished_at, coalesce(outcome.worker, lease.worker) AS worker, outcome.code, outcome.error,
       version.name, version.handler,
       (SELECT queues.name FROM queues WHERE queues.queue_id = lane_queue(latest.lane_id)::integer LIMIT 1) AS queue,
       lease.progress,
       newest.lane_id AS place_lane, newest.seq AS place_seq,
       latest.seq > newest.seq
           AND (:walk_seq::bigint IS NULL
                OR (SELECT true FROM attempts later
                     WHERE later.job_id = newest.job_id AND later.fire_at = newest.fire_at
                       AND later.seq > newest.seq AND later.seq <= :walk_seq::bigint
                     LIMIT 1) IS NOT NULL) AS is_elsewhere,
       (SELECT seq FROM cut) IS NOT NULL AS is_cut
  FROM newest
 CROSS JOIN LATERAL (
           SELECT lane_id, seq, attempt, reason, spec_version
             FROM attempts
            WHERE attempts.job_id = newest.job_id AND attempts.fire_at = newest.fire_at AND attempts.seq >= newest.seq
            ORDER BY attempts.seq DESC
            LIMIT 1
       ) AS latest
  LEFT JOIN LATERAL (
           SELECT result, started_at, finished_at, worker, code, error
             FROM outcomes
            WHERE outcomes.lane_id = latest.lane_id AND outcomes.seq = latest.seq
            LIMIT 1
       ) AS outcome ON true
 CROSS JOIN LATERAL lease_of_attempt(latest.lane_id, latest.seq) AS leased
  LEFT JOIN LATERAL (
           SELECT leases.worker, leases.progress ->> latest.seq::text AS progress,
                  running_since(running_seqs, running_since, leases.worker, leased_at, latest.seq) AS started_at
             FROM leases
            WHERE outcome.result IS NULL AND leases.lane_id = latest.lane_id
              AND latest.seq BETWEEN leases.first_seq AND leases.last_seq
            ORDER BY leases.last_seq - leases.first_seq
            LIMIT 1
       ) AS lease ON true
  LEFT JOIN LATERAL (
           SELECT name, handler
             FROM job_versions
            WHERE job_versions.job_id = newest.job_id AND job_versions.spec_version = latest.spec_version
            LIMIT 1
       ) AS version ON true
 ORDER BY newest.seq DESC, newest.lane_id DESC;

-- name: attempts
-- One run, attempt by attempt; one row without an attempt for a run that waits for its first or was withdrawn.
-- Indexes: attempts_of_run, timers_pkey, withdrawals_pkey, outcomes_pkey, lanes_pkey.
SELECT :job_id::bigint AS job_id, :fire_at::timestamptz AS fire_at,
       coalesce(attempt.reason, timer.reason, withdrawal.reason)::text AS reason,
       coalesce(attempt.spec_version, timer.spec_version, withdrawal.spec_version) AS spec_version,
       timer.job_id IS NOT NULL AS has_timer, coalesce(timer.kind = 'queued', false) AS is_queued,
       CASE WHEN lane_is_gated(attempt.lane_id) AND outcome.seq IS NULL THEN
           (SELECT gate_id FROM open_runs
             WHERE open_runs.job_id = attempt.job_id AND open_runs.fire_at = attempt.fire_at AND NOT is_inside)
       END AS waits_at_gate,
       withdrawal.job_id IS NOT NULL AS is_withdrawn,
       attempt.lane_id, attempt.seq, attempt.attempt,
       CASE WHEN lane_is_gated(attempt.lane_id) THEN lease.worker IS NOT NULL
            ELSE coalesce(lane.head >= attempt.seq, false) AND NOT coalesce(lease.is_free, false)
       END AS is_leased,
       outcome.result::text AS result, coalesce(outcome.started_at, lease.started_at) AS started_at,
       outcome.finished_at, coalesce(outcome.worker, lease.worker) AS worker, outcome.code, outcome.error,
       version.name, version.handler, queue.name AS queue, lease.progress, attempt.due_at,
       excerpt_of(outcome.excerpt, outcome.output) AS excerpt, outcome.output,
       coalesce(outcome.started_at - outcome.held_ms * interval '1 millisecond', lease.leased_at) AS leased_at
  FROM (VALUES (true)) AS always
  LEFT JOIN attempts attempt
    ON attempt.job_id = :job_id::bigint AND attempt.fire_at = :fire_at::timestamptz AND attempt.seq >= :from_seq::bigint
  LEFT JOIN timers timer
    ON timer.partition = (:job_id::bigint & 255)::smallint AND timer.job_id = :job_id::bigint
   AND timer.kind <> 'tick' AND timer.fire_at = :fire_at::timestamptz
  LEFT JOIN withdrawals withdrawal
    ON withdrawal.job_id = :job_id::bigint AND withdrawal.fire_at = :fire_at::timestamptz
  LEFT JOIN lanes lane ON lane.lane_id = attempt.lane_id
  LEFT JOIN outcomes outcome ON outcome.lane_id = attempt.lane_id AND outcome.seq = attempt.seq
  LEFT JOIN LATERAL (
           SELECT leases.worker, leases.worker IS NULL AS is_free, leases.progress ->> attempt.seq::text AS progress,
                  CASE WHEN leases.worker IS NOT NULL THEN leases.leased_at END AS leased_at,
                  running_since(running_seqs, running_since, leases.worker, leased_at, attempt.seq) AS started_at
             FROM leases
            WHERE outcome.seq IS NULL AND leases.lane_id = attempt.lane_id
              AND attempt.seq BETWEEN leases.first_seq AND leases.last_seq
            ORDER BY leases.last_seq - leases.first_seq
            LIMIT 1
       ) AS lease ON true
  LEFT JOIN job_versions version
    ON version.job_id = :job_id::bigint
   AND version.spec_version = coalesce(attempt.spec_version, timer.spec_version, withdrawal.spec_version)
  LEFT JOIN queues queue ON queue.queue_id = lane_queue(attempt.lane_id)::integer
 WHERE coalesce(attempt.reason, timer.reason, withdrawal.reason) IS NOT NULL
 ORDER BY attempt.seq;

-- name: gaps
-- A job's gaps, newest first; one that reaches into the stretch belongs to it. Of an overlap, also the fire time of the
-- run that was open. Indexes: gaps_pkey, attempts_of_run.
SELECT job_id, first_at, last_at, ticks, spec_version, reason::text AS reason,
       CASE WHEN blocked_by IS NOT NULL THEN
           (SELECT attempts.fire_at FROM attempts
             WHERE attempts.job_id = gaps.job_id AND attempts.seq = gaps.blocked_by
             ORDER BY attempts.fire_at DESC  -- it is one of the latest before the gap
             LIMIT 1)
       END AS behind_at
  FROM gaps
 WHERE job_id = :job_id::bigint AND last_at >= :from_at::timestamptz AND first_at < :before_at::timestamptz
 ORDER BY first_at DESC, reason
 LIMIT :most::integer;

-- name: given
-- What a run was given: its own payload, or its version's; and the gate of its repetition: its own while the job has the
-- key that it had, else the job's, if that has one without a payload. Indexes: jobs_pkey, job_versions_pkey,
-- requested_runs_pkey.
SELECT CASE WHEN asked.has_payload THEN asked.payload ELSE version.payload END::text AS payload,
       coalesce(CASE WHEN (version.spec ->> 'concurrency_key', version.spec ->> 'ordering_key')
                           IS NOT DISTINCT FROM (current.spec ->> 'concurrency_key', current.spec ->> 'ordering_key')
                     THEN coalesce(asked.gate_id, version.gate_id) END,
                current.gate_id, asked.gate_id, version.gate_id) AS gate_id
  FROM job_versions version
  JOIN jobs job ON job.job_id = version.job_id
  JOIN job_versions current ON current.job_id = job.job_id AND current.spec_version = job.spec_version
  LEFT JOIN requested_runs asked ON asked.job_id = version.job_id AND asked.fire_at = :fire_at::timestamptz
 WHERE version.job_id = :job_id::bigint AND version.spec_version = :spec_version::integer;

-- name: request
-- A run of a locked job by hand, due now, at the first instant from now that no run of the job stands at.
-- Indexes: *_pkey, attempts_of_run, queues_tenant_id_name_key.
WITH clock AS MATERIALIZED (
    SELECT clock_at() AS now_at
),
free AS MATERIALIZED (
    SELECT candidate.at AS fire_at
      FROM clock
     CROSS JOIN generate_series(0, :tries::integer) AS later (microseconds)
     CROSS JOIN LATERAL (SELECT clock.now_at + later.microseconds * interval '1 microsecond' AS at) AS candidate
     WHERE NOT EXISTS (SELECT FROM requested_runs asked
                        WHERE asked.job_id = :job_id::bigint AND asked.fire_at = candidate.at)
       AND NOT EXISTS (SELECT FROM timers timer
                        WHERE timer.partition = (:job_id::bigint & 255)::smallint AND timer.job_id = :job_id::bigint
                          AND timer.fire_at = candidate.at)
       AND NOT EXISTS (SELECT FROM attempts attempt
                        WHERE attempt.job_id = :job_id::bigint AND attempt.fire_at = candidate.at
                          AND attempt.seq >= microseconds(clock.now_at))
       AND NOT EXISTS (SELECT FROM gaps gap
                        WHERE gap.job_id = :job_id::bigint AND gap.first_at = candidate.at)
     ORDER BY later.microseconds
     LIMIT 1
),
noted AS (
    INSERT INTO requested_runs (job_id, fire_at, requested_at, replays_at, gate_id, has_payload, payload, trace_parent)
    SELECT :job_id::bigint, free.fire_at, clock.now_at,
           -- What repeats a repetition has the identity of the first run.
           coalesce((SELECT asked.replays_at FROM requested_runs asked
                      WHERE asked.job_id = :job_id::bigint AND asked.fire_at = :replays_at::timestamptz),
                    :replays_at::timestamptz),
           :gate_id::bigint, :has_payload::boolean, :payload::text::json, :trace_parent::text
      FROM free
     CROSS JOIN clock
),
counted AS (
    INSERT INTO storage_changes (tenant_id, bytes)
    SELECT job.tenant_id, requested_bytes(:payload::text) FROM free JOIN jobs job ON job.job_id = :job_id::bigint
)
INSERT INTO timers (job_id, fire_at, due_at, tenant_id, rule_id, gate_id, queue_id, spec_version, kind, reason,
                    partition, priority)
SELECT job.job_id, free.fire_at, clock.now_at, job.tenant_id, version.rule_id,
       -- A replay has none if the job has none any more.
       CASE WHEN version.gate_limit IS NOT NULL THEN coalesce(:gate_id::bigint, version.gate_id) END, queue.queue_id,
       job.spec_version,
       CASE WHEN :is_queued::boolean THEN 'queued' ELSE :kind::text END::timer_kind, :kind::text::run_reason,
       (job.job_id & 255)::smallint,
       CASE version.spec ->> 'priority' WHEN 'high' THEN 0 WHEN 'low' THEN 2 ELSE 1 END
  FROM jobs job
  JOIN job_versions version ON version.job_id = job.job_id AND version.spec_version = job.spec_version
  JOIN queues queue ON queue.tenant_id = job.tenant_id AND queue.name = job.queue
 CROSS JOIN free
 CROSS JOIN clock
 WHERE job.job_id = :job_id::bigint
RETURNING fire_at;

-- name: going_on
-- Those of some runs that are not over: a timer waits for them, or their latest attempt is open. Asked again and again by
-- whoever waits for their ends. Indexes: timers_pkey, attempts_of_run, outcomes_pkey.
SELECT given.job_id, given.fire_at
  FROM unnest(:job_ids::bigint[], :fire_ats::timestamptz[], :from_seqs::bigint[]) AS given (job_id, fire_at, from_seq)
 WHERE (SELECT true
          FROM timers
         WHERE timers.partition = (given.job_id & 255)::smallint AND timers.job_id = given.job_id
           AND timers.fire_at = given.fire_at
         LIMIT 1)
    OR (SELECT (SELECT true
                  FROM outcomes
                 WHERE outcomes.lane_id = latest.lane_id AND outcomes.seq = latest.seq
                 LIMIT 1) IS NULL
          FROM (SELECT lane_id, seq
                  FROM attempts
                 WHERE attempts.job_id = given.job_id AND attempts.fire_at = given.fire_at
                   AND attempts.seq >= given.from_seq
                 ORDER BY attempts.seq DESC
                 LIMIT 1) AS latest);

-- name: unfinished
-- Runs of a job that are open or wait, the oldest first: those with a row, those with a timer, and the one that the
-- tick's timer speaks for. The first attempt of a one-off has neither. Indexes: open_runs_pkey, timers_pkey,
-- attempts_pkey, outcomes_pkey, attempts_of_run.
SELECT fire_at, bool_or(is_queued) AS is_queued
  FROM (SELECT fire_at, false AS is_queued FROM open_runs WHERE job_id = :job_id::bigint
         UNION ALL
        SELECT fire_at, kind = 'queued' FROM timers
         WHERE partition = (:job_id::bigint & 255)::smallint AND job_id = :job_id::bigint AND kind <> 'tick'
         UNION ALL
        SELECT latest.fire_at, false
          FROM (SELECT lane_id, seq, fire_at FROM attempts
                 WHERE job_id = :job_id::bigint ORDER BY fire_at DESC LIMIT 1) AS latest
         WHERE NOT EXISTS (SELECT FROM outcomes WHERE outcomes.lane_id = latest.lane_id AND outcomes.seq = latest.seq)
         UNION ALL
        SELECT attempts.fire_at, false
          FROM timers tick
          JOIN attempts ON attempts.lane_id = tick.last_lane AND attempts.seq = tick.last_seq
         WHERE tick.partition = (:job_id::bigint & 255)::smallint AND tick.job_id = :job_id::bigint
           AND tick.kind = 'tick'
           AND NOT EXISTS (SELECT FROM outcomes
                            WHERE outcomes.lane_id = tick.last_lane AND outcomes.seq = tick.last_seq)) AS unfinished
 GROUP BY fire_at
 ORDER BY fire_at
 LIMIT :most::integer;

-- name: lock_job
-- The first lock of a cancellation: an edit of the job, which may give it a timer, waits. Index: jobs_pkey.
SELECT job_id FROM jobs WHERE job_id = :job_id::bigint FOR NO KEY UPDATE;

-- name: lock_timers
-- The second: the tick's timer and those that the run waits for. Firing passes over them, so that it neither waits for
-- the outcome of an attempt that has no row in open_runs, nor gives the run another attempt. Index: timers_pkey.
SELECT kind
  FROM timers
 WHERE partition = (:job_id::bigint & 255)::smallint AND job_id = :job_id::bigint
   AND (kind = 'tick' OR fire_at = :fire_at::timestamptz)
 ORDER BY kind, fire_at
   FOR UPDATE;

-- name: cancel_attempt
-- Ends an open attempt as cancelled, unless it has its outcome already. Its run's row in open_runs, if it has one, is
-- locked before: that guards the outcome. Indexes: outcomes_pkey, open_runs_pkey.
WITH run AS MATERIALIZED (
    SELECT fire_at
      FROM open_runs
     WHERE job_id = :job_id::bigint AND fire_at = :fire_at::timestamptz
       FOR UPDATE
),
cancelled AS (
    INSERT INTO outcomes (lane_id, seq, started_at, finished_at, result, is_final, worker, error)
    SELECT :lane_id::bigint, :seq::bigint, :started_at::timestamptz, clock_at(), 'cancelled', true, :worker::text,
           :error::text
     WHERE (SELECT count(*) FROM run) >= 0  -- after the lock
        ON CONFLICT DO NOTHING
 RETURNING seq
),
closed AS (
    DELETE FROM open_runs
     USING cancelled
     WHERE open_runs.job_id = :job_id::bigint AND open_runs.fire_at = :fire_at::timestamptz
)
SELECT EXISTS (SELECT FROM cancelled);

-- name: withdraw
-- Cancels a run that waits for its timer, unless that was fired meanwhile. Indexes: timers_pkey, open_runs_pkey.
WITH dropped AS (
    DELETE FROM timers
     WHERE partition = (:job_id::bigint & 255)::smallint AND job_id = :job_id::bigint
       AND kind <> 'tick' AND fire_at = :fire_at::timestamptz
 RETURNING job_id, fire_at, spec_version, reason
),
closed AS (
    DELETE FROM open_runs USING dropped
     WHERE open_runs.job_id = dropped.job_id AND open_runs.fire_at = dropped.fire_at
),
withdrawn AS (
    INSERT INTO withdrawals (job_id, fire_at, withdrawn_at, spec_version, reason)
    SELECT job_id, fire_at, clock_at(), spec_version, reason FROM dropped
        ON CONFLICT DO NOTHING
)
SELECT EXISTS (SELECT FROM dropped);

-- name: dead_letters_page
-- A tenant's dead letters or a job's, newest first, with the last attempt's error; and which of them are wanted. The
-- number of letters that it looks at is limited, not the number that it finds. Indexes: dead_letters_of_tenant,
-- dead_letters_of_job, jobs_pkey, outcomes_pkey.
WITH letter AS MATERIALIZED (
    -- Two searches, of which one is empty: one plan cannot serve both from an index.
    (SELECT *
       FROM dead_letters
      WHERE :job_id::bigint IS NULL AND tenant_id = :tenant_id::bigint
        AND died_at >= :from_at::timestamptz AND died_at <= :before_at::timestamptz
        AND (died_at, job_id, fire_at)
            < (:before_at::timestamptz, :before_job_id::bigint, :before_fire_at::timestamptz)
      ORDER BY died_at DESC, job_id DESC, fire_at DESC
      LIMIT :most::integer)
     UNION ALL
    (SELECT *
       FROM dead_letters
      WHERE job_id = :job_id::bigint AND tenant_id = :tenant_id::bigint
        AND died_at >= :from_at::timestamptz AND died_at <= :before_at::timestamptz
        AND (died_at, job_id, fire_at)
            < (:before_at::timestamptz, :before_job_id::bigint, :before_fire_at::timestamptz)
      ORDER BY died_at DESC, fire_at DESC
      LIMIT :most::integer)
)
SELECT letter.job_id, letter.fire_at, job.name, letter.died_at, letter.attempt, letter.reason, letter.spec_version,
       outcome.code, outcome.error,
       (:queue::text IS NULL OR job.queue = :queue::text)
           AND (:label::text IS NULL OR job.labels @> jsonb_build_object(
                    split_part(:label::text, ':', 1), substr(:label::text, strpos(:label::text, ':') + 1)))
           AND (:error::text IS NULL OR coalesce(strpos(lower(outcome.error), lower(:error::text)) > 0, false))
           AS is_wanted
  FROM letter
 CROSS JOIN LATERAL (SELECT name, queue, labels FROM jobs WHERE jobs.job_id = letter.job_id LIMIT 1) AS job
  LEFT JOIN LATERAL (
           SELECT code, error FROM outcomes
            WHERE outcomes.lane_id = letter.lane_id AND outcomes.seq = letter.seq LIMIT 1
       ) AS outcome ON true
 ORDER BY letter.died_at DESC, letter.job_id DESC, letter.fire_at DESC;

-- name: letter_groups
-- The newest dead letters of a tenant by job and the last line of their error: the largest groups first. Indexes:
-- dead_letters_of_tenant, jobs_pkey, outcomes_pkey.
WITH letter AS MATERIALIZED (
    SELECT job_id, fire_at, died_at, lane_id, seq
      FROM dead_letters
     WHERE tenant_id = :tenant_id::bigint
     ORDER BY died_at DESC
     LIMIT :looked_at::integer
),
told AS MATERIALIZED (
    SELECT letter.job_id, letter.fire_at, letter.died_at,
           coalesce(left(substring(rtrim(outcome.error, E' \n') FROM '[^\n]*$'), 200), '') AS error
      FROM letter
      LEFT JOIN LATERAL (
               SELECT error FROM outcomes
                WHERE outcomes.lane_id = letter.lane_id AND outcomes.seq = letter.seq LIMIT 1
           ) AS outcome ON true
),
grouped AS MATERIALIZED (
    SELECT job_id, error, count(*) AS letters, min(died_at) AS first_died_at, max(died_at) AS last_died_at
      FROM told
     GROUP BY job_id, error
     ORDER BY count(*) DESC, max(died_at) DESC, job_id, error
     LIMIT :most::integer
)
SELECT grouped.job_id, job.name, grouped.error, grouped.letters, grouped.first_died_at, grouped.last_died_at
  FROM grouped
 CROSS JOIN LATERAL (SELECT name FROM jobs WHERE jobs.job_id = grouped.job_id LIMIT 1) AS job
 ORDER BY grouped.letters DESC, grouped.last_died_at DESC, grouped.job_id, grouped.error;

-- name: take_dead_letter
-- Removes a dead letter and tells which version its run had. Index: dead_letters_pkey.
DELETE FROM dead_letters
 WHERE job_id = :job_id::bigint AND fire_at = :fire_at::timestamptz AND tenant_id = :tenant_id::bigint
RETURNING spec_version;

-- name: replay_dead_letters
-- Makes runs of some dead letters of locked jobs, one after the other at a rate, and removes the letters.
-- Each has an instant of its own, by its number and the shift; should a run of its job stand there already, the letter
-- stays, for another try with a larger shift.
-- Indexes: *_pkey, attempts_of_run, queues_tenant_id_name_key.
WITH clock AS MATERIALIZED (
    SELECT clock_at() AS now_at
),
wanted AS MATERIALIZED (
    SELECT given.job_id, given.fire_at, clock.now_at,
           clock.now_at + (given.number + :shift::integer) * interval '1 microsecond' AS new_at,
           :start_at::timestamptz + given.number * :seconds_apart::float * interval '1 second' AS due_at
      FROM unnest(:job_ids::bigint[], :fire_ats::timestamptz[], :numbers::integer[]) AS given (job_id, fire_at, number)
     CROSS JOIN clock
),
free AS MATERIALIZED (
    SELECT wanted.*
      FROM wanted
     WHERE NOT EXISTS (SELECT FROM requested_runs asked
                        WHERE asked.job_id = wanted.job_id AND asked.fire_at = wanted.new_at)
       AND NOT EXISTS (SELECT FROM timers timer
                        WHERE timer.partition = (wanted.job_id & 255)::smallint AND timer.job_id = wanted.job_id
                          AND timer.fire_at = wanted.new_at)
       AND NOT EXISTS (SELECT FROM attempts attempt
                        WHERE attempt.job_id = wanted.job_id AND attempt.fire_at = wanted.new_at
                          AND attempt.seq >= microseconds(wanted.now_at))
       AND NOT EXISTS (SELECT FROM gaps gap
                        WHERE gap.job_id = wanted.job_id AND gap.first_at = wanted.new_at)
),
taken AS (
    DELETE FROM dead_letters letter
     USING free
     WHERE letter.job_id = free.job_id AND letter.fire_at = free.fire_at AND letter.tenant_id = :tenant_id::bigint
 RETURNING letter.job_id, letter.fire_at, letter.spec_version, free.now_at, free.new_at,
           greatest(free.due_at, free.new_at) AS due_at
),
noted AS (
    INSERT INTO requested_runs (job_id, fire_at, requested_at, replays_at, gate_id, has_payload, payload)
    SELECT taken.job_id, taken.new_at, taken.now_at, coalesce(asked.replays_at, taken.fire_at),
           -- As `given` has it.
           coalesce(CASE WHEN (version.spec ->> 'concurrency_key', version.spec ->> 'ordering_key')
                           IS NOT DISTINCT FROM (current.spec ->> 'concurrency_key', current.spec ->> 'ordering_key')
                     THEN coalesce(asked.gate_id, version.gate_id) END,
                    current.gate_id, asked.gate_id, version.gate_id), true,
           CASE WHEN asked.has_payload THEN asked.payload ELSE version.payload END
      FROM taken
      JOIN jobs job ON job.job_id = taken.job_id
      JOIN job_versions current ON current.job_id = job.job_id AND current.spec_version = job.spec_version
      LEFT JOIN job_versions version
        ON version.job_id = taken.job_id AND version.spec_version = taken.spec_version
      LEFT JOIN requested_runs asked ON asked.job_id = taken.job_id AND asked.fire_at = taken.fire_at
 RETURNING job_id, fire_at, gate_id, requested_bytes(payload::text) AS bytes
),
counted AS (
    INSERT INTO storage_changes (tenant_id, bytes)
    SELECT :tenant_id::bigint, sum(bytes) FROM noted HAVING count(*) > 0
)
INSERT INTO timers (job_id, fire_at, due_at, tenant_id, rule_id, gate_id, queue_id, spec_version, kind, reason,
                    partition, priority)
SELECT job.job_id, taken.new_at, taken.due_at, job.tenant_id, version.rule_id,
       CASE WHEN version.gate_limit IS NOT NULL THEN coalesce(noted.gate_id, version.gate_id) END, queue.queue_id,
       job.spec_version, 'replay', 'replay', (job.job_id & 255)::smallint,
       CASE version.spec ->> 'priority' WHEN 'high' THEN 0 WHEN 'low' THEN 2 ELSE 1 END
  FROM taken
  JOIN noted ON noted.job_id = taken.job_id AND noted.fire_at = taken.new_at
  JOIN jobs job ON job.job_id = taken.job_id
  JOIN job_versions version ON version.job_id = job.job_id AND version.spec_version = job.spec_version
  JOIN queues queue ON queue.tenant_id = job.tenant_id AND queue.name = job.queue
RETURNING job_id, fire_at, due_at;
