"""How long each purpose waits for the database: one table, so that no purpose waits longer than what depends on it.

The connection's seconds are for a free place in the pool and a new connection, which takes several round trips on a
slow line. The command's are for one statement: a silent line delays its purpose by so much. The lock's are for rows
that somebody else holds: roles do not wait for users, see `store.engine.timers` and `store.engine.outcomes`.
"""

from datetime import timedelta

from evertick.store.database import Timeouts

ROLE_LOCK_SECONDS = 0.2
"""Roles try again, apart from what was not locked. A statement holds its locks for less than this, as a rule."""

FIRE = Timeouts(connection_seconds=10, command_seconds=5, lock_seconds=ROLE_LOCK_SECONDS)
"""A full batch takes a fraction of a second, and one that took longer than this is tried again in smaller parts."""
LOAD = Timeouts(connection_seconds=10, command_seconds=10, lock_seconds=ROLE_LOCK_SECONDS)
"""Reads pages of timers, reaps: larger than a firing, and firing goes on meanwhile from what was loaded before."""
LEASE = Timeouts(connection_seconds=10, command_seconds=5, lock_seconds=ROLE_LOCK_SECONDS)
"""Far below the lease time: what was leased unheard of is the reaper's when that has passed."""
RECORD_SECONDS = 10.0
"""A full batch of some thousand outcomes on a slow disk; sent again, what was recorded the first time is there."""
LISTEN = Timeouts(connection_seconds=10, command_seconds=5, lock_seconds=ROLE_LOCK_SECONDS)
"""A probe is one round trip. Longer than the slowest line that is worth waiting for."""
API = Timeouts(connection_seconds=5, command_seconds=10, lock_seconds=3)
"""A client waits, and gets its 503 while it is still there."""
KEEP_HOUSE = Timeouts(connection_seconds=10, command_seconds=60, lock_seconds=20)
"""Reads and removes much at once, on a cold disk too. A batch that takes longer is tried again with fewer rows."""
READINESS_SECONDS = 3.0
"""Load balancers give up by then, as a rule."""
STATUS_SECONDS = 5.0
"""For all statements of a look at the whole engine: scrapers wait for ten seconds, as a rule."""


def beat(lifetime: timedelta) -> Timeouts:
    """For a node that counts as dead after `lifetime`: half of it leaves time for a second try on a new connection."""
    # A take waits for the firing that its former holder may have under way.
    return Timeouts(10, lifetime.total_seconds() / 2, lifetime.total_seconds() / 4)


def heartbeat(lease_time: timedelta) -> Timeouts:
    """For a worker whose leases run out after `lease_time`: a sixth leaves time for several tries."""
    # No user has its leases locked, but the worker itself does while it commits, on a slow disk for long.
    return Timeouts(lease_time.total_seconds() / 3, lease_time.total_seconds() / 6, lease_time.total_seconds() / 6)


def record(lease_time: timedelta) -> Timeouts:
    """For outcomes of leases of `lease_time`: a silent line must not cost more than a third of it."""
    return Timeouts(10, min(RECORD_SECONDS, lease_time.total_seconds() / 3), ROLE_LOCK_SECONDS)
