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

-- name: leases
-- How many leases are out.
SELECT count(*) AS leases FROM leases;
