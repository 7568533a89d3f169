-- Circuit breakers and rate limits of target hosts: dispatchers report what they saw, read what is not closed or limited,
-- and claim probes; users list, reset and limit. What a circuit becomes is decided in `domain/breaker`, under the row's
-- lock.

-- name: add
-- Rows for hosts that had none, closed and without counts; a tenant has a limited number of them. Indexes:
-- target_hosts_pkey, tenants_pkey.
INSERT INTO target_hosts (tenant_id, host, state, changed_at, window_at, reported_at, calls, failures, calls_before,
                          failures_before, openings)
SELECT given.tenant_id, given.host, 'closed', clock.now_at, clock.now_at, clock.now_at, 0, 0, 0, 0, 0
  FROM unnest(:tenant_ids::bigint[], :hosts::text[]) AS given (tenant_id, host)
 CROSS JOIN (SELECT clock_at() AS now_at) AS clock
 -- A fail-over may have lost the tenant.
 WHERE (SELECT true FROM tenants WHERE tenants.tenant_id = given.tenant_id LIMIT 1)
   AND (SELECT count(*)
          FROM (SELECT 1 FROM target_hosts WHERE target_hosts.tenant_id = given.tenant_id
                 LIMIT :most_per_tenant::integer) AS first_hosts) < :most_per_tenant::integer
 -- In one order, against others that add the same.
 ORDER BY given.tenant_id, given.host
    ON CONFLICT DO NOTHING;

-- name: lock_available
-- The given hosts that nobody has locked, locked one after the other, and the time. Index: target_hosts_pkey.
SELECT locked.tenant_id, locked.host, locked.state, locked.changed_at, locked.window_at, locked.calls, locked.failures,
       locked.calls_before, locked.failures_before, locked.openings, locked.probe_at, locked.watched_at,
       locked.last_error, locked.rate_limit, locked.rate_burst, clock_at() AS now_at
  FROM unnest(:tenant_ids::bigint[], :hosts::text[]) AS given (tenant_id, host)
 CROSS JOIN LATERAL (
           SELECT tenant_id, host, state::text AS state, changed_at, window_at, calls, failures, calls_before,
                  failures_before, openings, probe_at, watched_at, last_error, rate_limit, rate_burst
             FROM target_hosts
            WHERE target_hosts.tenant_id = given.tenant_id AND target_hosts.host = given.host
            LIMIT 1
              FOR UPDATE SKIP LOCKED
       ) AS locked;

-- name: lock
-- A tenant's host, locked, and the time. Index: target_hosts_pkey.
SELECT tenant_id, host, state::text AS state, changed_at, window_at, calls, failures, calls_before, failures_before,
       openings, probe_at, watched_at, last_error, rate_limit, rate_burst, clock_at() AS now_at
  FROM target_hosts
 WHERE tenant_id = :tenant_id::bigint AND host = :host::text
   FOR UPDATE;

-- name: store
-- Hosts as they are after a report, a claim or a reset; the caller has locked them. Index: target_hosts_pkey.
UPDATE target_hosts
   SET state = given.state::circuit_state, changed_at = given.changed_at, window_at = given.window_at,
       calls = given.calls, failures = given.failures, calls_before = given.calls_before,
       failures_before = given.failures_before, openings = given.openings, probe_at = given.probe_at,
       last_error = given.last_error, watched_at = given.watched_at,
       watched_until = given.watched_until, reported_at = clock_at()
  FROM unnest(:tenant_ids::bigint[], :hosts::text[], :states::text[], :changed_ats::timestamptz[],
              :window_ats::timestamptz[], :calls::integer[], :failures::integer[], :calls_before::integer[],
              :failures_before::integer[], :openings::integer[], :probe_ats::timestamptz[], :last_errors::text[],
              :watched_ats::timestamptz[], :watched_untils::timestamptz[])
       AS given (tenant_id, host, state, changed_at, window_at, calls, failures, calls_before, failures_before,
                 openings, probe_at, last_error, watched_at, watched_until)
 WHERE target_hosts.tenant_id = given.tenant_id AND target_hosts.host = given.host;

-- name: watched
-- Hosts that dispatchers have to know of, those that are not closed first. Index: target_hosts_watched.
SELECT tenant_id, host, state::text AS state, changed_at, window_at, calls, failures, calls_before, failures_before,
       openings, probe_at, watched_at, last_error, rate_limit, rate_burst, clock_at() AS now_at
  FROM target_hosts
 WHERE watched_until > (SELECT clock_at())
 ORDER BY watched_until DESC
 LIMIT :most::integer;

-- name: page
-- A tenant's hosts by name. Index: target_hosts_pkey.
SELECT tenant_id, host, state::text AS state, changed_at, window_at, calls, failures, calls_before, failures_before,
       openings, probe_at, watched_at, last_error, rate_limit, rate_burst, clock_at() AS now_at
  FROM target_hosts
 WHERE tenant_id = :tenant_id::bigint AND host > :after::text
 ORDER BY host
 LIMIT :most::integer;

-- name: count_open
-- How many circuits are not closed, by state. Index: target_hosts_watched.
SELECT state::text AS state, count(*) AS circuits
  FROM target_hosts
 WHERE watched_until > (SELECT clock_at()) AND state <> 'closed'
 GROUP BY state;

-- name: limit
-- Sets how many deliveries per second a host gets. Index: target_hosts_pkey.
UPDATE target_hosts
   SET rate_limit = :rate_limit::float, rate_burst = :rate_burst::integer
 WHERE tenant_id = :tenant_id::bigint AND host = :host::text
RETURNING tenant_id, host, state::text AS state, changed_at, window_at, calls, failures, calls_before, failures_before,
          openings, probe_at, watched_at, last_error, rate_limit, rate_burst, clock_at() AS now_at;

-- name: limited
-- Hosts with a rate limit, in the order of their tenants and names after one of them. Index: target_hosts_limited.
SELECT tenant_id, host, rate_limit, rate_burst
  FROM target_hosts
 WHERE rate_limit IS NOT NULL AND (tenant_id, host) > (:after_tenant_id::bigint, :after_host::text)
 ORDER BY tenant_id, host
 LIMIT :most::integer;
