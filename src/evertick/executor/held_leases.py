"""The leases that an executor holds. Its loop and the heartbeat's thread share them, by single assignments."""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime

from evertick.domain.attempt import Attempt


class HeldLease:
    """One range. `expires` is by the monotonic clock, and never later than the other side's own moment.

    Past that moment nothing is started under it, for others may have been given its attempts. What runs goes on until
    the other side has said who holds the lease. `since`, by the monotonic clock, is when it was asked for.
    `arrived_at`, by the database's clock, is for the metrics.
    """

    __slots__ = ("arrived_at", "done", "expires", "is_lost", "lease_id", "longest", "open", "since")

    def __init__(self, lease_id: int, expires: float, since: float = -math.inf) -> None:
        self.lease_id = lease_id
        self.expires = expires
        self.since = since
        self.open = 0
        self.longest = 0
        self.is_lost = False
        self.arrived_at: datetime | None = None
        self.done: Callable[[], None] | None = None


class HeldLeases:
    """Counts down each lease's attempts; the last one's outcome takes the lease with it. A lease lasts `seconds`.

    `running`: the longer attempts that run (lease, seq), and since when, for the heartbeat to tell.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.running: Sequence[tuple[int, int, datetime]] = ()
        self._leases: dict[int, HeldLease] = {}
        self._unrecorded: list[HeldLease] = []

    def hold(self, lease_ids: Iterable[int], asked: float) -> None:
        """Take in leases that a request gave which was sent at `asked`. Until they are read, each counts as open."""
        leases = {lease_id: HeldLease(lease_id, asked + self.seconds, asked) for lease_id in lease_ids}
        for lease in leases.values():
            lease.open = 1
        self._leases |= leases

    def add(self, attempts: Sequence[Attempt], asked: float) -> list[HeldLease]:
        """Take in attempts: of leases that are held, or else of new ones that were asked for at `asked`."""
        leases: dict[int, HeldLease] = {}
        for attempt in attempts:
            lease = leases.get(attempt.lease_id)
            if lease is None:
                held = self._leases.get(attempt.lease_id)
                lease = leases[attempt.lease_id] = held or HeldLease(attempt.lease_id, asked + self.seconds, asked)
            lease.open += 1
            lease.longest = max(lease.longest, attempt.timeout_seconds)
        self._leases |= leases
        return list(leases.values())

    def find(self, lease_id: int) -> HeldLease | None:
        return self._leases.get(lease_id)

    def end(self, lease_id: int, count: int = 1) -> int | None:
        """So many attempts of the lease are over; returns the lease if they were its last."""
        lease = self._leases.get(lease_id)
        if lease is None:
            return None
        lease.open -= count
        if lease.open:
            return None
        del self._leases[lease_id]
        if lease.done is not None:
            lease.done()
        return lease_id

    def forget(self, lease_ids: Iterable[int]) -> None:
        """Extend these no more: they run out, and their attempts come back."""
        for lease_id in lease_ids:
            self._leases.pop(lease_id, None)

    def keep(self, lease_ids: Collection[int]) -> None:
        """These have an outcome that could not be recorded yet: they are extended, even with nothing open in them."""
        if lease_ids or self._unrecorded:
            self._unrecorded = [HeldLease(lease_id, 0) for lease_id in lease_ids if lease_id not in self._leases]

    def snapshot(self) -> list[HeldLease]:
        """The leases as of now, and those that are kept; safe from any thread."""
        return [*self._leases.values(), *self._unrecorded]

    def extended(self, leases: Sequence[HeldLease], kept: Collection[int], asked: float) -> None:
        """Of these leases the `kept` were extended, by a request sent at `asked`; safe from any thread."""
        for lease in leases:
            if lease.lease_id in kept:
                lease.expires = asked + self.seconds
            else:
                lease.is_lost = True

    def drop_lost(self, now: float | None = None) -> set[int]:
        """Forget the leases that are not ours any more, by what the other side said, and return them.

        One that only could not be extended in time stays, since the other side may be away for everyone; unless `now`
        is given: then those whose time has passed are lost as well.
        """
        lost = {
            lease.lease_id
            for lease in self._leases.values()
            if lease.is_lost or (now is not None and lease.expires < now)
        }
        self.forget(lost)
        return lost
