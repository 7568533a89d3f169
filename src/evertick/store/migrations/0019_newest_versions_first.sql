-- While a transaction pins a snapshot all versions of lanes stay, and all leases since then (decision 36).

-- An index that is read backwards gives the newest version of a row first, unless equal keys share an entry.
ALTER INDEX lanes_pkey SET (deduplicate_items = off);

-- A worker's lease of an attempt is found by lane and seq, read backwards: the newest first, and of those that begin with
-- the same attempt the narrowest. Heartbeats wait while it is built, as long as it takes to read all leases.
DROP INDEX leases_of_worker;
CREATE INDEX leases_of_worker ON leases (worker, lane_id, first_seq, last_seq DESC);
