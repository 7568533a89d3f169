"""What a target's response means for the attempt. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus

from evertick.domain.attempt import Failed, Succeeded
from evertick.domain.retry import parse_retry_after

EXCERPT_BYTES = 1024

_RETRYABLE = frozenset({408, 409, 425, 429})
_SAYS_WHEN = frozenset({429, 503})
_GONE = 410


@dataclass(frozen=True, slots=True)
class TargetResponse:
    """What a target answered: its status, its headers (upper and lower case are the same), the first of its body."""

    status: int
    headers: Mapping[str, str]
    beginning: bytes = b""


def outcome_of(response: TargetResponse, now: datetime) -> Succeeded | Failed:
    status, excerpt = response.status, excerpt_of(response.beginning)
    if 200 <= status < 300:
        return Succeeded(excerpt, status)
    return Failed(
        _error(status),
        code=status,
        excerpt=excerpt,
        # A status that HTTP does not have says as little as a broken connection.
        retryable=status in _RETRYABLE or not 200 <= status < 500,
        wait=parse_retry_after(response.headers.get("Retry-After", ""), now) if status in _SAYS_WHEN else None,
        is_target_gone=status == _GONE,
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
