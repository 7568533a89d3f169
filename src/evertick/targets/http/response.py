"""What a target's response means for the attempt, and what it means that none came.

Descriptions are for the owner of the job: none names an address of our network.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus

import aiohttp

from evertick.domain.attempt import Failed, Succeeded
from evertick.domain.retry import parse_retry_after
from evertick.domain.states import Outcome
from evertick.targets.egress.guard import DestinationRefused

EXCERPT_BYTES = 1024
FAILURES = (aiohttp.ClientError, OSError, DestinationRefused)
"""All that calling a target raises, timeouts included."""

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


def timed_out(seconds: float) -> Failed:
    return Failed(f"no complete answer within {seconds:g} s", result=Outcome.TIMED_OUT)


def failure_of(error: BaseException) -> Failed:
    """Any of FAILURES but running out of time."""
    if isinstance(error, DestinationRefused):
        return Failed(f"not called: {error}", retryable=False)  # the guard said no, and will again
    return Failed(_description(error))


def _description(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"TLS failed: {_certificate(error.certificate_error)}"
    if isinstance(error, aiohttp.ClientConnectorError) and isinstance(error.os_error, ConnectionRefusedError):
        return "the connection was refused"
    return next(text for kind, text in _DESCRIPTIONS if isinstance(error, kind))


def _certificate(error: Exception) -> str:
    """OpenSSL's words for it; a host that does not fit is repeated there, and is what the job's owner wrote."""
    return str(getattr(error, "verify_message", "")) or "the certificate cannot be trusted"


_DESCRIPTIONS: tuple[tuple[type[BaseException], str], ...] = (
    (aiohttp.ClientConnectorDNSError, "the host's name cannot be resolved"),
    (aiohttp.ClientConnectorSSLError, "TLS failed: the handshake broke off"),
    (aiohttp.ClientConnectorError, "no connection could be made"),
    (aiohttp.ClientResponseError, "the answer is not HTTP, or its headers are too large"),
    (aiohttp.ClientPayloadError, "the answer broke off"),
    (BaseException, "the connection was closed before an answer came"),
)
"""The first that fits counts."""
