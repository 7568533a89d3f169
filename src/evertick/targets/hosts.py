"""What all targets ask before they deliver: whether the host's circuit is closed, its rate limit allows it, and it had
a slot free lately. A host is what one tenant calls: of HTTP targets a host and its port, of brokers a connection.
"""

import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from evertick.domain.attempt import AttemptOutcome, NotStarted
from evertick.domain.breaker import TenantHost, probe_outcome

BACKOFF_SECONDS = 5.0
BACKED_OFF = "deferred: its host is backed off"


class HostCircuits(Protocol):
    """The circuit breakers of hosts, by tenant."""

    def is_closed(self, host: TenantHost) -> bool:
        """Whether a delivery may be made without asking further. Asked for each delivery."""

    async def admit(self, host: TenantHost) -> NotStarted | None:
        """Where it is not closed: why the delivery is deferred. None: it is made, as the probe of the host."""

    def ended(self, host: TenantHost, outcome: AttemptOutcome | None, *, began: float, is_probe: bool) -> None:
        """How a delivery that was made, and began at this monotonic time, has ended. None: it was broken off."""

    def answered(self, host: TenantHost, count: int, *, began: float) -> None:
        """So many deliveries that began then have ended, and none was a probe: the host works."""


class NoCircuits:
    """Every delivery is made."""

    def is_closed(self, host: TenantHost) -> bool:  # noqa: ARG002 - all are
        return True

    async def admit(self, host: TenantHost) -> NotStarted | None:
        raise AssertionError(f"{host} is closed")

    def ended(self, host: TenantHost, outcome: AttemptOutcome | None, *, began: float, is_probe: bool) -> None:
        """Nobody wants to know."""

    def answered(self, host: TenantHost, count: int, *, began: float) -> None:
        """Nor that."""


class HostRateLimits(Protocol):
    """The rate limits of hosts, by tenant."""

    def is_limited(self, host: TenantHost) -> bool:
        """Whether a delivery needs a token. Asked for each delivery."""

    async def admit(self, host: TenantHost, *, is_new: bool) -> NotStarted | None:
        """Where it is limited: why the delivery is deferred. None: it is made. `is_new`: it was never deferred."""

    def give_back(self, host: TenantHost) -> None:
        """A delivery that was admitted was not made."""


class NoRateLimits:
    """Every delivery is made."""

    def is_limited(self, host: TenantHost) -> bool:  # noqa: ARG002 - none is
        return False

    async def admit(self, host: TenantHost, *, is_new: bool) -> NotStarted | None:  # noqa: ARG002 - never asked
        raise AssertionError(f"{host} is not limited")

    def give_back(self, host: TenantHost) -> None:
        """Nothing was taken."""


class HostBackoff:
    """Remembers for which hosts a tenant had no slot free: its next deliveries to them are put back without waiting.

    Without it, deliveries that wait for a host that hangs would take all slots of their tenant, one batch after the
    other. Begins when a delivery got no slot in time. Ends with a delivery to the same host, or after BACKOFF_SECONDS.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._ends: dict[TenantHost, float] = {}

    def __len__(self) -> int:
        return len(self._ends)

    def begin(self, busy: TenantHost) -> None:
        now = self._monotonic()
        self._ends = {each: end for each, end in self._ends.items() if end > now}
        self._ends[busy] = now + BACKOFF_SECONDS

    def end(self, free: TenantHost) -> None:
        if self._ends:
            self._ends.pop(free, None)

    def holds(self, tenant_host: TenantHost) -> bool:
        return bool(self._ends) and self._ends.get(tenant_host, 0.0) > self._monotonic()


class Hosts:
    """Makes deliveries to hosts that are fit for one, and notes how they end. Shared by all targets."""

    def __init__(self, circuits: HostCircuits | None = None, rates: HostRateLimits | None = None) -> None:
        self._circuits = circuits or NoCircuits()
        self._rates = rates or NoRateLimits()
        self._backoff = HostBackoff()

    async def send(
        self,
        tenant_host: TenantHost,
        call: Callable[[], Awaitable[AttemptOutcome]],
        *,
        has_breaker: bool,
        is_new: bool,
    ) -> AttemptOutcome:
        """Make the call, or say why it is deferred. `is_new`: it was never deferred."""
        if self._backoff.holds(tenant_host):
            return NotStarted(BACKED_OFF)
        is_probe = has_breaker and not self._circuits.is_closed(tenant_host)
        takes_token = not is_probe and self._rates.is_limited(tenant_host)  # probes are few, and need none
        if is_probe:
            deferred = await self._circuits.admit(tenant_host)
        elif takes_token:
            deferred = await self._rates.admit(tenant_host, is_new=is_new)
        else:
            deferred = None
        if deferred is not None:
            return deferred
        if not has_breaker:
            return await self._call(tenant_host, call, has_token=takes_token)
        outcome: AttemptOutcome | None = None
        began = time.monotonic()
        try:
            outcome = await self._call(tenant_host, call, has_token=takes_token)
        finally:
            self._circuits.ended(tenant_host, outcome, began=began, is_probe=is_probe)
        return probe_outcome(tenant_host.host, outcome) if is_probe else outcome

    def is_open(self, tenant_host: TenantHost, *, has_breaker: bool) -> bool:
        """Whether deliveries may be made without asking further. Who makes one then says how it `ended`."""
        return (
            not self._backoff.holds(tenant_host)
            and (not has_breaker or self._circuits.is_closed(tenant_host))
            and not self._rates.is_limited(tenant_host)
        )

    def ended(
        self, tenant_host: TenantHost, outcome: AttemptOutcome | None, *, began: float, has_breaker: bool
    ) -> None:
        """How a delivery to an open host has ended. None: it was broken off."""
        if outcome is not None:
            self._note(tenant_host, outcome)
        if has_breaker:
            self._circuits.ended(tenant_host, outcome, began=began, is_probe=False)

    def answered(self, tenant_host: TenantHost, count: int, *, began: float, with_breaker: int) -> None:
        """So many deliveries to an open host that began then were answered by one that works."""
        if count:
            self._backoff.end(tenant_host)
        if with_breaker:
            self._circuits.answered(tenant_host, with_breaker, began=began)

    async def _call(
        self, tenant_host: TenantHost, call: Callable[[], Awaitable[AttemptOutcome]], *, has_token: bool
    ) -> AttemptOutcome:
        outcome = await call()
        self._note(tenant_host, outcome)
        if has_token and isinstance(outcome, NotStarted):
            self._rates.give_back(tenant_host)
        return outcome

    def _note(self, tenant_host: TenantHost, outcome: AttemptOutcome) -> None:
        if not isinstance(outcome, NotStarted):
            self._backoff.end(tenant_host)
        elif outcome.is_host_busy:
            self._backoff.begin(tenant_host)
