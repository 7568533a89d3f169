"""Describes what went wrong on the way to a target, for its owner, without naming an address of our network."""

import aiohttp

from evertick.domain.attempt import Failed
from evertick.domain.states import Outcome
from evertick.targets.http.guard import Refused

FAILURES = (aiohttp.ClientError, OSError, Refused)
"""All that calling a target raises, timeouts included."""


def refused(error: Refused) -> Failed:
    """The guard said no, and will again."""
    return Failed(f"not called: {error}", retryable=False)


def timed_out(seconds: float) -> Failed:
    return Failed(f"no complete answer within {seconds:g} s", result=Outcome.TIMED_OUT)


def failure_of(error: BaseException) -> Failed:
    """Any of FAILURES but running out of time."""
    return refused(error) if isinstance(error, Refused) else Failed(_description(error))


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
