"""How long each purpose waits for the database: one table, so that no purpose waits longer than what depends on it.

`connection_seconds` bounds the wait for a free connection of the pool and for a new one, which takes several round
trips on a slow line. `command_seconds` bounds one statement: a silent line delays its purpose by so much.
`lock_seconds` bounds the wait for rows that another session has locked: roles do not wait for users, see
`store.engine.timers` and `store.engine.outcomes`.
"""

from datetime import timedelta

from evertick.store.database import Timeouts

ROLE_LOCK_SECONDS = 0.2
"""Roles try locked rows again, apart from the others. A statement usually holds its locks for less than this."""

FIRE = Timeouts(connection_seconds=10, command_seconds=5, lock_seconds=ROLE_LOCK_SECONDS)
"""A full batch takes a fraction of a second. One that takes longer than this is tried again in smaller parts."""
LOAD = Timeouts(connection_seconds=10, command_seconds=10, lock_seconds=ROLE_LOCK_SECONDS)
"""Reads pages of timers and reaps leases: longer than a firing, which goes on meanwhile with the loaded timers."""
LEASE = Timeouts(connection_seconds=10, command_seconds=5, lock_seconds=ROLE_LOCK_SECONDS)
"""Far below the lease time: if the answer is lost, the reaper takes the lease over when that has passed."""
RECORD_SECONDS = 10.0
"""A full batch of some thousand outcomes on a slow disk. A batch may be sent again: outcomes are recorded once."""
LISTEN = Timeouts(connection_seconds=10, command_seconds=5, lock_seconds=ROLE_LOCK_SECONDS)
"""A probe is one round trip. Longer than the slowest line that is worth waiting for."""
API = Timeouts(connection_seconds=5, command_seconds=10, lock_seconds=3)
"""A client that waits gets its 503 before it gives up."""
JANITOR = Timeouts(connection_seconds=10, command_seconds=60, lock_seconds=20)
"""Reads and removes many rows at once, also on a cold disk. A batch that takes longer is tried with fewer rows."""
READINESS_SECONDS = 3.0
"""Load balancers usually wait no longer."""
STATUS_SECONDS = 5.0
"""For all statements of one engine status: scrapers usually wait for ten seconds."""


def node_heartbeat(lifetime: timedelta) -> Timeouts:
    """For a node that counts as dead after `lifetime`: half of it leaves time for a second try on a new connection."""
    # Taking partitions waits for a firing that their former holder has under way.
    return Timeouts(10, lifetime.total_seconds() / 2, lifetime.total_seconds() / 4)


def lease_heartbeat(lease_time: timedelta) -> Timeouts:
    """For a worker whose leases run out after `lease_time`: a sixth leaves time for several tries."""
    # Only the worker itself locks its leases, while it commits: on a slow disk for long.
    return Timeouts(lease_time.total_seconds() / 3, lease_time.total_seconds() / 6, lease_time.total_seconds() / 6)


def record(lease_time: timedelta) -> Timeouts:
    """For outcomes of leases of `lease_time`: a silent line may cost a third of it at most."""
    return Timeouts(10, min(RECORD_SECONDS, lease_time.total_seconds() / 3), ROLE_LOCK_SECONDS)
