-- Runs whose outcome a consumer of a broker's messages reports.

-- When the time of a consumer's lease is over, by its run's timeout: heartbeats extend the lease no further. Of the
-- leases of all others it is null.
ALTER TABLE leases ADD COLUMN ends_at timestamptz;
