-- Lanes and leases: how ready attempts reach their workers. Called by workers, dispatchers and the reaper. Nothing is
-- leased from a server that is to be confirmed first (`confirmed_server`).

-- name: lease
-- Takes the next range of each of some lanes that have work: of the priority whose turn it is, then high before low.
-- Indexes: lanes_of_queue, lanes_pkey, ready_batches_pkey, attempts_pkey. Lanes that other sessions lease from at this
-- moment are passed over, so that no lease waits.
-- `only`: the lanes that a wake-up named, so that not all have to be looked at; null: any.
-- It answers in a few bytes: a worker that stops in the middle of a long answer would keep the lanes locked.
WITH RECURSIVE asked AS MATERIALIZED (
    -- The caller's ids may be from before a fail-over: only the tenant's own queues count. Null: of any tenant.
    SELECT queue_id
      FROM queues
     WHERE queue_id = ANY(:queue_ids::integer[])
       AND (:tenant_id::bigint IS NULL OR tenant_id = :tenant_id::bigint)
       AND EXISTS (SELECT FROM confirmed_server)
),
-- A pinned snapshot keeps all versions of lanes. Few are soonest read with the lanes, many are passed (decision 36).
versions AS MATERIALIZED (
    SELECT pg_stat_get_dead_tuples('lanes'::regclass) > 1000 AS are_many
),
-- From lane to lane, down: the newest version of a lane has the last place, mostly, so that few others are read.
walked AS (
    SELECT queue_id, lane_id_of(queue_id + 1::bigint, 0, 0) AS lane_id, NULL::bigint AS head,
           NULL::smallint AS priority, NULL::smallint AS partition
      FROM asked
     WHERE :only::bigint[] IS NULL AND (SELECT are_many FROM versions)
     UNION ALL
    SELECT walked.queue_id, next.lane_id, next.head, next.priority, next.partition
      FROM walked
     CROSS JOIN LATERAL (
               SELECT lane_id, head, priority, partition
                 FROM lanes
                WHERE lanes.lane_id < walked.lane_id AND lanes.lane_id >= lane_id_of(walked.queue_id, 0, 0)
                ORDER BY lanes.lane_id DESC
                LIMIT 1
           ) AS next
),
seen AS (
    SELECT lane_id, head, priority, partition
      FROM lanes
     WHERE queue_id = ANY(ARRAY(SELECT queue_id FROM asked))
       AND :only::bigint[] IS NULL AND NOT (SELECT are_many FROM versions)
     UNION ALL
    SELECT lane_id, head, priority, partition FROM walked WHERE head IS NOT NULL
     UNION ALL
    SELECT lane.lane_id, lane.head, lane.priority, lane.partition
      FROM unnest(:only::bigint[]) AS named (lane_id)
     CROSS JOIN LATERAL (
               SELECT lane_id, head, queue_id, priority, partition
                 FROM lanes
                WHERE lanes.lane_id BETWEEN named.lane_id AND named.lane_id
                ORDER BY lanes.lane_id DESC
                LIMIT 1
           ) AS lane
     WHERE lane.queue_id IN (SELECT queue_id FROM asked)
),
ready AS (
    SELECT seen.lane_id, batch.first_seq
      FROM seen
     CROSS JOIN LATERAL (
               SELECT first_seq
                 FROM ready_batches
                WHERE ready_batches.lane_id = seen.lane_id AND ready_batches.last_seq > seen.head
                ORDER BY last_seq
                LIMIT 1
           ) AS batch
     -- In rotation, so that a flooded lane cannot starve the others.
     ORDER BY seen.priority <> :first_priority::integer, seen.priority, (seen.partition - :rotation::integer) & 255
),
picked AS MATERIALIZED (
    SELECT lane.lane_id, lane.place, greatest(lane.head + 1, ready.first_seq) AS from_seq
      FROM ready
     CROSS JOIN LATERAL (
               -- Not by the place: one that changed since this statement began has another.
               SELECT lane_id, ctid AS place, head
                 FROM lanes
                WHERE lanes.lane_id BETWEEN ready.lane_id AND ready.lane_id
                ORDER BY lanes.lane_id DESC
                LIMIT 1
                  FOR UPDATE SKIP LOCKED
           ) AS lane
     LIMIT :lanes::integer
),
-- In a function: here the server must choose among no days, as a lane may change before it is locked (decision 35).
ranges AS MATERIALIZED (
    SELECT lane_id, place, from_seq, first_seq, last_seq
      FROM ranges_of(ARRAY(SELECT lane_id FROM picked), ARRAY(SELECT place FROM picked),
                     ARRAY(SELECT from_seq FROM picked), ARRAY(SELECT :most_per_lane::integer FROM picked))
),
-- By their places: by key it would pass all versions of a lane that a pinned snapshot keeps.
advanced AS (
    UPDATE lanes lane
       SET head = ranges.last_seq
      FROM ranges
     WHERE lane.ctid = ranges.place AND ranges.last_seq IS NOT NULL
       AND (lane.lane_id = ranges.lane_id) IS TRUE  -- so, it goes by place
 RETURNING lane.lane_id
),
-- A lane that was changed before it was locked has a place that this statement does not see yet.
advanced_too AS (
    UPDATE lanes lane
       SET head = ranges.last_seq
      FROM ranges
     WHERE lane.lane_id = ANY(ARRAY[ranges.lane_id]) AND ranges.last_seq IS NOT NULL  -- as in `extend`
       AND (ranges.lane_id IN (SELECT lane_id FROM advanced)) IS NOT TRUE
),
-- By ctid, one by one: a join might read all of them.
past AS MATERIALIZED (
    SELECT batch.ctid AS row_id
      FROM ranges
     CROSS JOIN LATERAL (
               SELECT ctid
                 FROM ready_batches
                WHERE ready_batches.lane_id = ranges.lane_id AND ready_batches.last_seq >= ranges.from_seq
                  -- One without attempts, which there should never be, goes and stops nobody.
                  AND (ready_batches.last_seq <= ranges.last_seq OR ranges.last_seq IS NULL)
               OFFSET 0
           ) AS batch
),
taken AS (
    DELETE FROM ready_batches USING past WHERE ready_batches.ctid = past.row_id
)
INSERT INTO leases (lease_id, lane_id, first_seq, last_seq, expires_at, lease_seconds, partition, worker)
SELECT :first_lease_id::bigint + row_number() OVER (), lane_id, first_seq, last_seq,
       clock_at() + :lease_seconds::float * interval '1 second', :lease_seconds::float, lane_partition(lane_id),
       :worker::text
  FROM ranges
 WHERE last_seq IS NOT NULL
