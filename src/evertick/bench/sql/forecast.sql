-- Fills tables for the measurement of forecasts: rules and timers alone, which is what a forecast is counted from.
-- Called by the bench.

-- name: add_intervals
-- Rules of one interval that differ in their phase, each as the given text with another anchor. The first is due half an
-- interval after an instant, so that few are due soon.
INSERT INTO rules (digest, canonical)
SELECT decode(md5(number::text), 'hex'),
       replace(:canonical::text, '"anchor_us":0',
               '"anchor_us":' || (:from_us::bigint + :step_us::bigint / 2 + number * :apart_us::bigint) % :step_us::bigint)
  FROM generate_series(1, :count::integer) AS number
    ON CONFLICT DO NOTHING;

-- name: add_timers
-- Timers of jobs with these numbers, each of one of the rules by a hash, so that each partition has all of them. They are due at their rule's next tick, or within
-- its jitter after it.
INSERT INTO timers (job_id, fire_at, due_at, tenant_id, rule_id, queue_id, spec_version, kind, partition, priority)
SELECT number << 8 | (number & 255), rule.fire_at,
       rule.fire_at + floor(random() * rule.jitter_us) * interval '1 microsecond',
       :tenant_id::bigint, rule.rule_id, 1, 1, 'tick', (number & 255)::smallint, 1
  FROM generate_series(:first::bigint, :last::bigint) AS number
  JOIN unnest(:rule_ids::bigint[], :fire_ats::timestamptz[], :jitters_us::bigint[])
           WITH ORDINALITY AS rule (rule_id, fire_at, jitter_us, place)
    ON rule.place = 1 + (hashint8(number)::bigint & 2147483647) % cardinality(:rule_ids::bigint[]);

-- name: add_interval_timers
-- The same for the rules of `add_intervals`, whose next ticks follow from their anchors.
INSERT INTO timers (job_id, fire_at, due_at, tenant_id, rule_id, queue_id, spec_version, kind, partition, priority)
SELECT number << 8 | (number & 255), tick.at, tick.at, :tenant_id::bigint,
       (('x' || left(md5((1 + number % :count::bigint)::text), 16))::bit(64) >> 1)::bigint,
       1, 1, 'tick', (number & 255)::smallint, 1
  FROM generate_series(:first::bigint, :last::bigint) AS number
 CROSS JOIN LATERAL (
           SELECT 'epoch'::timestamptz
                  + (:from_us::bigint
                     + (:step_us::bigint / 2 + (1 + number % :count::bigint) * :apart_us::bigint) % :step_us::bigint)
                    * interval '1 microsecond' AS at
       ) AS tick;

-- name: indexes
-- How the indexes of timers are made, for all its partitions.
SELECT replace(indexdef, ' ON ONLY ', ' ON ') AS definition
  FROM pg_indexes
 WHERE schemaname = 'evertick' AND tablename = 'timers' AND indexname <> 'timers_pkey'
 ORDER BY indexname;

-- name: drop_key
-- The key is left out for good: nothing but a forecast reads these timers.
ALTER TABLE timers DROP CONSTRAINT timers_pkey;

-- name: drop_indexes
-- Rows are written many times faster without them.
DROP INDEX timers_due, timers_of_tenant, timers_in_order;

-- name: rule_ids
-- The ids of rules. Index: rules_digest_key.
SELECT rule_id FROM rules WHERE digest = ANY(:digests::bytea[]) ORDER BY array_position(:digests::bytea[], digest);

-- name: keep_clock
-- The instant at which the clock stands.
CREATE TABLE stopped_clock AS SELECT :now_at::timestamptz AS now_at;

-- name: stop_clock
-- Timers that were written for an instant are not overdue when all of them are written, minutes later.
CREATE OR REPLACE FUNCTION clock_at() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE
    AS 'SELECT now_at FROM stopped_clock';
