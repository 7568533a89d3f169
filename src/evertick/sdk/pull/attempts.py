"""Attempts between the API's words and those of `roles.worker`, which runs them: the same handlers, called the same."""

from datetime import datetime, timedelta
from typing import Any

import msgspec

from evertick.client.request import encode
from evertick.contract.workers import LeasedAttempt, OutcomeReport
from evertick.domain.ids import Prefix, format_token, parse_id, parse_token
from evertick.executor.handlers.registry import Handler, Handlers
from evertick.executor.handlers.run import Run
from evertick.store.lanes import Leased
from evertick.domain.retry import Retry, GiveUp
from evertick.store.outcomes import Ending

LONGEST_WAIT_SECONDS = 86_400.0
# The server knows the job's policy. By this one, an ending tells apart what cannot be retried and what has to wait.
_ANY_RETRY = '{"max_retries": 1000000000, "backoff": "fixed", "delay_seconds": 0, "max_delay_seconds": 0}'


class RemoteRun(Run):
    """A run whose idempotency key was worked out by the server."""

    __slots__ = ()

    @property
    def idempotency_key(self) -> str:
        return self._leased.key_template or ""


class RemoteHandler(Handler):
    """Another handler, called with a remote run."""

    __slots__ = ("_inner",)

    def __init__(self, inner: Handler) -> None:
        self.name = inner.name
        self.is_async = inner.is_async
        self._inner = inner

    def call(self, leased: Leased, run: Run) -> Any:
        return self._inner.call(leased, RemoteRun(leased, run.started_at))


class RemoteHandlers(Handlers):
    """The same handlers, for attempts that came over HTTP."""

    def __init__(self, handlers: Handlers) -> None:
        super().__init__()
        self._handlers = {name: RemoteHandler(handler) for name, handler in handlers.items()}


def leased_of(given: LeasedAttempt, number: int, now_at: datetime) -> Leased:
    """An attempt as the execution takes it, as a lease of its own by this number: each may be lost alone."""
    lane_id, seq = parse_token(given.token)
    seconds = given.timeout_seconds or (given.deadline - now_at).total_seconds()
    return Leased(
        lane_id=lane_id,
        seq=seq,
        lease_id=number,
        job_id=parse_id(Prefix.JOB, given.job_id),
        fire_at=given.scheduled_at,
        due_at=given.scheduled_at,
        spec_version=0,
        reason=given.reason,
        attempt=given.attempt,
        name=given.name,
        handler=given.handler,
        timezone="UTC",
        key_template=given.idempotency_key,
        timeout_seconds=max(1, round(seconds)),
        retry=_ANY_RETRY,
        payload=None if given.payload is None else encode(given.payload).decode(),
        spec=None,
        replays_at=None,
        is_over=False,
    )


def leased_at(given: LeasedAttempt) -> datetime:
    """What the database's clock showed when the attempt was leased."""
    return given.deadline - timedelta(seconds=given.timeout_seconds)


def report_of(ending: Ending) -> OutcomeReport:
    """An ending as the API takes it."""
    wait = ending.then.delay.total_seconds() if isinstance(ending.then, Retry) else 0.0
    return OutcomeReport(
        token=format_token(ending.lane_id, ending.seq),
        result=ending.result,
        started_at=ending.started_at,
        finished_at=ending.finished_at,
        error=ending.error,
        retryable=not isinstance(ending.then, GiveUp),
        retry_after_seconds=min(wait, LONGEST_WAIT_SECONDS) or None,
        output=None if ending.excerpt is None else _output(ending.excerpt),
    )


def _output(excerpt: str) -> Any:
    """The result that an excerpt shows; if it was cut or never was JSON, the text."""
    try:
        return msgspec.json.decode(excerpt)
    except msgspec.DecodeError:
        return excerpt
