"""From what a handler returned or raised to the outcome of its attempt, and the texts that are kept of it."""

import re
import traceback
from typing import Any, assert_never

import msgspec

from evertick.domain.attempt import AttemptOutcome, Deferred, Failed, NotStarted, Succeeded
from evertick.domain.states import Outcome
from evertick.executor.handlers.run import DoNotRetry, RetryLater

EXCERPT_BYTES = 1024
ERROR_BYTES = 4096
_FRAMES = 12
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


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
    return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", text)


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
