-- Rate buckets, from which all processes draw; `domain/rate_bucket` has the same arithmetic. Drawn from by admission,
-- leasing and dispatchers; pruned by the janitor.

-- name: draw
-- Draws from each bucket up to what is wanted, but nothing if there is less than the least. A bucket that another
-- session has locked is not in the answer: nobody waits for it. Index: rate_buckets_pkey.
WITH clock AS MATERIALIZED (
    SELECT microseconds(clock_at()) AS now_us,
           -- A crash of the server may return the tokens of its last moments, and no request waits for its disk.
           set_config('synchronous_commit', 'off', true)
),
asked AS MATERIALIZED (
    SELECT key, least, wanted, per_second, burst * 1000000 AS full_units, clock.now_us
      FROM clock
     CROSS JOIN unnest(:keys::text[], :least::bigint[], :wanted::bigint[], :per_second::float[], :bursts::bigint[])
           AS asked (key, least, wanted, per_second, burst)
),
locked AS MATERIALIZED (
    SELECT bucket.key, bucket.units, bucket.as_of_us
      FROM rate_buckets bucket
     WHERE bucket.key = ANY(:keys::text[])
       FOR UPDATE SKIP LOCKED
),
-- A clock that is more than a second behind was set: time counts from now on.
dated AS (
    SELECT asked.*, least(locked.units, asked.full_units) AS units,
           CASE WHEN locked.as_of_us - now_us > 1000000 THEN now_us ELSE locked.as_of_us END AS since_us
      FROM locked JOIN asked ON asked.key = locked.key
),
-- Compared by division, because a long time at a high rate is more than a bigint holds.
filled AS (
    SELECT key, least, wanted, per_second, full_units, now_us, greatest(now_us, since_us) AS as_of_us,
           CASE WHEN greatest(now_us - since_us, 0) > (full_units - units) / per_second THEN full_units
                ELSE units + floor(greatest(now_us - since_us, 0) * per_second)::bigint
            END AS units
      FROM dated
     UNION ALL
    SELECT key, least, wanted, per_second, full_units, now_us, now_us, full_units
      FROM asked
     WHERE NOT EXISTS (SELECT FROM rate_buckets bucket WHERE bucket.key = asked.key)
),
granted AS MATERIALIZED (
    SELECT key, as_of_us, units, full_units, per_second,
           CASE WHEN units / 1000000 >= least THEN least(wanted, units / 1000000) ELSE 0 END AS granted,
           CASE WHEN units / 1000000 >= least THEN 0
                ELSE as_of_us + ceil((least * 1000000 - units) / per_second)::bigint - now_us
            END AS wait_us
      FROM filled
),
rest AS MATERIALIZED (
    SELECT key, as_of_us, units - granted * 1000000 AS units,
           as_of_us + ceil((full_units - units + granted * 1000000) / per_second)::bigint AS full_us
      FROM granted
),
drawn AS (
    UPDATE rate_buckets bucket
       SET units = rest.units, as_of_us = rest.as_of_us, full_us = rest.full_us
      FROM rest JOIN locked ON locked.key = rest.key
     WHERE bucket.key = rest.key
 RETURNING bucket.key
),
-- Another process may add the same bucket at this moment: it then counts as locked.
added AS (
    INSERT INTO rate_buckets (key, units, as_of_us, full_us)
    SELECT rest.key, rest.units, rest.as_of_us, rest.full_us
      FROM rest
     WHERE NOT EXISTS (SELECT FROM locked WHERE locked.key = rest.key)
     ORDER BY rest.key
        ON CONFLICT DO NOTHING
 RETURNING key
)
SELECT granted.key, granted.granted, granted.wait_us
  FROM granted
 WHERE granted.key IN (SELECT key FROM drawn UNION ALL SELECT key FROM added);

-- name: prune
-- Removes buckets that have been full for a while: one that is missing counts as full. The table is small, and read whole.
DELETE FROM rate_buckets
 WHERE ctid = ANY(ARRAY(SELECT ctid
                          FROM rate_buckets
                         WHERE full_us < microseconds(clock_at()) - :kept_us::bigint
                           FOR UPDATE SKIP LOCKED))
   AND full_us < microseconds(clock_at()) - :kept_us::bigint;
