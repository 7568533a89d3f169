-- Figures for people: how much fires and ends, how late, how deep the queues are. Called by the use cases.

-- name: recent
-- What was fired in the last seconds, up to a limit per lane: how late, and what became of it. A tenant of null is all.
-- Indexes: lanes_of_queue, attempts_pkey, outcomes_pkey.
WITH clock AS MATERIALIZED (
    SELECT microseconds(clock_at()) AS now_us
),
fired AS MATERIALIZED (
    SELECT recent.lane_id, recent.seq, greatest(recent.seq - microseconds(recent.due_at), 0) / 1000.0::float AS lag_ms
      FROM clock
     CROSS JOIN queues queue
      JOIN lanes lane ON lane.queue_id = queue.queue_id
     CROSS JOIN LATERAL (
               SELECT attempts.lane_id, seq, due_at
                 FROM attempts
                WHERE attempts.lane_id = lane.lane_id
                  AND seq > clock.now_us - (:seconds::float * 1000000)::bigint
                ORDER BY seq DESC
                LIMIT :most::integer
           ) AS recent
     WHERE :tenant_id::bigint IS NULL OR queue.tenant_id = :tenant_id::bigint
),
ended AS MATERIALIZED (
    SELECT outcome.result
      FROM fired
      JOIN outcomes outcome ON outcome.lane_id = fired.lane_id AND outcome.seq = fired.seq
)
SELECT (SELECT count(*) FROM fired) AS fired,
       (SELECT count(*) FROM ended) AS finished,
       (SELECT count(*) FROM ended WHERE result = 'success') AS succeeded,
       (SELECT coalesce(percentile_disc(ARRAY[0.5, 0.95, 0.99, 1.0]) WITHIN GROUP (ORDER BY lag_ms), '{0,0,0,0}')
          FROM fired) AS lags_ms;

-- name: oldest_due
-- A tenant's timer that should have been fired first, looked for among the first that are due on each partition where it
-- has lanes: others live there too, and no index is the tenant's own. Indexes: lanes_of_queue, timers_due.
WITH clock AS MATERIALIZED (
    SELECT clock_at() AS now_at
),
home AS MATERIALIZED (
    SELECT DISTINCT lane.partition
      FROM queues queue
      JOIN lanes lane ON lane.queue_id = queue.queue_id
     WHERE queue.tenant_id = :tenant_id::bigint
)
SELECT earliest.due_at, clock.now_at
  FROM clock
 CROSS JOIN home
 CROSS JOIN LATERAL (
           SELECT overdue.due_at
             FROM (SELECT tenant_id, kind, due_at
                     FROM timers
                    WHERE timers.partition = home.partition AND timers.due_at < clock.now_at
                    ORDER BY timers.due_at
                    LIMIT :most::integer) AS overdue
            -- A run that waits for the one before is not late.
            WHERE overdue.tenant_id = :tenant_id::bigint AND overdue.kind <> 'queued'
            ORDER BY overdue.due_at
            LIMIT 1
       ) AS earliest
 ORDER BY earliest.due_at
 LIMIT 1;

-- name: leases
-- How many leases are out.
SELECT count(*) AS leases FROM leases WHERE worker IS NOT NULL;
