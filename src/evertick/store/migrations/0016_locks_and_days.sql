-- Functions for statements that lock rows and choose partitions: a function has an executor of its own, and in PostgreSQL
-- 18 a statement that meets changed rows while it locks must not choose partitions afterwards (decision 35).

-- Locks rows by their places, but for those that another session has locked or has changed since the calling statement
-- began, and returns the places of what it locked.
CREATE FUNCTION lock_rows(of_table regclass, places tid[], strength text DEFAULT 'UPDATE') RETURNS SETOF tid
    LANGUAGE plpgsql ROWS 100
    AS $$
BEGIN
    IF cardinality(places) > 0 THEN
        RETURN QUERY EXECUTE format('SELECT ctid FROM %s WHERE ctid = ANY($1) FOR %s SKIP LOCKED', of_table, strength)
                       USING places;
    END IF;
END $$;

-- The first attempts of lanes, each from a seq on: from where to where so many of them reach; null if there are none.
-- `places` are those of the lanes, and are returned as they are.
CREATE FUNCTION ranges_of(lane_ids bigint[], places tid[], from_seqs bigint[], mosts integer[])
    RETURNS TABLE(lane_id bigint, place tid, from_seq bigint, first_seq bigint, last_seq bigint)
    LANGUAGE plpgsql STABLE ROWS 64
    AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT lane.lane_id, lane.place, lane.from_seq, range.first_seq, range.last_seq
      FROM unnest(lane_ids, places, from_seqs, mosts) AS lane (lane_id, place, from_seq, most)
     CROSS JOIN LATERAL (
               SELECT min(next.seq) AS first_seq, max(next.seq) AS last_seq
                 FROM (SELECT attempts.seq
                         FROM attempts
                        WHERE attempts.lane_id = lane.lane_id AND attempts.seq >= lane.from_seq
                        ORDER BY attempts.seq
                        LIMIT lane.most) AS next
           ) AS range;
END $$;

-- While a transaction pins a snapshot, each version of a lane stays, and a lease passes all of them. In pages with much
-- room the versions of a lane stay together, so that a lease reads few pages. It counts for pages that are filled from
-- now on.
ALTER TABLE lanes SET (fillfactor = 10);