RETURNING lease_id, lane_id, first_seq, last_seq;

-- name: dispatched_queues
-- Queues that dispatchers serve and that have something to lease, in the order of their ids after one of them: waiting in
-- a lane, or put back and ready. With them what delivering for their tenants needs, so that no further statement comes
-- before the lease. It goes from queue to queue, so one queue's many attempts hide no other's, and takes no locks.
-- Indexes: ready_batches_dispatched, leases_dispatched, queues_pkey, tenants_pkey, webhook_secrets_pkey.
WITH RECURSIVE waiting AS (
    (SELECT lane_queue(lane_id) AS queue_id
       FROM ready_batches
      WHERE is_dispatched AND lane_id >= lane_id_of(:after::bigint + 1, 0, 0)
      ORDER BY lane_id
      LIMIT 1)
     UNION ALL
    SELECT next.queue_id
      FROM waiting
     CROSS JOIN LATERAL (
               SELECT lane_queue(lane_id) AS queue_id
                 FROM ready_batches
                WHERE is_dispatched AND lane_id >= lane_id_of(waiting.queue_id + 1, 0, 0)
                ORDER BY lane_id
                LIMIT 1
           ) AS next
),
put_back AS (
    (SELECT lane_queue(lane_id) AS queue_id, expires_at
       FROM leases
      WHERE worker IS NULL AND handler = '' AND lane_queue(lane_id) > :after::bigint
      ORDER BY lane_queue(lane_id), expires_at
      LIMIT 1)
     UNION ALL
    SELECT next.queue_id, next.expires_at
      FROM put_back
     CROSS JOIN LATERAL (
               SELECT lane_queue(lane_id) AS queue_id, expires_at
                 FROM leases
                WHERE worker IS NULL AND handler = '' AND lane_queue(lane_id) > put_back.queue_id
                ORDER BY lane_queue(lane_id), expires_at
                LIMIT 1
           ) AS next
),
found AS MATERIALIZED (
    (SELECT queue_id FROM waiting LIMIT :most::integer)
     UNION
    (SELECT queue_id FROM put_back WHERE expires_at <= clock_at() LIMIT :most::integer)
)
SELECT queue.queue_id, queue.tenant_id, queue.name, tenant.weight, tenant.http_timeout_max_seconds,
       least(queue.max_running, tenant.running_quota) < 2147483647 AS is_capped, queue.rate_limit, queue.rate_burst,
       secret.current, secret.previous, secret.rotated_at
  FROM (SELECT queue_id FROM found ORDER BY queue_id LIMIT :most::integer) AS first
 CROSS JOIN LATERAL (
           SELECT queue_id, tenant_id, name, max_running, rate_limit, rate_burst
             FROM queues
            WHERE queues.queue_id = first.queue_id::integer
            LIMIT 1
       ) AS queue
 CROSS JOIN LATERAL (
           SELECT weight, http_timeout_max_seconds, running_quota
             FROM tenants
            WHERE tenants.tenant_id = queue.tenant_id
            LIMIT 1
       ) AS tenant
  LEFT JOIN LATERAL (
           SELECT current, previous, rotated_at
             FROM webhook_secrets
            WHERE webhook_secrets.tenant_id = queue.tenant_id
            LIMIT 1
       ) AS secret ON true
 ORDER BY queue.queue_id;

