-- Up to which number new events are known to be moved: looking for new ones begins after it, not at the dead rows of all
-- that were moved while some snapshot is old.

ALTER TABLE event_positions
    ADD COLUMN moved_up_to  bigint      NOT NULL DEFAULT 0,
    -- Numbers up to this one were drawn by transactions with smaller ids than `drawn_before`, on the server that was
    -- started then: a trigger draws them after its transaction has written, and so has an id. When all of these have
    -- ended, and what they left is moved, `moved_up_to` follows.
    ADD COLUMN drawn        bigint      NOT NULL DEFAULT 0,
    ADD COLUMN drawn_before xid8        NOT NULL DEFAULT '0',
    ADD COLUMN drawn_on     timestamptz NOT NULL DEFAULT '-infinity';
