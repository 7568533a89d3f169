"""What a dispatcher runs in place of a user's handler: one delivery for each attempt, within its time-out."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeGuard

import msgspec

from evertick.contract.target import DEFAULT_METHOD, HTTP_QUEUE, HttpTarget
from evertick.domain.states import Outcome
from evertick.targets.http.host_backoff import HostBackoff, TenantHost, host_of
from evertick.roles.dispatcher.keyring import Keyring
from evertick.executor.handlers.registry import Handler, Handlers
from evertick.executor.handlers.run import Run
from evertick.store.lanes import Leased
from evertick.domain.attempt import Token
from evertick.targets.http.delivery import HttpDelivery
from evertick.targets.http.request import DeliveryRequest
from evertick.targets.http.signing import Secret
from evertick.targets.http.response import Failed
from evertick.domain.attempt import NotStarted, AttemptOutcome

BACKSTOP_SECONDS = 30
"""The worker's own deadline comes so much later: waiting for a slot of the host is not the target's time."""
REMEMBERED_SPECS = 4096


class _Target(msgspec.Struct):
    url: str
    method: str = DEFAULT_METHOD
    headers: dict[str, str] = {}


class _Spec(msgspec.Struct):
    target: _Target


_decoder = msgspec.json.Decoder(_Spec)


class Deliveries(Handlers):
    """The one handler of a dispatcher, whatever an attempt is for. It leaves each verdict to be taken."""

    def __init__(self, keyring: Keyring) -> None:
        super().__init__()
        self._handlers[HTTP_QUEUE] = _Delivering(self._deliver)
        self._keyring = keyring
        self._backoff = HostBackoff()
        self._verdicts: dict[Token, AttemptOutcome] = {}
        self._delivery: HttpDelivery | None = None

    def open(self, delivery: HttpDelivery) -> None:
        self._delivery = delivery

    async def close(self) -> None:
        if self._delivery is not None:
            await self._delivery.close()

    def find(self, name: str | None) -> Handler | None:  # noqa: ARG002 - the worker's
        return self._handlers[HTTP_QUEUE]

    def take(self, leased: Leased) -> AttemptOutcome | None:
        """How the attempt's delivery ended. None: it was stopped before."""
        return self._verdicts.pop((leased.lane_id, leased.seq), None)

    async def _deliver(self, leased: Leased, run: Run) -> None:
        self._verdicts[leased.lane_id, leased.seq] = await self._judged(leased, run)

    async def _judged(self, leased: Leased, run: Run) -> AttemptOutcome:
        secrets = self._keyring.secrets_of(leased)
        if secrets is None:
            return NotStarted("not tried: the secrets of its tenant are not known here")
        request = request_of(leased, run, secrets)
        if request is None:
            return Failed("not called: the job's target cannot be read", retryable=False)
        seconds = leased.timeout_seconds - BACKSTOP_SECONDS
        verdict = await self._send(request, seconds)
        if _is_timeout(verdict) and seconds == self._keyring.timeout_max(leased.tenant_id):
            return replace(verdict, error=f"{verdict.error}, which is the tenant's http_timeout_max_seconds")
        return verdict

    async def _send(self, request: DeliveryRequest, seconds: float) -> AttemptOutcome:
        wanted = TenantHost(request.tenant_id, host_of(request.target.url))
        if self._backoff.holds(wanted):
            return NotStarted("not tried: others of its tenant have just waited for its host in vain")
        assert self._delivery is not None
        verdict = await self._delivery.deliver(request, seconds)
        if not isinstance(verdict, NotStarted):
            self._backoff.end(wanted)
        elif verdict.is_host_busy:
            self._backoff.begin(wanted)
        return verdict


class _Delivering(Handler):
    """Hands the attempt through as it was leased: a delivery needs the job's target, which no handler is told."""

    __slots__ = ("_deliver",)

    def __init__(self, deliver: Callable[[Leased, Run], Awaitable[None]]) -> None:
        super().__init__(HTTP_QUEUE, deliver)
        self._deliver = deliver

    def call(self, leased: Leased, run: Run) -> Any:
        return self._deliver(leased, run)


def with_backstop(leased: Leased, most_seconds: int) -> Leased:
    """The attempt as the worker is to time it. Its tenant's deliveries may take so many seconds, whatever it says."""
    return leased._replace(timeout_seconds=min(leased.timeout_seconds, most_seconds) + BACKSTOP_SECONDS)


def _is_timeout(verdict: AttemptOutcome) -> TypeGuard[Failed]:
    return isinstance(verdict, Failed) and verdict.outcome is Outcome.TIMED_OUT


def request_of(leased: Leased, run: Run, secrets: tuple[Secret, ...]) -> DeliveryRequest | None:
    """What is sent for an attempt. None: its job has no HTTP target."""
    target = _target_in(leased.spec or "")
    if target is None:
        return None
    return DeliveryRequest(
        tenant_id=leased.tenant_id,
        target=target,
        body=b"null" if leased.payload is None else leased.payload.encode(),
        secrets=secrets,
        run_id=run.run_id,
        job_id=run.job_id,
        job_name=run.name,
        scheduled_at=run.fire_at,
        attempt=run.attempt,
        reason=run.reason,
        idempotency_key=run.idempotency_key,
        fencing_token=leased.seq,
    )


@lru_cache(maxsize=REMEMBERED_SPECS)
def _target_in(spec: str) -> HttpTarget | None:
    try:
        target = _decoder.decode(spec).target
    except msgspec.DecodeError:  # and ValidationError, which is one
        return None
    return HttpTarget(target.url, target.method, target.headers)
