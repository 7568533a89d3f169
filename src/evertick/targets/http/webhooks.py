"""The HTTP target: delivers attempts as signed webhooks, each within its job's timeout and its tenant's maximum."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Protocol, TypeGuard
from urllib.parse import urlsplit

import msgspec

from evertick.contract.target import DEFAULT_METHOD, HttpTarget
from evertick.domain.attempt import Attempt, AttemptOutcome, Failed, NotStarted
from evertick.domain.breaker import TenantHost, probe_outcome
from evertick.domain.ids import Prefix, format_id, format_run_id
from evertick.domain.schedule.instants import to_us
from evertick.domain.states import Outcome
from evertick.runtime.tracing import traceparent_of
from evertick.targets.http.delivery import HttpDelivery
from evertick.targets.http.request import DeliveryRequest
from evertick.targets.http.signing import Secret

REMEMBERED = 4096
"""Specifications, and URLs."""
BACKOFF_SECONDS = 5.0
BACKED_OFF = "deferred: its host is backed off"
HTTP_PORT, HTTPS_PORT = 80, 443


class _Target(msgspec.Struct):
    url: str
    method: str = DEFAULT_METHOD
    headers: dict[str, str] = {}
    circuit_breaker: bool = True


class _Spec(msgspec.Struct):
    target: _Target


_decoder = msgspec.json.Decoder(_Spec)


class HostCircuits(Protocol):
    """The circuit breakers of hosts, by tenant."""

    def is_closed(self, host: TenantHost) -> bool:
        """Whether a delivery may be made without asking further. Asked for each delivery."""

    async def admit(self, host: TenantHost) -> NotStarted | None:
        """Where it is not closed: why the delivery is deferred. None: it is made, as the probe of the host."""

    def ended(self, host: TenantHost, outcome: AttemptOutcome | None, *, began: float, is_probe: bool) -> None:
        """How a delivery that was made, and began at this monotonic time, has ended. None: it was broken off."""


class NoCircuits:
    """Every delivery is made."""

    def is_closed(self, host: TenantHost) -> bool:  # noqa: ARG002 - all are
        return True

    async def admit(self, host: TenantHost) -> NotStarted | None:
        raise AssertionError(f"{host} is closed")

    def ended(self, host: TenantHost, outcome: AttemptOutcome | None, *, began: float, is_probe: bool) -> None:
        """Nobody wants to know."""


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


@lru_cache(maxsize=REMEMBERED)
def host_of(url: str) -> str:
    """The host in lower case, with its port unless that is 443."""
    try:
        parts = urlsplit(url)
        port = parts.port or (HTTP_PORT if parts.scheme == "http" else HTTPS_PORT)
        name = parts.netloc.lower() if parts.port is None else parts.netloc.lower().rpartition(":")[0]
    except ValueError:
        return url  # the guard says what is wrong with it
    return name if port == HTTPS_PORT else f"{name}:{port}"


class WebhookTarget:
    """Sends each attempt once. `secrets_of` and `timeout_max` are by tenant; without secrets nothing is sent."""

    def __init__(
        self,
        delivery: HttpDelivery,
        secrets_of: Callable[[int], tuple[Secret, ...] | None],
        timeout_max: Callable[[int], int],
        circuits: HostCircuits | None = None,
        rates: HostRateLimits | None = None,
    ) -> None:
        self._circuits = circuits or NoCircuits()
        self._rates = rates or NoRateLimits()
        self._delivery = delivery
        self._secrets_of = secrets_of
        self._timeout_max = timeout_max
        self._backoff = HostBackoff()

    async def close(self) -> None:
        await self._delivery.close()

    async def deliver(self, attempt: Attempt) -> AttemptOutcome:
        secrets = self._secrets_of(attempt.tenant_id)
        if secrets is None:
            return NotStarted("deferred: the secrets of its tenant are not known here")
        request = request_of(attempt, secrets)
        if request is None:
            return Failed("not called: the job's target cannot be read", retryable=False)
        longest = self._timeout_max(attempt.tenant_id)
        seconds = min(attempt.timeout_seconds, longest)
        outcome = await self._send(request, seconds, is_new=not attempt.deferrals)
        if _is_timeout(outcome) and attempt.timeout_seconds >= longest:
            return replace(outcome, error=f"{outcome.error}, which is the tenant's http_timeout_max_seconds")
        return outcome

    async def _send(self, request: DeliveryRequest, seconds: float, *, is_new: bool) -> AttemptOutcome:
        tenant_host = TenantHost(request.tenant_id, host_of(request.target.url))
        if self._backoff.holds(tenant_host):
            return NotStarted(BACKED_OFF)
        has_breaker = request.target.circuit_breaker
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
            return await self._call(tenant_host, request, seconds, has_token=takes_token)
        outcome: AttemptOutcome | None = None
        began = time.monotonic()
        try:
            outcome = await self._call(tenant_host, request, seconds, has_token=takes_token)
        finally:
            self._circuits.ended(tenant_host, outcome, began=began, is_probe=is_probe)
        return probe_outcome(tenant_host.host, outcome) if is_probe else outcome

    async def _call(
        self, tenant_host: TenantHost, request: DeliveryRequest, seconds: float, *, has_token: bool
    ) -> AttemptOutcome:
        outcome = await self._delivery.deliver(request, seconds)
        if not isinstance(outcome, NotStarted):
            self._backoff.end(tenant_host)
            return outcome
        if has_token:
            self._rates.give_back(tenant_host)
        if outcome.is_host_busy:
            self._backoff.begin(tenant_host)
        return outcome


def _is_timeout(outcome: AttemptOutcome) -> TypeGuard[Failed]:
    return isinstance(outcome, Failed) and outcome.result is Outcome.TIMED_OUT


def request_of(attempt: Attempt, secrets: tuple[Secret, ...]) -> DeliveryRequest | None:
    """What is sent for an attempt. None: its job has no HTTP target."""
    target = _target_in(attempt.spec or "")
    if target is None:
        return None
    return DeliveryRequest(
        tenant_id=attempt.tenant_id,
        target=target,
        body=b"null" if attempt.payload is None else attempt.payload.encode(),
        secrets=secrets,
        run_id=format_run_id(attempt.job_id, to_us(attempt.fire_at)),
        job_id=format_id(Prefix.JOB, attempt.job_id),
        job_name=attempt.name,
        scheduled_at=attempt.fire_at,
        attempt=attempt.attempt,
        reason=attempt.reason,
        idempotency_key=attempt.idempotency_key,
        fencing_token=attempt.token[1],
        traceparent=traceparent_of(attempt),
    )


@lru_cache(maxsize=REMEMBERED)
def _target_in(spec: str) -> HttpTarget | None:
    try:
        target = _decoder.decode(spec).target
    except msgspec.DecodeError:  # and ValidationError, which is one
        return None
    return HttpTarget(target.url, target.method, target.headers, target.circuit_breaker)
