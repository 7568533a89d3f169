"""The HTTP target: delivers attempts as signed webhooks, each within its job's timeout and its tenant's maximum."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import TypeGuard
from urllib.parse import urlsplit

import msgspec

from evertick.contract.target import DEFAULT_METHOD, HttpTarget
from evertick.domain.attempt import Attempt, AttemptOutcome, Failed, NotStarted
from evertick.domain.breaker import TenantHost
from evertick.domain.ids import Prefix, format_id, format_run_id
from evertick.domain.schedule.instants import to_us
from evertick.domain.states import Outcome
from evertick.runtime.tracing import traceparent_of
from evertick.targets.hosts import Hosts
from evertick.targets.http.delivery import HttpDelivery
from evertick.targets.http.request import DeliveryRequest
from evertick.targets.http.signing import Secret

REMEMBERED = 4096
"""Specifications, and URLs."""
HTTP_PORT, HTTPS_PORT = 80, 443


class _Target(msgspec.Struct):
    url: str
    method: str = DEFAULT_METHOD
    headers: dict[str, str] = {}
    circuit_breaker: bool = True


class _Spec(msgspec.Struct):
    target: _Target


_decoder = msgspec.json.Decoder(_Spec)


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
        hosts: Hosts | None = None,
    ) -> None:
        self._hosts = hosts or Hosts()
        self._delivery = delivery
        self._secrets_of = secrets_of
        self._timeout_max = timeout_max

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
        outcome = await self._hosts.send(
            TenantHost(request.tenant_id, host_of(request.target.url)),
            lambda: self._delivery.deliver(request, seconds),
            has_breaker=request.target.circuit_breaker,
            is_new=not attempt.deferrals,
        )
        if _is_timeout(outcome) and attempt.timeout_seconds >= longest:
            return replace(outcome, error=f"{outcome.error}, which is the tenant's http_timeout_max_seconds")
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
