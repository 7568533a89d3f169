-- Wake-ups: hints between processes, on connections of their own. Losing one costs a poll's delay, nothing else.

-- name: notify
-- Never inside a transaction that writes data: a NOTIFY serialises commits.
SELECT pg_notify(channel, payload) FROM unnest(:channels::text[], :payloads::text[]) AS wakeup (channel, payload);

-- name: probe
-- One round trip, by which a listener sees that its connection still works.
SELECT 1;
