"""What a dispatcher runs in place of a user's handler: one delivery for each attempt, within the job's timeout."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from evertick.domain.job.target import HTTP_QUEUE, HttpTarget
from evertick.roles.dispatcher.jams import Jams
from evertick.roles.dispatcher.keyring import Keyring
from evertick.roles.worker.handlers import Handler, Handlers
from evertick.roles.worker.run import Run
from evertick.store.lanes import Leased
from evertick.store.outcomes import Token
from evertick.targets.http.delivery import HttpDelivery
from evertick.targets.http.request import DeliveryRequest
from evertick.targets.http.verdict import Failed, NotTried, Verdict

BACKSTOP_SECONDS = 30
"""The worker's own deadline comes so much later: waiting for a slot of the host is not the target's time."""


class _Target(msgspec.Struct):
    url: str
    method: str
    headers: dict[str, str]


class _Spec(msgspec.Struct):
    target: _Target


_decoder = msgspec.json.Decoder(_Spec)


class Deliveries(Handlers):
    """The one handler of a dispatcher, whatever an attempt is for. It leaves each verdict to be taken."""

    def __init__(self, keyring: Keyring) -> None:
        super().__init__()
        self._handlers[HTTP_QUEUE] = _Delivering(self._deliver)
        self._keyring = keyring
        self._verdicts: dict[Token, Verdict] = {}
        self._delivery: HttpDelivery | None = None
        self._jams = Jams()

    def open(self, delivery: HttpDelivery) -> None:
        self._delivery = delivery

    async def close(self) -> None:
        if self._delivery is not None:
            await self._delivery.close()

    def find(self, name: str | None) -> Handler | None:  # noqa: ARG002 - the worker's
        return self._handlers[HTTP_QUEUE]

    def take(self, leased: Leased) -> Verdict | None:
        """How the attempt's delivery ended. None: it was stopped before."""
        return self._verdicts.pop((leased.lane_id, leased.seq), None)

    async def _deliver(self, leased: Leased, run: Run) -> None:
        request = request_of(leased, run, self._keyring)
        verdict = (
            Failed("not called: the job's target cannot be read", retryable=False)
            if request is None
            else await self._send(request, leased.timeout_seconds - BACKSTOP_SECONDS)
        )
        self._verdicts[leased.lane_id, leased.seq] = verdict

    async def _send(self, request: DeliveryRequest, deadline_seconds: float) -> Verdict:
        assert self._delivery is not None
        url = request.target.url
        if self._jams.holds(url):
            return NotTried("not tried: others have just waited for its host in vain")
        verdict = await self._delivery.deliver(request, deadline_seconds)
        if isinstance(verdict, NotTried):
            self._jams.begin(url)
        else:
            self._jams.end(url)
        return verdict


class _Delivering(Handler):
    """Hands the attempt through as it was leased: a delivery needs the job's target, which no handler is told."""

    __slots__ = ("_deliver",)

    def __init__(self, deliver: Callable[[Leased, Run], Awaitable[None]]) -> None:
        super().__init__(HTTP_QUEUE, deliver)
        self._deliver = deliver

    def call(self, leased: Leased, run: Run) -> Any:
        return self._deliver(leased, run)


def with_backstop(leased: Leased) -> Leased:
    """The attempt as the worker is to time it."""
    return leased._replace(timeout_seconds=leased.timeout_seconds + BACKSTOP_SECONDS)


def request_of(leased: Leased, run: Run, keyring: Keyring) -> DeliveryRequest | None:
    """What is sent for an attempt. None: its job has no HTTP target."""
    try:
        target = _decoder.decode(leased.spec or "").target
    except msgspec.DecodeError:  # and ValidationError, which is one
        return None
    return DeliveryRequest(
        target=HttpTarget(target.url, target.method, target.headers),
        body=b"null" if leased.payload is None else leased.payload.encode(),
        secrets=keyring.secrets_of(leased),
        run_id=run.run_id,
        job_id=run.job_id,
        job_name=run.name,
        scheduled_at=run.fire_at,
        attempt=run.attempt,
        reason=run.reason,
        idempotency_key=run.idempotency_key,
        fencing_token=run.fencing_token,
    )
