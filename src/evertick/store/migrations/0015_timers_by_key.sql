-- Timers of a job are looked up by their key, also where a table has few: with statistics that tell one timer for each
-- partition, an index that begins with the partition looks as good, and there all that a pinned snapshot keeps are read.
-- So the planner is told that a partition may have them all. It counts from the next ANALYZE on.

ALTER TABLE timers_0 ALTER COLUMN partition SET (n_distinct = 1);
ALTER TABLE timers_1 ALTER COLUMN partition SET (n_distinct = 1);
ALTER TABLE timers_2 ALTER COLUMN partition SET (n_distinct = 1);
ALTER TABLE timers_3 ALTER COLUMN partition SET (n_distinct = 1);
ALTER TABLE timers_4 ALTER COLUMN partition SET (n_distinct = 1);
ALTER TABLE timers_5 ALTER COLUMN partition SET (n_distinct = 1);
ALTER TABLE timers_6 ALTER COLUMN partition SET (n_distinct = 1);
ALTER TABLE timers_7 ALTER COLUMN partition SET (n_distinct = 1);
