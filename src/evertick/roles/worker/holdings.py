"""The leases that a worker holds. Its loop and the heartbeat's thread share them, by single assignments."""

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import timedelta

from evertick.store.lanes import Leased, Range


class Lease:
    """One range. `expires` is by the monotonic clock, and never later than the database's own moment.

    Past that moment nothing is started under it, for others may have been given its attempts. What runs goes on until
    the database has said whose the lease is.
    """

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
        self._unrecorded: list[Lease] = []

    def hold(self, ranges: Iterable[Range], asked: float) -> None:
        """Take in ranges that a statement gave which was sent at `asked`. Until it was read, each counts as open."""
        leases = {each.lease_id: Lease(each.lease_id, asked + self._seconds) for each in ranges}
        for lease in leases.values():
            lease.open = 1
        self._leases |= leases

    def add(self, attempts: Sequence[Leased], asked: float) -> list[Lease]:
        """Take in attempts: of leases that are held, or else of new ones that were asked for at `asked`."""
        leases: dict[int, Lease] = {}
        for attempt in attempts:
            lease = leases.get(attempt.lease_id)
            if lease is None:
                held = self._leases.get(attempt.lease_id)
                lease = leases[attempt.lease_id] = held or Lease(attempt.lease_id, asked + self._seconds)
            lease.open += 1
            lease.longest = max(lease.longest, attempt.timeout_seconds)
        self._leases |= leases
        return list(leases.values())

    def find(self, lease_id: int) -> Lease | None:
        return self._leases.get(lease_id)

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

    def forget(self, lease_ids: Iterable[int]) -> None:
        """Extend these no more: they run out, and their attempts come back."""
        for lease_id in lease_ids:
            self._leases.pop(lease_id, None)

    def keep(self, lease_ids: Collection[int]) -> None:
        """These have an ending that could not be recorded yet: they are extended, even with nothing open in them."""
        if lease_ids or self._unrecorded:
            self._unrecorded = [Lease(lease_id, 0) for lease_id in lease_ids if lease_id not in self._leases]

    def snapshot(self) -> list[Lease]:
        """The leases as of now, and those that are kept; safe from any thread."""
        return [*self._leases.values(), *self._unrecorded]

    def extended(self, leases: Sequence[Lease], kept: set[int], asked: float) -> None:
        """Of these leases the database extended the `kept`, by a statement sent at `asked`; safe from any thread."""
        for lease in leases:
            if lease.lease_id in kept:
                lease.expires = asked + self._seconds
            else:
                lease.is_lost = True

    def drop_lost(self, now: float | None = None) -> set[int]:
        """Forget the leases that are not ours any more, by what we were told, and return them.

        One that only could not be extended in time stays, since the database may be away for everyone; unless `now` is
        given: then those are lost as well whose time has passed.
        """
        lost = {
            lease.lease_id
            for lease in self._leases.values()
            if lease.is_lost or (now is not None and lease.expires < now)
        }
        self.forget(lost)
        return lost
