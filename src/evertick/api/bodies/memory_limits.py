"""Memory for the bodies of requests and for responses that clients have not read: bounded for each tenant and in all.

A body counts what has arrived of it, from its first byte until it is answered, and once it is decoded its values, too.
The bound of the process is shared by a dynamic threshold: a tenant may hold no more than is free. So n tenants that
take all they can hold 1/(n + 1) of it each, and as much stays free for the next one.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from evertick.api.problems import over_limit, unavailable
from evertick.domain.limits import QuotaName
from evertick.runtime.concurrency import LimitReached, TenantLimit

MEBIBYTE = 1_048_576
VALUE_BYTES = 64
"""What a decoded value takes: an empty list has 56 bytes, and 8 in the list that it is in."""
MAX_BATCHES_PER_TENANT = 2
"""Batches of one tenant that are read, decoded and written at once: one is read while the database writes another."""
MAX_WAITING_PER_TENANT = 32
BATCH_WAIT_SECONDS = 10.0
UNREAD_BYTES_PER_TENANT = 32 * MEBIBYTE
"""With more than that, requests are refused, except for those that hold a slot by then."""
UNREAD_BYTES = 256 * MEBIBYTE
ALWAYS_UNREAD_BYTES = MEBIBYTE
"""Every tenant may have so much unread, whatever others have."""
LARGE_RESPONSE_BYTES = 65_536
"""Shorter responses are not counted: a connection has one of them at a time."""
_RETRY_SECONDS = 2
_ADVICE = "wait for the answers to earlier ones"

_MARKS = b",[{"


def count_values(data: bytes) -> int:
    """An upper bound of the values in this JSON. Marks inside of texts count, too: it has to be cheap."""
    return len(data) - len(data.translate(None, _MARKS)) + 1


class _HeldBytes:
    """How many bytes each tenant holds, and how many are free."""

    def __init__(self, per_tenant: int, total: int) -> None:
        self._per_tenant = per_tenant
        self._total = total
        self._free = total
        self._held: Counter[int] = Counter()

    def add(self, tenant_id: int, size: int) -> None:
        self._held[tenant_id] += size
        self._free -= size
        if not self._held[tenant_id]:
            del self._held[tenant_id]


class BodyLimits(_HeldBytes):
    """What the bodies of a process hold, tenant by tenant."""

    def __init__(self, per_tenant: int, total: int) -> None:
        super().__init__(per_tenant, total)
        self.batches = TenantLimit(
            MAX_BATCHES_PER_TENANT, max_waiting=MAX_WAITING_PER_TENANT, wait_seconds=BATCH_WAIT_SECONDS
        )

    @property
    def held(self) -> int:
        """Bytes that are held now."""
        return self._total - self._free

    @contextmanager
    def of(self, tenant_id: int) -> Iterator["Reservation"]:
        """A reservation for one request, which ends with it."""
        reservation = Reservation(self, tenant_id)
        try:
            yield reservation
        finally:
            reservation.release()

    def check(self, tenant_id: int, size: int) -> None:
        """Refuse what the tenant cannot hold in addition."""
        held = self._held[tenant_id] + size
        if held > self._per_tenant:
            detail = f"the bodies of one tenant's requests hold at most {self._per_tenant} bytes at once"
            raise over_limit(QuotaName.BODY_BYTES, f"{detail}: {_ADVICE}", _RETRY_SECONDS)
        if held > self._free:
            raise unavailable("this server has no memory for the body now")

    async def begin_batch(self, tenant_id: int) -> None:
        """Wait until few enough batches of the tenant are at work. What is not read waits at the client."""
        try:
            await self.batches.acquire(tenant_id)
        except LimitReached:
            detail = f"at most {MAX_BATCHES_PER_TENANT} large batches of one tenant are processed at once"
            raise over_limit(QuotaName.BATCHES, f"{detail}: {_ADVICE}", _RETRY_SECONDS) from None

    def end_batch(self, tenant_id: int) -> None:
        self.batches.release(tenant_id)


class Reservation:
    """What one request's body holds. What does not fit raises a Problem."""

    def __init__(self, limits: BodyLimits, tenant_id: int) -> None:
        self._limits = limits
        self._tenant_id = tenant_id
        self._size = 0
        self._is_batch = False

    def check(self, size: int) -> None:
        """Refuse at once a body of an announced size that will not fit. Nothing is held yet."""
        self._limits.check(self._tenant_id, size)

    def add(self, size: int) -> None:
        """Hold so many bytes in addition."""
        self._limits.check(self._tenant_id, size)
        self._limits.add(self._tenant_id, size)
        self._size += size

    def add_values(self, count: int) -> None:
        """Hold the memory of values that are about to be decoded."""
        self.add(count * VALUE_BYTES)

    async def begin_batch(self) -> None:
        """Wait until the tenant may have one more batch at work."""
        if not self._is_batch:
            await self._limits.begin_batch(self._tenant_id)
            self._is_batch = True

    def release(self) -> None:
        self._limits.add(self._tenant_id, -self._size)
        self._size = 0
        if self._is_batch:
            self._limits.end_batch(self._tenant_id)
            self._is_batch = False


class UnreadResponses(_HeldBytes):
    """The unread responses of a process.

    A request that was done is answered in any case. A tenant with too many unread bytes gets no further requests done.
    """

    def __init__(self) -> None:
        super().__init__(UNREAD_BYTES_PER_TENANT, UNREAD_BYTES)

    def check(self, tenant_id: int) -> None:
        """Refuse to do more for a tenant that has too much unread."""
        held = self._held.get(tenant_id, 0)
        if held > min(self._per_tenant, max(self._free, ALWAYS_UNREAD_BYTES)):
            detail = f"{held} bytes of answers to earlier requests are not read yet"
            raise over_limit(QuotaName.UNREAD_ANSWERS, detail, _RETRY_SECONDS)

    def hold(self, tenant_id: int, size: int) -> Callable[[], None] | None:
        """Count a response, if it is large, until the returned function is called."""
        if size <= LARGE_RESPONSE_BYTES:
            return None
        self.add(tenant_id, size)
        return partial(self.add, tenant_id, -size)