-- name: count_ready
-- How many attempts queues have to lease, counted up to a number for each: waiting in a lane, or put back and ready, of
-- these handlers; null: any. It takes no locks. Indexes: queues_pkey, lanes_of_queue, ready_batches_pkey, attempts_pkey,
-- leases_free.
WITH clock AS MATERIALIZED (
    SELECT clock_at() AS now_at
)
SELECT asked.queue_id, least(asked.most, waiting.attempts + put_back.attempts)::integer AS attempts
  FROM clock
 CROSS JOIN unnest(:queue_ids::integer[], :most::integer[]) AS asked (queue_id, most)
 CROSS JOIN LATERAL (
           SELECT queue_id
             FROM queues
            WHERE queues.queue_id = asked.queue_id
              AND (:tenant_id::bigint IS NULL OR queues.tenant_id = :tenant_id::bigint)
            LIMIT 1
       ) AS queue
 CROSS JOIN LATERAL (
           SELECT count(*) AS attempts
             FROM (SELECT 1
                     FROM lanes lane
                    CROSS JOIN LATERAL (
                              SELECT first_seq
                                FROM ready_batches
                               WHERE ready_batches.lane_id = lane.lane_id AND ready_batches.last_seq > lane.head
                               ORDER BY last_seq
                               LIMIT 1
                          ) AS batch
                    CROSS JOIN LATERAL (
                              SELECT 1
                                FROM attempts
                               WHERE attempts.lane_id = lane.lane_id
                                 AND attempts.seq >= greatest(lane.head + 1, batch.first_seq)
                               LIMIT asked.most
                          ) AS attempt
                    WHERE lane.queue_id = queue.queue_id
                    LIMIT asked.most) AS found
       ) AS waiting
 CROSS JOIN LATERAL (
           SELECT count(*) AS attempts
             FROM (SELECT 1
                     FROM (SELECT handler FROM unnest(:handlers::text[]) AS handler
                            UNION ALL
                           SELECT DISTINCT handler
                             FROM leases
                            WHERE :handlers::text[] IS NULL AND worker IS NULL
                              AND lane_queue(lane_id) = queue.queue_id::bigint) AS served
                    CROSS JOIN LATERAL (
                              SELECT 1
                                FROM leases lease
                               WHERE lease.worker IS NULL AND lane_queue(lease.lane_id) = queue.queue_id::bigint
                                 AND lease.handler = served.handler AND lease.expires_at <= clock.now_at
                               LIMIT asked.most
                          ) AS free
                    LIMIT asked.most) AS found
       ) AS put_back
 WHERE waiting.attempts + put_back.attempts > 0;

