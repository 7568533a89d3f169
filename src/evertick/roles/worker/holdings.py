"""The leases that a worker holds. Its loop and the heartbeat's thread share them, by single assignments."""

import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from evertick.store.lanes import Leased


class Lease:
    """One range. `expires` is by the monotonic clock, and never later than the database's own moment."""

    __slots__ = ("done", "expires", "is_lost", "lease_id", "longest", "open")

    def __init__(self, lease_id: int, expires: float) -> None:
        self.lease_id = lease_id
        self.expires = expires
        self.open = 0
        self.longest = 0
        self.is_lost = False
        self.done: Callable[[], None] | None = None


class Holdings:
    """Counts down each lease's attempts; the last one's ending takes the lease with it."""

    def __init__(self, lease_time: timedelta) -> None:
        self._seconds = lease_time.total_seconds()
        self._leases: dict[int, Lease] = {}

    def add(self, attempts: Sequence[Leased], asked: float) -> list[Lease]:
        """Take in what a statement gave that was sent at `asked`."""
        leases: dict[int, Lease] = {}
        for attempt in attempts:
            lease = leases.get(attempt.lease_id)
            if lease is None:
                lease = leases[attempt.lease_id] = Lease(attempt.lease_id, asked + self._seconds)
            lease.open += 1
            lease.longest = max(lease.longest, attempt.timeout_seconds)
        self._leases |= leases
        return list(leases.values())

    def end(self, lease_id: int) -> int | None:
        """One attempt of the lease is over; returns the lease if that was its last."""
        lease = self._leases.get(lease_id)
        if lease is None:
            return None
        lease.open -= 1
        if lease.open:
            return None
        del self._leases[lease_id]
        if lease.done is not None:
            lease.done()
        return lease_id

    def snapshot(self) -> list[Lease]:
        """The leases as of now; safe from any thread."""
        return list(self._leases.values())

    def extended(self, leases: Sequence[Lease], kept: set[int], asked: float) -> None:
        """Of these leases the database extended the `kept`, by a statement sent at `asked`; safe from any thread."""
        for lease in leases:
            if lease.lease_id in kept:
                lease.expires = asked + self._seconds
            else:
                lease.is_lost = True

    def drop_lost(self) -> set[int]:
        """Forget the leases that are not ours any more, and return them.

        One that could not be extended in time is lost as well: from now on its attempts may be given to others.
        """
        now = time.monotonic()
        lost = {lease.lease_id for lease in self._leases.values() if lease.is_lost or lease.expires < now}
        for lease_id in lost:
            del self._leases[lease_id]
        return lost
