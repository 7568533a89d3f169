-- Gates: which runs with a key may be at work. Called by whoever has fired, recorded or looked, for the gates concerned.
--
-- A run with a gate is fired as any other: its attempt stands in a lane of its own kind, and its row in open_runs waits at
-- the gate. Whoever lets it in gives the attempt a free lease. What ends a run removes its row, and with it leaves the
-- gate: places are counted, never kept, so that no crash can leave one taken.

-- name: lock
-- Locks gates until the transaction ends, and says which: one that another session has is not waited for, as a session may
-- freeze with it. A statement of its own: the one after it sees what those who had the locks have let in. The locks have
-- the schema, as that of the janitor.
SELECT gate_id
  FROM unnest(:gate_ids::bigint[]) AS gate (gate_id)
 WHERE pg_try_advisory_xact_lock(
           gate_id # CASE current_schema() WHEN 'evertick' THEN 0 ELSE hashtextextended(current_schema()::text, 0) END);

-- name: let_in
-- Lets runs into locked gates, from the front of each line, as long as fewer are inside than the run's job allows by
-- its current version: the first that has to wait stops all behind it, so that different limits starve nobody. In an
-- order, one is inside at a time, and the first in line waits also for a timer that comes before it and fires by itself:
-- a manual run or a replay that is due, or a tick or a queued run of a job without an open run. One with an open run may
-- have to wait for that, so it is in no order yet.
-- A run that another session has locked, or has changed since this began, is left for a later look.
-- Indexes: open_runs_at_gate, timers_in_order, open_runs_pkey, jobs_pkey, job_versions_pkey, attempts_pkey.
WITH RECURSIVE clock AS MATERIALIZED (
    SELECT clock_at() AS now_at
),
gates AS MATERIALIZED (
    SELECT gate_id,
           (SELECT count(*) FROM open_runs WHERE open_runs.is_inside AND open_runs.gate_id = gate.gate_id) AS inside
      FROM unnest(:gate_ids::bigint[]) AS gate (gate_id)
),
line AS (
    SELECT gates.gate_id, gates.inside, 0 AS number, timestamptz '-infinity' AS fire_at, 0::bigint AS job_id,
           0::bigint AS lane_id, 0::bigint AS seq, true AS is_let_in
      FROM gates
     UNION ALL
    SELECT line.gate_id, line.inside, line.number + 1, next.fire_at, next.job_id, next.lane_id, next.seq,
           line.inside + line.number < CASE WHEN line.gate_id < 0 THEN 1 ELSE job.gate_limit END
      FROM line
     CROSS JOIN LATERAL (
               SELECT fire_at, job_id, lane_id, seq
                 FROM open_runs
                WHERE NOT open_runs.is_inside AND open_runs.gate_id = line.gate_id
                  AND (open_runs.fire_at, open_runs.job_id) > (line.fire_at, line.job_id)
                ORDER BY open_runs.fire_at, open_runs.job_id
                LIMIT 1
           ) AS next
      -- The limit of a job that has dropped its key since does not hold its runs back.
     CROSS JOIN LATERAL (
               SELECT coalesce((SELECT version.gate_limit
                                  FROM jobs
                                  JOIN job_versions version
                                    ON version.job_id = jobs.job_id AND version.spec_version = jobs.spec_version
                                 WHERE jobs.job_id = next.job_id), 2147483647) AS gate_limit
           ) AS job
     WHERE line.is_let_in AND line.number < :most::integer
),
candidates AS MATERIALIZED (
    SELECT run.row_id, line.lane_id, line.seq, attempt.spec_version, version.handler
      FROM line
     CROSS JOIN clock
     CROSS JOIN LATERAL (
               SELECT ctid AS row_id
                 FROM open_runs
                WHERE open_runs.job_id = line.job_id AND open_runs.fire_at = line.fire_at
                LIMIT 1
           ) AS run
      LEFT JOIN LATERAL (
               SELECT spec_version
                 FROM attempts
                WHERE attempts.lane_id = line.lane_id AND attempts.seq = line.seq
                LIMIT 1
           ) AS attempt ON true
      LEFT JOIN LATERAL (
               SELECT handler
                 FROM job_versions
                WHERE job_versions.job_id = line.job_id AND job_versions.spec_version = attempt.spec_version
                LIMIT 1
           ) AS version ON true
     WHERE line.number > 0 AND line.is_let_in
       AND (line.gate_id > 0
            OR (SELECT true
                  FROM timers timer
                 WHERE timer.gate_id = line.gate_id AND timer.gate_id < 0
                   AND (timer.fire_at, timer.job_id) < (line.fire_at, line.job_id)
                   AND timer.due_at < 'infinity' AND timer.kind <> 'retry'
                   AND (timer.due_at <= clock.now_at OR timer.kind = 'queued')
                   AND (timer.kind IN ('manual', 'replay')
                        OR (SELECT true FROM open_runs WHERE open_runs.job_id = timer.job_id LIMIT 1) IS NULL)
                 LIMIT 1) IS NULL)
),
chosen AS MATERIALIZED (
    SELECT row_id, lane_id, seq, spec_version, handler
      FROM candidates
     WHERE (row_id IN (SELECT lock_rows('open_runs', ARRAY(SELECT row_id FROM candidates)))) IS TRUE
),
-- By ctid, one by one: a join might read all of them.
entered AS (
    UPDATE open_runs SET is_inside = true FROM chosen WHERE open_runs.ctid = chosen.row_id
)
INSERT INTO leases (lease_id, lane_id, first_seq, last_seq, expires_at, lease_seconds, partition, handler)
SELECT :first_lease_id::bigint + row_number() OVER (), chosen.lane_id, chosen.seq, chosen.seq, clock.now_at, 0,
       lane_partition(chosen.lane_id), coalesce(chosen.handler, '')
  FROM chosen
 CROSS JOIN clock
 WHERE chosen.spec_version IS NOT NULL
    ON CONFLICT DO NOTHING
RETURNING lane_id;

-- name: waiting
-- The next gates that something waits at, of some partitions of them, in the order of their ids after one; as many are
-- looked at as there may be in the answer. Index: open_runs_at_gate.
WITH RECURSIVE gates AS (
    (SELECT gate_id, 1 AS number
       FROM open_runs
      WHERE NOT is_inside AND gate_id > :after::bigint
      ORDER BY gate_id
      LIMIT 1)
     UNION ALL
    SELECT next.gate_id, gates.number + 1
      FROM gates
     CROSS JOIN LATERAL (
               SELECT gate_id
                 FROM open_runs
                WHERE NOT open_runs.is_inside AND open_runs.gate_id > gates.gate_id
                ORDER BY open_runs.gate_id
                LIMIT 1
           ) AS next
     WHERE gates.number < :most::integer
)
SELECT gate_id, (gate_id & 255)::smallint = ANY(:partitions::smallint[]) AS is_mine FROM gates;
