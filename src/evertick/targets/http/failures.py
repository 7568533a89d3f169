"""From what went wrong on the way to a target to words for its owner, which name no address of our network."""

import aiohttp

from evertick.domain.states import Outcome
from evertick.targets.http.guard import Refused
from evertick.targets.http.verdict import Failed

TROUBLES = (aiohttp.ClientError, OSError, Refused)
"""All that calling a target raises, timeouts included."""


def refused(error: Refused) -> Failed:
    """The guard said no, and will again."""
    return Failed(f"not called: {error}", retryable=False)


def timed_out(seconds: float) -> Failed:
    return Failed(f"no complete answer within {seconds:g} s", outcome=Outcome.TIMED_OUT)


def failure_of(error: BaseException) -> Failed:
    """Any of TROUBLES but running out of time."""
    return refused(error) if isinstance(error, Refused) else Failed(_words(error))


def _words(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"TLS failed: {_certificate(error.certificate_error)}"
    if isinstance(error, aiohttp.ClientConnectorError) and isinstance(error.os_error, ConnectionRefusedError):
        return "the connection was refused"
    return next(words for kind, words in _WORDS if isinstance(error, kind))


def _certificate(error: Exception) -> str:
    """OpenSSL's words for it; a host that does not fit is repeated there, and is what the job's owner wrote."""
    return str(getattr(error, "verify_message", "")) or "the certificate cannot be trusted"


_WORDS: tuple[tuple[type[BaseException], str], ...] = (
    (aiohttp.ClientConnectorDNSError, "the host's name cannot be resolved"),
    (aiohttp.ClientConnectorSSLError, "TLS failed: the handshake broke off"),
    (aiohttp.ClientConnectorError, "no connection could be made"),
    (aiohttp.ClientResponseError, "the answer is not HTTP, or its headers are too large"),
    (aiohttp.ClientPayloadError, "the answer broke off"),
    (BaseException, "the connection was closed before an answer came"),
)
"""The first that fits counts."""
