-- What a measurement of age needs: jobs that are due again and again, sizes, a snapshot that stays. Called by the bench.

-- name: make_due
-- Moves the tick timers that a queue has in one partition to an instant, which has passed: each runs once more, and
-- goes back to where its schedule says. No scheduler is there meanwhile. Index: timers_due.
UPDATE timers
   SET fire_at = :fire_at::timestamptz, due_at = :fire_at::timestamptz
 WHERE timers.partition = :partition::smallint
   AND timers.kind = 'tick' AND timers.due_at < 'infinity'
   AND timers.queue_id IN (SELECT queue_id FROM queues WHERE name = :queue::text);

-- name: footprint
-- Bytes of what grows with each run, and of what must not, with indexes.
SELECT (SELECT coalesce(sum(pg_total_relation_size(inhrelid)), 0) FROM pg_inherits
         WHERE inhparent = 'attempts'::regclass)::bigint AS attempts,
       (SELECT coalesce(sum(pg_total_relation_size(inhrelid)), 0) FROM pg_inherits
         WHERE inhparent = 'outcomes'::regclass)::bigint AS outcomes,
       (SELECT coalesce(sum(pg_total_relation_size(inhrelid)), 0) FROM pg_inherits
         WHERE inhparent = 'timers'::regclass)::bigint AS timers,
       pg_total_relation_size('lanes')::bigint AS lanes,
       pg_total_relation_size('leases')::bigint AS leases;

-- name: stay
-- Takes the transaction's snapshot, and lets it stay idle for as long as it likes.
SELECT set_config('idle_in_transaction_session_timeout', '0', true);
