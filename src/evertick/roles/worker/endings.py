"""From what became of an attempt to its ending: the texts that are kept, and what follows by the job's policy."""

import re
import traceback
from datetime import datetime, timedelta
from typing import Any

import msgspec

from evertick.domain.retry import Ended, GiveUp
from evertick.domain.states import Outcome
from evertick.roles.worker.run import DoNotRetry, RetryLater
from evertick.runtime.retry_decision import next_step
from evertick.store.lanes import Leased
from evertick.store.outcomes import Ending

EXCERPT_BYTES = 1024
ERROR_BYTES = 4096
_FRAMES = 12
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_SUCCESS = Outcome.SUCCESS.value


def succeeded(leased: Leased, started_at: datetime, finished_at: datetime, value: Any) -> Ending:
    """The handler returned."""
    return Ending(
        leased.lane_id,
        leased.seq,
        leased.job_id,
        leased.fire_at,
        leased.spec_version,
        leased.reason,
        _SUCCESS,
        started_at,
        finished_at,
        None,
        None,
        None if value is None else excerpt_of(value),
        None,
        leased.is_listed,
    )


def failed(leased: Leased, started_at: datetime | None, finished_at: datetime, error: BaseException) -> Ending:
    """The handler raised, or could not be called."""
    wait = error.after if isinstance(error, RetryLater) else None
    ended = Ended(Outcome.FAILED, leased.attempt, retryable=not isinstance(error, DoNotRetry), wait=wait)
    return _ending(leased, ended, started_at, finished_at, error_of(error))


def timed_out(leased: Leased, started_at: datetime, finished_at: datetime) -> Ending:
    error = f"not finished after {leased.timeout_seconds} s, the job's timeout"
    return _ending(leased, Ended(Outcome.TIMED_OUT, leased.attempt), started_at, finished_at, error)


def handed_back(leased: Leased, started_at: datetime | None, finished_at: datetime) -> Ending:
    """The worker stops before the attempt is done: it comes again at once, under the same number."""
    return _ending(leased, Ended(Outcome.DEFERRED, leased.attempt), started_at, finished_at, "its worker stopped")


def refused(leased: Leased, finished_at: datetime, why: str, wait: timedelta) -> Ending:
    """There is no handler for it where it came to: the same attempt comes again after a while."""
    return _ending(leased, Ended(Outcome.DEFERRED, leased.attempt, wait=wait), None, finished_at, why)


def unstorable(leased: Leased, ending: Ending, error: BaseException) -> Ending:
    """What is recorded in place of an ending that the database cannot store: a failure that says so."""
    text = _cut(clean(f"its outcome, {ending.result}, could not be stored: {_text(error)}"), ERROR_BYTES)
    ended = Ended(Outcome.FAILED, leased.attempt, retryable=not isinstance(ending.then, GiveUp))
    return _ending(leased, ended, ending.started_at, ending.finished_at, text)


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
    # The outermost frame is the worker's own.
    frames = traceback.format_tb(error.__traceback__.tb_next, -_FRAMES) if error.__traceback__ else []
    tail = clean("".join(frames)).rstrip()
    room = ERROR_BYTES - len(head.encode()) - 1
    if not tail or room <= 0:
        return head
    return f"{head}\n{tail.encode()[-room:].decode(errors='ignore')}"


def clean(text: str) -> str:
    """Without what PostgreSQL cannot hold: NUL, and halves of surrogate pairs."""
    return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def _ending(
    leased: Leased, ended: Ended, started_at: datetime | None, finished_at: datetime, error: str | None
) -> Ending:
    return Ending(
        leased.lane_id,
        leased.seq,
        leased.job_id,
        leased.fire_at,
        leased.spec_version,
        leased.reason,
        ended.outcome.value,
        started_at,
        finished_at,
        error=error,
        then=next_step(leased.retry, leased.job_id, leased.fire_at, ended),
        is_listed=leased.is_listed,
    )


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
