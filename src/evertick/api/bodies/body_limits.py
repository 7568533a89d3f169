"""Memory for the bodies of requests, from their first byte until they are answered: bounded for each tenant and for
the process. A body counts what has arrived of it, and once it is decoded its values, too.

The bound of the process is shared by a dynamic threshold: a tenant may hold no more than is free. So n tenants that
take all they can hold 1/(n + 1) of it each, and as much stays free for the next one.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from evertick.api.problems import Kind, Problem, over_limit
from evertick.config import DEFAULTS
from evertick.domain.admission import QuotaName
from evertick.runtime.concurrency import LimitReached, TenantLimit

MEBIBYTE = 1_048_576
PER_TENANT_BYTES = round(DEFAULTS.body_memory_mib_per_tenant * MEBIBYTE)
TOTAL_BYTES = round(DEFAULTS.body_memory_mib * MEBIBYTE)
VALUE_BYTES = 64
"""What a decoded value takes: an empty list has 56 bytes, and 8 in the list that it is in."""
MAX_BATCHES_PER_TENANT = 2
"""Batches of one tenant that are read, decoded and written at once: one is read while the database writes another."""
MAX_WAITING_PER_TENANT = 32
BATCH_WAIT_SECONDS = 10.0
_RETRY_SECONDS = 2
_ADVICE = "wait for the answers to earlier ones"

_MARKS = b",[{"


def count_values(data: bytes) -> int:
    """An upper bound of the values in this JSON. Marks inside of texts count, too: it has to be cheap."""
    return len(data) - len(data.translate(None, _MARKS)) + 1


class BodyLimits:
    """What the bodies of a process hold, tenant by tenant."""

    def __init__(self, per_tenant: int = PER_TENANT_BYTES, total: int = TOTAL_BYTES) -> None:
        self._per_tenant = per_tenant
        self._total = total
        self._held: Counter[int] = Counter()
        self._free = total
        self._batches = TenantLimit(
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
            detail = "this server has no memory for the body now"
            raise Problem(Kind.UNAVAILABLE, detail, headers={"Retry-After": str(_RETRY_SECONDS)})

    def add(self, tenant_id: int, size: int) -> None:
        self._held[tenant_id] += size
        self._free -= size
        if not self._held[tenant_id]:
            del self._held[tenant_id]

    async def begin_batch(self, tenant_id: int) -> None:
        """Wait until few enough batches of the tenant are at work. What is not read waits at the client."""
        try:
            await self._batches.acquire(tenant_id)
        except LimitReached:
            detail = f"at most {MAX_BATCHES_PER_TENANT} large batches of one tenant are processed at once"
            raise over_limit(QuotaName.BATCHES, f"{detail}: {_ADVICE}", _RETRY_SECONDS) from None

    def end_batch(self, tenant_id: int) -> None:
        self._batches.release(tenant_id)


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
