"""Delivers one attempt to an HTTP target and says how it ended.

Duty: send one request, read at most the beginning of its response, decide what it means. No database, no retries of its
own.

Invariants: one deadline spans resolving, connecting, TLS, headers and body; an answer costs a bounded amount of memory
whatever its size; nothing goes to an address that the guard has not let pass; a redirect is an answer like any other.

Steps: check the URL, wait for one of its tenant's slots for the host, sign, send, read, decide the outcome. A kept
connection may have been closed by the other side just as we used it. Then the request is sent once more over a new one,
with the same `Idempotency-Key`, by which a receiver that did act recognises it.

On cancellation and on every failure the connection is closed. A slow host holds the slots that each tenant has for it,
and nothing else.
"""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import aiohttp

from evertick.contract.events import SOURCE
from evertick.domain.attempt import AttemptOutcome, NotStarted
from evertick.domain.fairness import TenantCounts
from evertick.domain.job.faults import Faults
from evertick.domain.job.http_target import check_headers
from evertick.runtime.clock import Clock, now_of
from evertick.targets.egress.guard import Destination, DestinationRefused, EgressPolicy, Guard
from evertick.targets.egress.resolution import MAX_PER_TENANT, TooManyLookups
from evertick.targets.egress.slots import Busy, Slots, one_tenant
from evertick.targets.http.connections import Connections, Disconnected, Exchange, send
from evertick.targets.http.request import Sendable
from evertick.targets.http.response import EXCERPT_BYTES, FAILURES, TargetResponse, failure_of, outcome_of, timed_out

READ_BYTES = 65_536
"""No more of a body is read; a longer one costs its sender the connection."""
REMEMBERED_HEADERS = 4096
NO_SLOT = "deferred: no free slot for its host"


@dataclass(frozen=True, slots=True)
class DeliverySettings:
    """How deliveries use the network. `source` begins the CloudEvents source of every run.

    A host gets at most `per_host` deliveries of a tenant at once, and `per_host_total` of all tenants.
    """

    per_host: int = 32
    per_host_total: int = 128
    host_wait_seconds: float = 10.0
    most_open: int = 512
    keep_alive_seconds: float = 15.0
    source: str = SOURCE
    tls: ssl.SSLContext | None = None


class HttpDelivery:
    """Delivers any number of attempts at once. Made and closed inside a running loop."""

    def __init__(
        self,
        guard: Guard,
        clock: Clock,
        settings: DeliverySettings | None = None,
        tenants: Callable[[], TenantCounts] = one_tenant,
    ) -> None:
        self._settings = settings = settings or DeliverySettings()
        self._guard = guard
        self._clock = clock
        self.slots: Slots[str] = Slots(settings.per_host_total, settings.per_host, settings.host_wait_seconds, tenants)
        self.connections = Connections(
            guard, most_open=settings.most_open, keep_alive_seconds=settings.keep_alive_seconds, tls=settings.tls
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self.connections.close()

    def permit(self, policy: EgressPolicy) -> None:
        """From now on go where this policy lets deliveries go. What is under way is not stopped."""
        if policy != self._guard.policy:
            self._guard.policy = policy
            self.connections.renew()

    async def deliver(self, attempt: Sendable, deadline_seconds: float) -> AttemptOutcome:
        """Deliver, within the deadline once the host has a slot free."""
        try:
            _check_headers(tuple(attempt.target.headers.items()))
            destination = self._guard.destination(attempt.target.url)
        except DestinationRefused as error:
            return failure_of(error)
        try:
            await self.slots.take(destination.origin, attempt.tenant_id)
        except Busy:
            return NotStarted(NO_SLOT, is_host_busy=True)
        try:
            return await self._within(attempt, destination, deadline_seconds)
        finally:
            self.slots.give_back(destination.origin, attempt.tenant_id)

    async def _within(self, attempt: Sendable, destination: Destination, deadline_seconds: float) -> AttemptOutcome:
        try:
            async with asyncio.timeout(deadline_seconds):
                response = await self._call(attempt, destination)
        except TimeoutError:
            return timed_out(deadline_seconds)
        except TooManyLookups:
            return NotStarted(f"deferred: {MAX_PER_TENANT} names of its tenant's targets are being looked up")
        except FAILURES as error:
            return failure_of(error)
        return outcome_of(response, now_of(self._clock))

    async def _call(self, attempt: Sendable, destination: Destination) -> TargetResponse:
        exchange = Exchange(attempt.tenant_id, destination.origin)
        try:
            return await self._exchange(attempt, destination, exchange)
        except Disconnected:
            if exchange.is_new:
                raise
        return await self._exchange(attempt, destination, exchange, fresh=True)

    async def _exchange(
        self, attempt: Sendable, destination: Destination, exchange: Exchange, *, fresh: bool = False
    ) -> TargetResponse:
        session = self.connections.begin(exchange, fresh=fresh)
        try:
            headers = attempt.headers_sent(now_of(self._clock), self._settings.source)
            response = await send(session, attempt.target.method, destination.url, headers, attempt.body_sent())
            try:
                return TargetResponse(response.status, response.headers, await _beginning(response.content))
            finally:
                response.close()  # if all was read, the connection is back in the pool by then
        finally:
            self.connections.end(exchange)


async def _beginning(content: aiohttp.StreamReader) -> bytes:
    """Read the body to its end, or up to READ_BYTES, and keep what an excerpt needs."""
    kept, left = b"", READ_BYTES
    while left and (chunk := await content.read(left)):
        left -= len(chunk)
        kept += chunk[: EXCERPT_BYTES - len(kept)]
    return kept


@lru_cache(maxsize=REMEMBERED_HEADERS)
def _check_headers(given: tuple[tuple[str, str], ...]) -> None:
    """Refuse headers that the API refuses too, should any have come in by another way."""
    faults = Faults()
    check_headers(dict(given), "", faults)
    if faults:
        raise DestinationRefused(f"the header {faults.found[0].pointer.removeprefix('/')} {faults.found[0].reason}")
