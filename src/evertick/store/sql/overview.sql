-- What a tenant's jobs did and will do, minute by minute, and what needs attention. Called by the use cases for pages.

-- name: minutes
-- A tenant's attempts that were fired in a stretch, by minute and by what became of them, up to a limit per lane. Minutes
-- are counted from 1970. Indexes: queues_tenant_id_name_key, lanes_of_queue, ready_batches_pkey, attempts_pkey,
-- outcomes_pkey.
WITH own AS MATERIALIZED (
    SELECT queue_id FROM queues WHERE tenant_id = :tenant_id::bigint
),
mine AS MATERIALIZED (
    SELECT lane.lane_id
      FROM own
     CROSS JOIN LATERAL (
               SELECT lane_id
                 FROM lanes
                WHERE lanes.queue_id = own.queue_id
                  -- What was fired into a lane is at or below its head, or ready: others need not be searched.
                  AND (lanes.head >= :from_us::bigint
                       OR (SELECT true FROM ready_batches
                            WHERE ready_batches.lane_id = lanes.lane_id AND ready_batches.last_seq > lanes.head
                            LIMIT 1)
                       OR lane_is_gated(lanes.lane_id))
               OFFSET 0
           ) AS lane
),
fired AS MATERIALIZED (
    SELECT found.lane_id, found.seq, count(*) OVER (PARTITION BY found.lane_id) >= :most::integer AS is_cut
      FROM mine
     CROSS JOIN LATERAL (
               SELECT attempts.lane_id, attempts.seq
                 FROM attempts
                WHERE attempts.lane_id = mine.lane_id AND attempts.seq >= :from_us::bigint
                  AND attempts.seq < :until_us::bigint
                ORDER BY attempts.seq DESC
                LIMIT :most::integer
           ) AS found
)
SELECT fired.seq / 60000000 AS minute,
       count(*) FILTER (WHERE ended.result = 'success') AS succeeded,
       count(*) FILTER (WHERE ended.is_final AND ended.result IN ('failed', 'timed_out', 'lost')) AS failed,
       count(*) FILTER (WHERE ended.result IS NULL) AS unfinished,
       count(*) AS fired, bool_or(fired.is_cut) AS is_cut
  FROM fired
  LEFT JOIN LATERAL (
           SELECT outcomes.result, outcomes.is_final
             FROM outcomes
            WHERE outcomes.lane_id = fired.lane_id AND outcomes.seq = fired.seq
            LIMIT 1
       ) AS ended ON true
 GROUP BY fired.seq / 60000000
 ORDER BY minute;

-- name: planned
-- A tenant's timers that are due in a stretch, by rule, minute, and the minute of their fire time, which jitter sets
-- apart; up to a limit per lane. Those that wait for another run are left out. Indexes: queues_tenant_id_name_key,
-- lanes_of_queue, timers_of_tenant.
WITH mine AS MATERIALIZED (
    SELECT queue_id, tenant_id FROM queues WHERE tenant_id = :tenant_id::bigint
),
coming AS MATERIALIZED (
    SELECT first.*,
           count(*) OVER (PARTITION BY mine.queue_id, lane.partition, lane.priority) >= :most::integer AS is_cut
      FROM mine
     CROSS JOIN LATERAL (
               SELECT DISTINCT partition, priority FROM lanes WHERE lanes.queue_id = mine.queue_id OFFSET 0
           ) AS lane
     CROSS JOIN LATERAL (
               SELECT due_at, fire_at, rule_id, kind
                 FROM timers
                WHERE timers.partition = lane.partition
                  AND (timers.tenant_id, timers.priority, timers.queue_id, timers.due_at)
                      >= (mine.tenant_id, lane.priority, mine.queue_id, :from_at::timestamptz)
                  AND (timers.tenant_id, timers.priority, timers.queue_id, timers.due_at)
                      < (mine.tenant_id, lane.priority, mine.queue_id, :until_at::timestamptz)
                ORDER BY timers.tenant_id, timers.priority, timers.queue_id, timers.due_at
                LIMIT :most::integer
           ) AS first
)
SELECT microseconds(due_at) / 60000000 AS minute, microseconds(fire_at) / 60000000 AS fire_minute, rule_id,
       kind = 'tick' AS is_tick, count(*) AS timers, bool_or(is_cut) AS is_cut
  FROM coming
 WHERE kind <> 'queued'
 GROUP BY 1, 2, 3, 4
 ORDER BY timers DESC
 LIMIT :most_rows::integer;

-- name: rules
-- Some rules as texts. Index: rules_pkey.
SELECT rule_id, canonical FROM rules WHERE rule_id = ANY(:rule_ids::bigint[]);

-- name: attention
-- What needs attention, each counted up to a limit: dead letters and the jobs they are of, jobs that Evertick has paused,
-- replays under way, circuits that are not closed. Indexes: dead_letters_of_tenant, jobs_paused,
-- replays_running_of_tenant, target_hosts_pkey.
SELECT letters.letters, letters.jobs,
       (SELECT count(*)
          FROM (SELECT
                  FROM jobs
                 WHERE tenant_id = :tenant_id::bigint AND status = 'paused'
                   AND pause_reason ~ '^(runaway: |rule -?[0-9]+ |its target answered 410 )'
                 LIMIT :most::integer) AS counted) AS paused,
       (SELECT count(*) FROM replays WHERE tenant_id = :tenant_id::bigint AND status = 'running') AS replays,
       (SELECT count(*)
          FROM (SELECT
                  FROM target_hosts
                 WHERE tenant_id = :tenant_id::bigint AND state <> 'closed'
                 LIMIT :most::integer) AS counted) AS circuits,
       clock_at() AS now_at
  FROM (SELECT count(*) AS letters, count(DISTINCT newest.job_id) AS jobs
          FROM (SELECT job_id
                  FROM dead_letters
                 WHERE tenant_id = :tenant_id::bigint
                 ORDER BY died_at DESC
                 LIMIT :most::integer) AS newest) AS letters;
