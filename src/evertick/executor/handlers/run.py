"""What a handler is told about the run it executes, and the outcome that follows from what it returned or raised.

Two exceptions let a handler say how to go on.
"""

import asyncio
import logging
import os
import traceback
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, assert_never

import msgspec

from evertick.domain.attempt import Attempt, AttemptOutcome, Deferred, Failed, HandedOver, NotStarted, Succeeded
from evertick.domain.errors import EvertickError
from evertick.domain.ids import Prefix, format_id, format_run_id, format_token
from evertick.domain.job.checks import MAX_DEPTH, UNSTORABLE
from evertick.domain.limits import MAX_OUTPUT_BYTES
from evertick.domain.schedule.instants import to_us
from evertick.domain.states import Outcome
from evertick.runtime.logs import run_fields
from evertick.runtime.tracing import traceparent_of

logger = logging.getLogger("evertick.worker")

EXCERPT_BYTES = 1024
ERROR_BYTES = 4096
PROGRESS_CHARACTERS = 200
_FRAMES = 12
_OWN_FILES = f"{Path(__file__).parents[2]}{os.sep}"
_DELIVERING = tuple(f"{_OWN_FILES}{package}{os.sep}" for package in ("roles", "targets"))


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


class HandlerCall(Protocol):
    """The call of a handler, as the executor sees it: `loop` is that of the worker, for a handler in a thread."""

    progress: str | None
    loop: asyncio.AbstractEventLoop | None


class Run:
    """One attempt of a run. What costs anything is worked out when it is asked for: most handlers need little of it."""

    __slots__ = ("_attempt", "_call", "_logger", "_payload", "started_at")

    def __init__(self, attempt: Attempt, started_at: datetime, call: HandlerCall | None = None) -> None:
        self._attempt = attempt
        self._call = call
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

    def progress(self, text: object) -> None:
        """Say how far it is, as in "3 of 10". Lists of runs show the latest text while the attempt runs.

        It may be called often, from any thread: a worker tells the latest texts at most once a second.
        """
        if self._call is not None:
            self._call.progress = shown_progress(str(text))

    @property
    def logger(self) -> RunLogger:
        """Logs to `evertick.run` with the run's name and id."""
        if self._logger is None:
            self._logger = RunLogger(logging.getLogger("evertick.run"), run_fields(self._attempt))
        return self._logger


def succeeded(value: Any, handler: str, max_bytes: int = MAX_OUTPUT_BYTES) -> Succeeded:
    """The handler returned something. Of what cannot be kept the beginning is: the attempt succeeded all the same."""
    try:
        output = to_output(value, max_bytes)
    except Unkept as unkept:
        logger.warning("what handler %r returned is not kept: %s", handler, unkept)
        return Succeeded(excerpt_of(value))
    return Succeeded(output=output)


class Unkept(EvertickError):  # noqa: N818 - says what is wrong
    """An output that is no JSON, or too long."""


def to_output(value: Any, max_bytes: int = MAX_OUTPUT_BYTES) -> str:
    """What a handler returned as JSON; Unkept says why that cannot be kept."""
    try:
        return _json_of(value, max_bytes)
    except Unkept:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a user's object does when it is looked at
        raise Unkept(f"it cannot be written as JSON: {_text(error)}") from None


def _json_of(value: Any, max_bytes: int) -> str:
    encoded = msgspec.json.encode(value, enc_hook=dumped)
    if len(encoded) > max_bytes:
        raise Unkept(f"as JSON it has {len(encoded):,} bytes, and at most {max_bytes:,} are kept")
    decoded = msgspec.json.decode(encoded)  # refuses a msgspec.Raw that is no JSON
    if encoded.count(b"[") + encoded.count(b"{") > MAX_DEPTH and _is_deep(decoded):
        raise Unkept(f"it is nested more than {MAX_DEPTH} levels deep")
    return encoded.decode()


def _is_deep(value: Any) -> bool:
    """Whether JSON is nested deeper than programs can be expected to read."""
    level = [value]
    for _ in range(MAX_DEPTH):
        inner = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list))
        level = [value for values in inner for value in values]
        if not level:
            return False
    return True


def dumped(value: Any) -> Any:
    """What msgspec does not know as JSON values: models of pydantic, which need not be installed."""
    if is_model(type(value)):
        return value.model_dump(mode="json")
    raise TypeError(f"it has a {type(value).__qualname__}")


def is_model(kind: Any) -> bool:
    """Whether it is a model of pydantic."""
    return isinstance(kind, type) and hasattr(kind, "model_validate") and hasattr(kind, "model_dump")


def failed(error: BaseException) -> Failed:
    """The handler raised, or could not be called."""
    wait = error.after if isinstance(error, RetryLater) else None
    return Failed(error_of(error), retryable=not isinstance(error, DoNotRetry), wait=wait)


def unstorable(outcome: AttemptOutcome, error: BaseException) -> Failed | Succeeded:
    """What is recorded in place of an outcome that cannot be stored: a failure that says so. What was done is not done
    again: it stays a success, which says so in place of its output, or has nothing but that.
    """
    if isinstance(outcome, Succeeded):
        text = _cut(clean(f"what it returned could not be stored: {_text(error)}"), EXCERPT_BYTES)
        return Succeeded(None if outcome.output is None else text, outcome.code)
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
        text = msgspec.json.encode(value, enc_hook=dumped)[:EXCERPT_BYTES].decode(errors="ignore")
    except Exception:  # noqa: BLE001 - whatever a user's object does when it is looked at
        text = _cut(_repr(value), EXCERPT_BYTES)
    return clean(text)


def users_traceback(error: BaseException) -> TracebackType | None:
    """The traceback without our own frames, which are outside of the handler's and between those of middleware.

    None if there are no others, because the handler could not be called, or if it was a delivery, which is all ours.
    """
    users: TracebackType | None = None
    for each in reversed(list(_steps(error.__traceback__))):
        file = each.tb_frame.f_code.co_filename
        if file.startswith(_DELIVERING):
            return None
        if not file.startswith(_OWN_FILES):
            users = TracebackType(users, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return users


def _steps(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def error_of(error: BaseException) -> str:
    """`Type: message`, then the innermost lines of the traceback as far as they fit."""
    head = _cut(clean(f"{type(error).__name__}: {_text(error)}".removesuffix(": ")), ERROR_BYTES)
    frames = traceback.extract_tb(users_traceback(error))
    tail = clean("".join(traceback.format_list(frames[-_FRAMES:]))).rstrip()
    room = ERROR_BYTES - len(head.encode()) - 1
    if not tail or room <= 0:
        return head
    return f"{head}\n{tail.encode()[-room:].decode(errors='ignore')}"


def shown_progress(text: str) -> str:
    """How far an attempt is: one line, not too long."""
    return clean(" ".join(text.split())[:PROGRESS_CHARACTERS])


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