-- name: lock_caps
-- Of some queues those that may be leased from, with what caps leave. Who leases from a queue with a cap, or of a tenant
-- with one, locks that cap until its transaction ends; where another session has it the queue is left out, so that nobody
-- waits. To be followed by `running` in the same transaction: a statement of its own sees what others have leased before
-- they let go of the lock. With `is_locking` false it only reads, for an estimate.
-- Indexes: queues_pkey, tenants_pkey, ready_batches_pkey, leases_free.
WITH given AS MATERIALIZED (
    SELECT queue.queue_id, queue.tenant_id, queue.max_running, tenant.running_quota
      FROM unnest(:queue_ids::integer[]) AS asked (queue_id)
     CROSS JOIN LATERAL (
               SELECT queue_id, tenant_id, max_running FROM queues WHERE queues.queue_id = asked.queue_id LIMIT 1
           ) AS queue
     CROSS JOIN LATERAL (
               SELECT running_quota FROM tenants WHERE tenants.tenant_id = queue.tenant_id LIMIT 1
           ) AS tenant
     WHERE :tenant_id::bigint IS NULL OR queue.tenant_id = :tenant_id::bigint
)
SELECT queue_id, tenant_id, max_running, running_quota,
       -- So that a queue without work is given nothing of what the tenant's cap leaves.
       (SELECT true FROM ready_batches
         WHERE ready_batches.lane_id >= lane_id_of(given.queue_id, 0, 0)
           AND ready_batches.lane_id < lane_id_of(given.queue_id + 1::bigint, 0, 0)
         LIMIT 1) IS NOT NULL
       OR (SELECT true FROM leases
            WHERE leases.worker IS NULL AND lane_queue(leases.lane_id) = given.queue_id::bigint LIMIT 1) IS NOT NULL
           AS has_work
  FROM given
 WHERE NOT :is_locking::boolean
    -- With the schema, as the lock of the janitor.
    OR (running_quota = 2147483647
        OR pg_try_advisory_xact_lock(1163280385, hashint8(tenant_id) # CASE current_schema() WHEN 'evertick' THEN 0 ELSE hashtext(current_schema()::text) END))
       AND (max_running = 2147483647
            OR pg_try_advisory_xact_lock(1163280386, queue_id # CASE current_schema() WHEN 'evertick' THEN 0 ELSE hashtext(current_schema()::text) END))
 ORDER BY queue_id;

-- name: running
-- How many attempts of each queue of some tenants have a worker and have not ended. Indexes: queues_tenant_id_name_key,
-- leases_held, attempts_pkey, outcomes_pkey, leases_of_attempt.
SELECT queue.queue_id, queue.tenant_id, count(*) AS running
  FROM unnest(:tenant_ids::bigint[]) AS asked (tenant_id)
 CROSS JOIN LATERAL (
           SELECT queue_id, tenant_id FROM queues WHERE queues.tenant_id = asked.tenant_id OFFSET 0
       ) AS queue
 CROSS JOIN LATERAL (
           SELECT lease_id, lane_id, first_seq, last_seq
             FROM leases
            WHERE leases.worker IS NOT NULL AND lane_queue(leases.lane_id) = queue.queue_id::bigint
           OFFSET 0
       ) AS lease
 CROSS JOIN LATERAL (
           SELECT seq
             FROM attempts
            WHERE attempts.lane_id = lease.lane_id AND attempts.seq BETWEEN lease.first_seq AND lease.last_seq
           OFFSET 0
       ) AS attempt
 WHERE (SELECT true FROM outcomes
         WHERE outcomes.lane_id = lease.lane_id AND outcomes.seq = attempt.seq LIMIT 1) IS NULL
   -- BETWEEN, since `=` makes the planner forget the other equation, which the index asks for.
   AND (SELECT true FROM leases own
         WHERE own.lane_id = lease.lane_id AND own.first_seq BETWEEN attempt.seq AND attempt.seq
           AND own.first_seq = own.last_seq AND own.lease_id <> lease.lease_id
         LIMIT 1) IS NULL
 GROUP BY queue.queue_id, queue.tenant_id;

-- name: lease_by_queue
-- As `lease`, for a worker that serves many tenants: each queue has room for so many attempts, and gives no more. The
-- first lane of every queue comes before the second of any, so that no tenant's lanes or priorities keep others
-- waiting. Indexes: lanes_of_queue, lanes_pkey, ready_batches_pkey, attempts_pkey.
WITH asked AS MATERIALIZED (
    SELECT queue_id, room
      FROM unnest(:queue_ids::integer[], :rooms::integer[]) AS asked (queue_id, room)
     WHERE EXISTS (SELECT FROM confirmed_server)
),
versions AS MATERIALIZED (
    SELECT pg_stat_get_dead_tuples('lanes'::regclass) > 1000 AS are_many
),
picked AS MATERIALIZED (
    SELECT lane.lane_id, lane.place, lane.from_seq, lane.turn, asked.queue_id, asked.room,
           row_number() OVER (PARTITION BY asked.queue_id ORDER BY lane.is_later, lane.priority, lane.turn)
               AS rank
      FROM asked
     CROSS JOIN LATERAL (
               SELECT own.lane_id, own.place, greatest(own.head + 1, ready.first_seq) AS from_seq, ready.priority,
                      ready.is_later, ready.turn
                 FROM (WITH RECURSIVE walked AS (
                           (SELECT lane_id, head, priority, partition
                              FROM lanes
                             WHERE lanes.lane_id < lane_id_of(asked.queue_id + 1::bigint, 0, 0)
                               AND lanes.lane_id >= lane_id_of(asked.queue_id, 0, 0)
                               AND :only::bigint[] IS NULL AND (SELECT are_many FROM versions)
                             ORDER BY lanes.lane_id DESC
                             LIMIT 1)
                            UNION ALL
                           SELECT next.lane_id, next.head, next.priority, next.partition
                             FROM walked
                            CROSS JOIN LATERAL (
                                      SELECT lane_id, head, priority, partition
                                        FROM lanes
                                       WHERE lanes.lane_id < walked.lane_id
                                         AND lanes.lane_id >= lane_id_of(asked.queue_id, 0, 0)
                                       ORDER BY lanes.lane_id DESC
                                       LIMIT 1
                                  ) AS next
                       ),
                       seen AS (
                           SELECT lane_id, head, priority, partition
                             FROM lanes
                            WHERE lanes.queue_id = asked.queue_id
                              AND :only::bigint[] IS NULL AND NOT (SELECT are_many FROM versions)
                            UNION ALL
                           SELECT lane_id, head, priority, partition FROM walked
                            UNION ALL
                           SELECT lane.lane_id, lane.head, lane.priority, lane.partition
                             FROM unnest(:only::bigint[]) AS named (lane_id)
                            CROSS JOIN LATERAL (
                                      SELECT lane_id, head, priority, partition
                                        FROM lanes
                                       WHERE lanes.lane_id BETWEEN named.lane_id AND named.lane_id
                                       ORDER BY lanes.lane_id DESC
                                       LIMIT 1
                                  ) AS lane
                            WHERE lane_queue(named.lane_id) = asked.queue_id::bigint
                       )
                       SELECT seen.lane_id, seen.priority, batch.first_seq,
                              seen.priority <> :first_priority::integer AS is_later,
                              (seen.partition - :rotation::integer) & 255 AS turn
                         FROM seen
                        CROSS JOIN LATERAL (
                                  SELECT first_seq
                                    FROM ready_batches
                                   WHERE ready_batches.lane_id = seen.lane_id AND ready_batches.last_seq > seen.head
                                   ORDER BY last_seq
                                   LIMIT 1
                              ) AS batch
                        ORDER BY is_later, seen.priority, turn) AS ready
                CROSS JOIN LATERAL (
                          SELECT lane_id, ctid AS place, head
                            FROM lanes
                           WHERE lanes.lane_id BETWEEN ready.lane_id AND ready.lane_id
                           ORDER BY lanes.lane_id DESC
                           LIMIT 1
                             FOR UPDATE SKIP LOCKED
                      ) AS own
                LIMIT least(:lanes::integer, asked.room)
           ) AS lane
),
chosen AS MATERIALIZED (
    SELECT lane_id, place, from_seq, room, count(*) OVER () AS lanes, count(*) OVER (PARTITION BY queue_id) AS siblings,
           row_number() OVER (PARTITION BY queue_id ORDER BY rank) AS number
      FROM (SELECT lane_id, place, from_seq, room, queue_id, rank
              FROM picked
             ORDER BY rank, turn
             LIMIT :most_lanes::integer) AS first_of_each
),
begun AS MATERIALIZED (
    SELECT lane_id, place, from_seq,
           -- Every lane that was chosen gives one at least, and those of a queue no more than its room.
           least(:most_per_lane::integer, (:most::integer + lanes - 1) / lanes,
                 room / siblings + (number <= room % siblings)::integer)::integer AS most
      FROM chosen
),
-- In a function: see `lease`.
ranges AS MATERIALIZED (
    SELECT lane_id, place, from_seq, first_seq, last_seq
      FROM ranges_of(ARRAY(SELECT lane_id FROM begun), ARRAY(SELECT place FROM begun),
                     ARRAY(SELECT from_seq FROM begun), ARRAY(SELECT most FROM begun))
),
-- By their places, as in `lease`.
advanced AS (
    UPDATE lanes lane
       SET head = ranges.last_seq
      FROM ranges
     WHERE lane.ctid = ranges.place AND ranges.last_seq IS NOT NULL
       AND (lane.lane_id = ranges.lane_id) IS TRUE  -- so, it goes by place
 RETURNING lane.lane_id
),
-- A lane that was changed before it was locked has a place that this statement does not see yet.
advanced_too AS (
    UPDATE lanes lane
       SET head = ranges.last_seq
      FROM ranges
     WHERE lane.lane_id = ANY(ARRAY[ranges.lane_id]) AND ranges.last_seq IS NOT NULL  -- as in `extend`
       AND (ranges.lane_id IN (SELECT lane_id FROM advanced)) IS NOT TRUE
),
-- By ctid, one by one: a join might read all of them.
past AS MATERIALIZED (
    SELECT batch.ctid AS row_id
      FROM ranges
     CROSS JOIN LATERAL (
               SELECT ctid
                 FROM ready_batches
                WHERE ready_batches.lane_id = ranges.lane_id AND ready_batches.last_seq >= ranges.from_seq
                  -- One without attempts, which there should never be, goes and stops nobody.
                  AND (ready_batches.last_seq <= ranges.last_seq OR ranges.last_seq IS NULL)
               OFFSET 0
           ) AS batch
),
taken AS (
    DELETE FROM ready_batches USING past WHERE ready_batches.ctid = past.row_id
)
INSERT INTO leases (lease_id, lane_id, first_seq, last_seq, expires_at, lease_seconds, partition, worker)
SELECT :first_lease_id::bigint + row_number() OVER (), lane_id, first_seq, last_seq,
       clock_at() + :lease_seconds::float * interval '1 second', :lease_seconds::float, lane_partition(lane_id),
       :worker::text
  FROM ranges
 WHERE last_seq IS NOT NULL
RETURNING lease_id, lane_id, first_seq, last_seq;

-- name: lease_free
-- Leases attempts that were put back and are ready, to a worker that has their handlers; null: any. Index: leases_free.
-- `rooms`: how many each queue may give, each queue's first before the second of any; null: the oldest of all.
-- A lease that changes hands gets a new id: reports of the former worker name an id that does not exist.
WITH clock AS MATERIALIZED (
    SELECT clock_at() AS now_at
),
mine AS MATERIALIZED (
    SELECT queue_id::bigint AS queue_id
      FROM queues
     WHERE queue_id = ANY(:queue_ids::integer[])
       AND (:tenant_id::bigint IS NULL OR tenant_id = :tenant_id::bigint)
       AND EXISTS (SELECT FROM confirmed_server)
),
served AS MATERIALIZED (
    SELECT mine.queue_id, handler FROM mine CROSS JOIN unnest(:handlers::text[]) AS handler
     UNION ALL
    SELECT mine.queue_id, waiting.handler
      FROM mine
     CROSS JOIN LATERAL (
               SELECT DISTINCT handler FROM leases WHERE worker IS NULL AND lane_queue(lane_id) = mine.queue_id
           ) AS waiting
     WHERE :handlers::text[] IS NULL
),
asked AS MATERIALIZED (
    SELECT queue_id::bigint AS queue_id, room
      FROM unnest(:queue_ids::integer[], :rooms::integer[]) AS asked (queue_id, room)
     WHERE room IS NOT NULL
),
found AS MATERIALIZED (
    SELECT free.lease_id, free.expires_at, asked.room,
           row_number() OVER (PARTITION BY asked.queue_id ORDER BY free.expires_at) AS rank
      FROM clock
     CROSS JOIN served
      LEFT JOIN asked ON asked.queue_id = served.queue_id
     CROSS JOIN LATERAL (
               SELECT lease.lease_id, lease.expires_at
                 FROM leases lease
                WHERE lease.worker IS NULL AND lane_queue(lease.lane_id) = served.queue_id
                  AND lease.handler = served.handler AND lease.expires_at <= clock.now_at
                ORDER BY lease.expires_at
                LIMIT coalesce(asked.room, :most::integer)
                  FOR UPDATE SKIP LOCKED
           ) AS free
),
ready AS MATERIALIZED (
    SELECT lease_id
      FROM found
     WHERE room IS NULL OR rank <= room
     ORDER BY rank, expires_at
     LIMIT :most::integer
)
UPDATE leases lease
   SET lease_id = :first_lease_id::bigint + numbered.number, worker = :worker::text,
       expires_at = clock.now_at + :lease_seconds::float * interval '1 second', lease_seconds = :lease_seconds::float,
       leased_at = clock.now_at, started = NULL, running_seqs = NULL
  FROM (SELECT lease_id, row_number() OVER () AS number FROM ready) AS numbered, clock
 WHERE lease.lease_id = ANY(ARRAY[numbered.lease_id])  -- as in `extend`
RETURNING lease.lease_id, lease.lane_id, lease.first_seq, lease.last_seq, lease.deferrals;

-- name: put_back
-- Makes attempts that were never started free again, to be leased after a delay by a worker with their handler. Neither
-- outcome nor timer is left behind. Only what is the holder's own is put back: the answer names the others.
-- Indexes: leases_of_worker, leases_of_attempt, outcomes_pkey.
WITH given AS MATERIALIZED (
    SELECT lane_id, seq, handler, delay_seconds, deferrals,
           (SELECT true FROM outcomes
             WHERE outcomes.lane_id = given.lane_id AND outcomes.seq = given.seq LIMIT 1) IS NOT NULL AS is_over
      FROM unnest(:lane_ids::bigint[], :seqs::bigint[], :handlers::text[], :delays::float[], :deferrals::smallint[])
           AS given (lane_id, seq, handler, delay_seconds, deferrals)
),
-- Locked in one order, against the heartbeat, and so that a reaper passes over them until this is done.
held AS MATERIALIZED (
    SELECT lease_id, lane_id, first_seq, last_seq, partition
      FROM leases
     WHERE worker = :holder::text AND lane_id = ANY(:lane_ids::bigint[])
       AND (SELECT count(*) FROM given) >= 0  -- always; after the outcomes were looked up (decision 35)
     ORDER BY lease_id
       FOR UPDATE
),
theirs AS MATERIALIZED (
    SELECT DISTINCT ON (given.lane_id, given.seq)
           given.lane_id, given.seq, given.handler, given.delay_seconds, given.deferrals, held.lease_id, held.partition,
           held.first_seq = held.last_seq AS is_own
      FROM given
      JOIN held ON held.lane_id = given.lane_id AND given.seq BETWEEN held.first_seq AND held.last_seq
     WHERE NOT given.is_over
     ORDER BY given.lane_id, given.seq, held.last_seq - held.first_seq
),
freed AS (
    UPDATE leases lease
       SET worker = NULL, handler = theirs.handler, deferrals = theirs.deferrals, started = NULL, running_seqs = NULL,
           expires_at = clock_at() + theirs.delay_seconds * interval '1 second', lease_seconds = theirs.delay_seconds
      FROM theirs
     WHERE theirs.is_own AND lease.lease_id = ANY(ARRAY[theirs.lease_id])  -- as in `extend`
 RETURNING lease.lane_id, lease.first_seq AS seq
),
parted AS (
    INSERT INTO leases (lease_id, lane_id, first_seq, last_seq, expires_at, lease_seconds, partition, deferrals, handler)
    SELECT :first_lease_id::bigint + row_number() OVER (), lane_id, seq, seq,
           clock_at() + delay_seconds * interval '1 second', delay_seconds, partition, deferrals, handler
      FROM theirs
     WHERE NOT is_own
        ON CONFLICT DO NOTHING
 RETURNING lane_id, first_seq AS seq
)
SELECT lane_id, seq FROM given
EXCEPT ALL
(SELECT lane_id, seq FROM freed UNION ALL SELECT lane_id, seq FROM parted);

-- name: mark_started
-- Notes that attempts are about to be started, and tells which are still the worker's, and open. Indexes: leases_pkey,
-- leases_of_attempt, outcomes_pkey.
WITH given AS MATERIALIZED (
    SELECT given.lease_id, given.seq,
           (SELECT true FROM outcomes
             WHERE outcomes.lane_id = lease.lane_id AND outcomes.seq = given.seq LIMIT 1) IS NOT NULL AS is_over
      FROM unnest(:lease_ids::bigint[], :seqs::bigint[]) AS given (lease_id, seq)
     CROSS JOIN LATERAL (
               SELECT lane_id FROM leases WHERE leases.lease_id = given.lease_id LIMIT 1
           ) AS lease
),
-- In one order, against the heartbeat.
held AS MATERIALIZED (
    SELECT lease_id
      FROM leases
     WHERE lease_id = ANY(:lease_ids::bigint[]) AND (worker = :worker::text) IS TRUE  -- so, it goes by lease_id
       AND (SELECT count(*) FROM given) >= 0  -- always; after the outcomes were looked up (decision 35)
     ORDER BY lease_id
       FOR UPDATE
),
marked AS (
    UPDATE leases lease
       SET started = lease.started || starting.seqs
      FROM held
      JOIN (SELECT lease_id, array_agg(seq) AS seqs FROM given GROUP BY lease_id) AS starting USING (lease_id)
     WHERE lease.lease_id = ANY(ARRAY[held.lease_id])  -- as in `extend`
 RETURNING lease.lease_id, lease.lane_id, lease.first_seq, lease.last_seq
)
SELECT marked.lane_id, given.seq
  FROM marked
  JOIN given ON given.lease_id = marked.lease_id AND given.seq BETWEEN marked.first_seq AND marked.last_seq
 WHERE NOT given.is_over
   -- One by one, by the LIMIT: a join might read the whole table.
   AND (SELECT true FROM leases own
         -- BETWEEN, since `=` makes the planner forget the other equation, which the index asks for.
         WHERE own.lane_id = marked.lane_id AND own.first_seq BETWEEN given.seq AND given.seq
           AND own.first_seq = own.last_seq AND own.lease_id <> marked.lease_id
         LIMIT 1) IS NULL;

-- name: leased
-- The attempts in ranges that were just leased, with all that running them needs. Indexes: attempts_pkey,
-- job_versions_pkey, outcomes_pkey, requested_runs_pkey, queues_pkey.
-- One that was cancelled while it waited has its outcome already: no worker runs it, but its lease covers it.
SELECT attempt.lane_id, attempt.seq, range.lease_id, attempt.job_id, attempt.fire_at, attempt.due_at,
       attempt.spec_version, attempt.reason::text AS reason, attempt.attempt,
       version.name, version.handler, version.timezone, version.key_template, version.timeout_seconds,
       version.retry::text AS retry,
       -- Of a run that was asked for by hand only: the others should not pay for looking.
       CASE
           WHEN attempt.reason IN ('manual', 'replay') AND (
                   SELECT asked.has_payload
                     FROM requested_runs asked
                    WHERE asked.job_id = attempt.job_id AND asked.fire_at = attempt.fire_at)
               THEN (SELECT asked.payload
                       FROM requested_runs asked
                      WHERE asked.job_id = attempt.job_id AND asked.fire_at = attempt.fire_at)
           ELSE version.payload
       END::text AS payload,
       CASE WHEN version.handler IS NULL THEN version.spec::text END AS spec,
       CASE
           WHEN attempt.reason IN ('manual', 'replay')
               THEN (SELECT asked.replays_at
                       FROM requested_runs asked
                      WHERE asked.job_id = attempt.job_id AND asked.fire_at = attempt.fire_at)
       END AS replays_at,
       CASE
           WHEN ended.any THEN EXISTS (
               SELECT FROM outcomes WHERE outcomes.lane_id = attempt.lane_id AND outcomes.seq = attempt.seq)
           ELSE false
       END AS is_over,
       attempt.is_listed, queue.tenant_id, range.deferrals,
       CASE
           WHEN attempt.reason IN ('manual', 'replay')
               THEN (SELECT asked.trace_parent
                       FROM requested_runs asked
                      WHERE asked.job_id = attempt.job_id AND asked.fire_at = attempt.fire_at)
       END AS trace_parent
  FROM unnest(:lease_ids::bigint[], :lane_ids::bigint[], :first_seqs::bigint[], :last_seqs::bigint[],
              :deferrals::smallint[])
       AS range (lease_id, lane_id, first_seq, last_seq, deferrals)
 CROSS JOIN LATERAL (
           SELECT tenant_id FROM queues WHERE queues.queue_id = lane_queue(range.lane_id)::integer LIMIT 1
       ) AS queue
 -- Asked once for a range, which hardly ever has any.
 CROSS JOIN LATERAL (
           SELECT EXISTS (
                      SELECT FROM outcomes
                       WHERE outcomes.lane_id = range.lane_id
                         AND outcomes.seq BETWEEN range.first_seq AND range.last_seq) AS any
           OFFSET 0  -- else it would be asked for each attempt
       ) AS ended
 -- One by one, by the LIMITs: a join might read whole tables.
 CROSS JOIN LATERAL (
           SELECT *
             FROM attempts
            WHERE attempts.lane_id = range.lane_id AND attempts.seq BETWEEN range.first_seq AND range.last_seq
            ORDER BY seq
            LIMIT :most_per_lane::integer
       ) AS attempt
 CROSS JOIN LATERAL (
           SELECT *
             FROM job_versions
            WHERE job_versions.job_id = attempt.job_id AND job_versions.spec_version = attempt.spec_version
            LIMIT 1
       ) AS version;

-- name: extend
-- A heartbeat: extends a worker's leases; null: all of them. Indexes: leases_pkey, leases_of_worker. One that ran out is
-- extended too: while the row is the worker's, no other worker has its attempts. A consumer's is extended up to its end.
-- One that it does not name was granted in an answer that got lost: no worker runs its attempts, and it has to run out.
-- It also notes which of their attempts run since when.
WITH held AS MATERIALIZED (
    SELECT lease_id
      FROM leases
     WHERE lease_id = ANY(coalesce(:lease_ids::bigint[],
                                   ARRAY(SELECT lease_id FROM leases WHERE worker = :worker::text)))
       AND (worker = :worker::text) IS TRUE  -- so, it goes by lease_id
     ORDER BY lease_id  -- as every statement that locks several: no deadlocks
       FOR UPDATE
),
running AS MATERIALIZED (
    SELECT lease_id, array_agg(seq) AS seqs, array_agg(started_at) AS started_ats
      FROM unnest(:running_leases::bigint[], :running_seqs::bigint[], :started_ats::timestamptz[])
           AS running (lease_id, seq, started_at)
     GROUP BY lease_id
)
UPDATE leases lease
   SET expires_at = least(clock_at() + :lease_seconds::float * interval '1 second', lease.ends_at),
       lease_seconds = :lease_seconds::float, running_seqs = running.seqs, running_since = running.started_ats
  FROM held
  LEFT JOIN running ON running.lease_id = held.lease_id
 -- Not `=`: while leases are few the planner might read all of them, with those that vacuum could not remove.
 WHERE lease.lease_id = ANY(ARRAY[held.lease_id])
RETURNING lease.lease_id;

-- name: note_progress
-- How far the attempts are that run in a worker's leases: of each lease that has any of these, all that are told replace
-- what was told before. Indexes: leases_of_worker, leases_pkey.
WITH told AS MATERIALIZED (
    SELECT lease.lease_id, jsonb_object_agg(given.seq::text, given.text) AS progress
      FROM unnest(:lane_ids::bigint[], :seqs::bigint[], :texts::text[]) AS given (lane_id, seq, text)
     CROSS JOIN LATERAL (
               SELECT lease_id
                 FROM leases
                WHERE leases.worker = :worker::text AND leases.lane_id = given.lane_id
                  AND given.seq BETWEEN leases.first_seq AND leases.last_seq
                ORDER BY leases.first_seq DESC, leases.last_seq  -- the narrowest, past what a pinned snapshot keeps
                LIMIT 1
           ) AS lease
     GROUP BY lease.lease_id
),
locked AS MATERIALIZED (
    SELECT lease_id
      FROM leases
     WHERE lease_id = ANY(ARRAY(SELECT lease_id FROM told)) AND (worker = :worker::text) IS TRUE  -- so, it goes by lease_id
     ORDER BY lease_id  -- as every statement that locks several: no deadlocks
       FOR UPDATE
)
UPDATE leases lease
   SET progress = told.progress
  FROM locked
  JOIN told ON told.lease_id = locked.lease_id
 WHERE lease.lease_id = ANY(ARRAY[locked.lease_id]);  -- as in `extend`

-- name: ended_elsewhere
-- Attempts among those given that have an outcome which their worker did not record: cancelled, or lost to it.
-- Index: outcomes_pkey.
SELECT outcome.lane_id, outcome.seq
  FROM unnest(:lane_ids::bigint[], :seqs::bigint[]) AS mine (lane_id, seq)
  JOIN outcomes outcome ON outcome.lane_id = mine.lane_id AND outcome.seq = mine.seq;

-- name: clock
-- The database's time.
SELECT clock_at() AS now_at;
