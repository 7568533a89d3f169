"""How a delivery ended, and what a target's answer means. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import TypeAlias

from evertick.domain.retry_after import parse_retry_after
from evertick.domain.states import Outcome

EXCERPT_BYTES = 1024

_RETRYABLE = frozenset({408, 409, 425, 429})
_TELLS_WHEN = frozenset({429, 503})
_GONE = 410


@dataclass(frozen=True, slots=True)
class Delivered:
    """The target accepted it."""

    code: int
    excerpt: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The target refused it, or was not reached. `wait` is the least time until the next try, as the target asked."""

    error: str
    outcome: Outcome = Outcome.FAILED
    code: int | None = None
    excerpt: str | None = None
    retryable: bool = True
    wait: timedelta | None = None
    pauses_job: bool = False


@dataclass(frozen=True, slots=True)
class NotTried:
    """Nothing was sent, because others were before it: the same attempt should come again."""

    error: str
    is_host_busy: bool = False


Verdict: TypeAlias = Delivered | Failed | NotTried


@dataclass(frozen=True, slots=True)
class Answer:
    """What a target answered: its status, its headers (upper and lower case are the same), the first of its body."""

    status: int
    headers: Mapping[str, str]
    beginning: bytes = b""


def judge(answer: Answer, now: datetime) -> Delivered | Failed:
    status, excerpt = answer.status, excerpt_of(answer.beginning)
    if 200 <= status < 300:
        return Delivered(status, excerpt)
    return Failed(
        _error(status),
        code=status,
        excerpt=excerpt,
        # A status that HTTP does not have says as little as a broken connection.
        retryable=status in _RETRYABLE or not 200 <= status < 500,
        wait=parse_retry_after(answer.headers.get("Retry-After", ""), now) if status in _TELLS_WHEN else None,
        pauses_job=status == _GONE,
    )


def excerpt_of(beginning: bytes) -> str:
    """As much of a body as is kept: text that PostgreSQL can store, whatever the bytes were."""
    text = beginning[:EXCERPT_BYTES].decode("utf-8", "replace").replace("\x00", "\ufffd")
    return text.encode()[:EXCERPT_BYTES].decode("utf-8", "ignore")


def _error(status: int) -> str:
    try:
        said = f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        said = str(status)
    if 300 <= status < 400:
        return f"answered {said}: redirects are not followed"
    return f"answered {said}" + (": the job is paused" if status == _GONE else "")
