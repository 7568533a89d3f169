"""What a handler is told about the run it executes, and the outcome that follows from what it returned or raised.

Two exceptions let a handler say how to go on.
"""

import logging
import traceback
from datetime import datetime, timedelta
from typing import Any, assert_never

import msgspec

from evertick.domain.attempt import Attempt, AttemptOutcome, Deferred, Failed, HandedOver, NotStarted, Succeeded
from evertick.domain.errors import EvertickError
from evertick.domain.ids import Prefix, format_id, format_run_id, format_token
from evertick.domain.job.checks import UNSTORABLE
from evertick.domain.schedule.instants import to_us
from evertick.domain.states import Outcome
from evertick.runtime.logs import run_fields
from evertick.runtime.tracing import traceparent_of

EXCERPT_BYTES = 1024
ERROR_BYTES = 4096
_FRAMES = 12


class DoNotRetry(EvertickError):  # noqa: N818 - an instruction
    """Raised by a handler: this attempt failed, and trying again cannot help. The run becomes a dead letter."""


class RetryLater(EvertickError):  # noqa: N818 - as DoNotRetry
    """Raised by a handler: this attempt failed, and the next one must not come before so long. It counts as a try."""

    def __init__(self, after: timedelta | float, message: str = "") -> None:
        self.after = after if isinstance(after, timedelta) else timedelta(seconds=after)
        super().__init__(message or f"try again after {self.after}")


class RunLogger(logging.LoggerAdapter[logging.Logger]):
    """Puts the run in front of each message, and its fields on each record."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if not self.isEnabledFor(level):
            return
        fields = self.extra or {}
        before = f"{fields.get('job_name')} {fields.get('run_id')}: "
        # With arguments the message is a format, and a job's name may have a percent sign.
        text = f"{before.replace('%', '%%') if args else before}{msg}"
        kwargs["extra"] = {**fields, **(kwargs.get("extra") or {})}
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1  # the caller is the handler, not this method
        self.logger.log(level, text, *args, **kwargs)


class Run:
    """One attempt of a run. What costs anything is worked out when it is asked for: most handlers need little of it."""

    __slots__ = ("_attempt", "_logger", "_payload", "started_at")

    def __init__(self, attempt: Attempt, started_at: datetime) -> None:
        self._attempt = attempt
        self._logger: RunLogger | None = None
        self._payload: Any = msgspec.UNSET
        self.started_at = started_at

    def __repr__(self) -> str:
        return f"<Run {self.name} {self.run_id} attempt {self.attempt}>"

    @property
    def name(self) -> str:
        """The job's name."""
        return self._attempt.name

    @property
    def job_id(self) -> str:
        return format_id(Prefix.JOB, self._attempt.job_id)

    @property
    def run_id(self) -> str:
        return format_run_id(self._attempt.job_id, to_us(self._attempt.fire_at))

    @property
    def fire_at(self) -> datetime:
        """The nominal fire time, in UTC; it is the same in all attempts."""
        return self._attempt.fire_at

    @property
    def attempt(self) -> int:
        """Which try of this run it is, from 1."""
        return self._attempt.attempt

    @property
    def reason(self) -> str:
        """Why the run exists: tick, late, catch_up, manual or replay."""
        return self._attempt.reason

    @property
    def payload(self) -> Any:
        if self._payload is msgspec.UNSET:
            text = self._attempt.payload
            self._payload = None if text is None else msgspec.json.decode(text)
        return self._payload

    @property
    def idempotency_key(self) -> str:
        """Equal in all attempts of the run, and in a replay of it: a receiver that has seen it need not act again."""
        return self._attempt.idempotency_key

    @property
    def fencing_token(self) -> str:
        """`lane.seq`. The second number grows with every attempt of the job: refuse one smaller than you have seen."""
        return format_token(*self._attempt.token)

    @property
    def traceparent(self) -> str:
        """W3C's trace context of this attempt, for the headers of what the handler calls."""
        return traceparent_of(self._attempt)

    @property
    def deadline(self) -> datetime:
        """When the attempt is given up as timed out, by the database's clock."""
        return self.started_at + timedelta(seconds=self._attempt.timeout_seconds)

    @property
    def logger(self) -> RunLogger:
        """Logs to `evertick.run` with the run's name and id."""
        if self._logger is None:
            self._logger = RunLogger(logging.getLogger("evertick.run"), run_fields(self._attempt))
        return self._logger


def succeeded(value: Any) -> Succeeded:
    """The handler returned something."""
    return Succeeded(excerpt_of(value))


def failed(error: BaseException) -> Failed:
    """The handler raised, or could not be called."""
    wait = error.after if isinstance(error, RetryLater) else None
    return Failed(error_of(error), retryable=not isinstance(error, DoNotRetry), wait=wait)


def unstorable(outcome: AttemptOutcome, error: BaseException) -> Failed:
    """What is recorded in place of an outcome that cannot be stored: a failure that says so."""
    text = _cut(clean(f"its outcome, {_result(outcome)}, could not be stored: {_text(error)}"), ERROR_BYTES)
    return Failed(text, retryable=not isinstance(outcome, Failed) or outcome.retryable)


def _result(outcome: AttemptOutcome) -> Outcome:
    match outcome:
        case Succeeded():
            return Outcome.SUCCESS
        case Failed():
            return outcome.result
        case Deferred() | NotStarted():
            return Outcome.DEFERRED
        case HandedOver():
            raise AssertionError("what was handed over has no outcome yet")
        case _:
            assert_never(outcome)


def excerpt_of(value: Any) -> str:
    """The beginning of a result, as compact JSON where it can be that."""
    try:
        text = msgspec.json.encode(value)[:EXCERPT_BYTES].decode(errors="ignore")
    except Exception:  # noqa: BLE001 - whatever a user's object does when it is looked at
        text = _cut(_repr(value), EXCERPT_BYTES)
    return clean(text)


def error_of(error: BaseException) -> str:
    """`Type: message`, then the innermost lines of the traceback as far as they fit."""
    head = _cut(clean(f"{type(error).__name__}: {_text(error)}".removesuffix(": ")), ERROR_BYTES)
    # The outermost frame is the executor's own.
    frames = traceback.format_tb(error.__traceback__.tb_next, -_FRAMES) if error.__traceback__ else []
    tail = clean("".join(frames)).rstrip()
    room = ERROR_BYTES - len(head.encode()) - 1
    if not tail or room <= 0:
        return head
    return f"{head}\n{tail.encode()[-room:].decode(errors='ignore')}"


def clean(text: str) -> str:
    """Without what PostgreSQL cannot hold: NUL, and halves of surrogate pairs."""
    return UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def _repr(value: Any) -> str:
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - as in excerpt_of
        return f"<{type(value).__name__}>"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - as in excerpt_of
        return "(it has no text)"


def _cut(text: str, most: int) -> str:
    return text.encode(errors="replace")[:most].decode(errors="ignore")
