-- What tenants use of their quotas. Called by the use cases.

-- name: jobs
-- How many jobs a tenant has, counted up to a limit. Index: jobs_of_tenant.
SELECT count(*) AS jobs
  FROM (SELECT FROM jobs WHERE tenant_id = :tenant_id::bigint AND status <> 'deleted' LIMIT :most::bigint) AS counted;

-- name: stored
-- How many bytes a tenant stores: what the janitor has summed up, and what has changed since.
-- Indexes: storage_sums_pkey, storage_changes_of_tenant.
SELECT greatest(sum(bytes), 0)::bigint AS bytes, greatest(sum(answer_bytes), 0)::bigint AS answer_bytes
  FROM (SELECT bytes, answer_bytes FROM storage_sums WHERE tenant_id = :tenant_id::bigint
         UNION ALL
        SELECT bytes, answer_bytes FROM storage_changes WHERE tenant_id = :tenant_id::bigint) AS every;

-- name: activity
-- How many attempts of a tenant run, and how many wait, each counted up to a limit per lane. Indexes: lanes_of_queue,
-- attempts_pkey, outcomes_pkey; leases are few and read whole. One that was put back waits.
WITH mine AS MATERIALIZED (
    SELECT lane.lane_id, lane.head
      FROM queues queue
      JOIN lanes lane ON lane.queue_id = queue.queue_id
     WHERE queue.tenant_id = :tenant_id::bigint
)
SELECT (SELECT count(*)
          FROM leases lease
          JOIN mine ON mine.lane_id = lease.lane_id
          JOIN attempts ON attempts.lane_id = lease.lane_id AND attempts.seq BETWEEN lease.first_seq AND lease.last_seq
         WHERE lease.worker IS NOT NULL
           AND NOT EXISTS (SELECT FROM outcomes
                            WHERE outcomes.lane_id = attempts.lane_id AND outcomes.seq = attempts.seq)
           AND NOT EXISTS (SELECT FROM leases own
                            WHERE own.lane_id = attempts.lane_id AND own.first_seq = attempts.seq
                              AND own.first_seq = own.last_seq AND own.lease_id <> lease.lease_id)) AS running,
       (SELECT count(*) FROM leases free JOIN mine ON mine.lane_id = free.lane_id WHERE free.worker IS NULL)
       + (SELECT coalesce(sum(waiting.attempts), 0)::bigint
          FROM mine
         CROSS JOIN LATERAL (
                   SELECT count(*) AS attempts
                     FROM (SELECT FROM attempts
                            WHERE attempts.lane_id = mine.lane_id AND attempts.seq > mine.head
                            LIMIT :most::bigint) AS first
               ) AS waiting) AS ready;
