"""What schedulers, workers and dispatchers read and write: members, timers, lanes, leases, outcomes, wake-ups."""
