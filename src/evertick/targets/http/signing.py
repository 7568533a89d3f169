"""Signs deliveries as Standard Webhooks asks: HMAC-SHA256 over `id.timestamp.body`, once for each valid secret.

`webhook-signature` covers key, time and body, and no header beside them. So `Evertick-Signature` signs that signature
and the headers that say which run a delivery is of, line by line, with the same secrets. An attacker who captured a
delivery can neither change its fencing token nor give it the headers of another.
"""

import binascii
import hmac
import secrets
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from evertick.domain.errors import InvalidInput

PREFIX = "whsec_"
KEY_BYTES = 32
SHORTEST_KEY, LONGEST_KEY = 24, 64
"""Bounds that Standard Webhooks sets, in bytes."""

RUN_HEADERS = (
    "Evertick-Run-Id",
    "Evertick-Job-Name",
    "Evertick-Scheduled-At",
    "Evertick-Attempt",
    "Evertick-Reason",
    "Evertick-Fencing-Token",
)
RUN_SIGNATURE = "Evertick-Signature"

# No key has a line break in it, so nothing that Standard Webhooks signs begins like this.
_FIRST_LINE = "evertick"

_VERSION = "v1"
_MAX_OFFERED = 16
"""More signatures than this on one message are not looked at."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A signing key. It shows itself only through `text`."""

    key: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not SHORTEST_KEY <= len(self.key) <= LONGEST_KEY:
            raise InvalidInput("secret", f"must have {SHORTEST_KEY} to {LONGEST_KEY} bytes, not {len(self.key)}")

    @classmethod
    def generate(cls) -> Self:
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `whsec_` and base64."""
        if not text.startswith(PREFIX):
            raise InvalidInput("secret", f"must start with {PREFIX}")
        try:
            return cls(b64decode(text.removeprefix(PREFIX), validate=True))
        except (binascii.Error, ValueError) as error:
            if isinstance(error, InvalidInput):
                raise
            raise InvalidInput("secret", f"must be base64 after {PREFIX}") from None

    @property
    def text(self) -> str:
        return PREFIX + b64encode(self.key).decode()


def sign(keys: Iterable[Secret], message_id: str, timestamp: int, body: bytes) -> str:
    """The header `webhook-signature`: during a rotation it holds one signature for each secret."""
    return sign_message(keys, _message(message_id, timestamp, body))


def sign_message(keys: Iterable[Secret], message: bytes) -> str:
    """A header that signs anything, as `webhook-signature` does what it signs."""
    return " ".join(f"{_VERSION},{_signature(key, message)}" for key in keys)


def is_signed(keys: Iterable[Secret], message_id: str, timestamp: int, body: bytes, *, header: str) -> bool:
    """Whether one of the header's signatures is one of these secrets'. Takes equally long for any wrong one."""
    return is_signed_message(keys, _message(message_id, timestamp, body), header=header)


def is_signed_message(keys: Iterable[Secret], message: bytes, *, header: str) -> bool:
    """As `is_signed`, of anything."""
    offered = [
        signature.encode("utf-8", "surrogatepass")
        for version, _, signature in (each.partition(",") for each in header.split(" ")[:_MAX_OFFERED])
        if version == _VERSION
    ]
    matches = [hmac.compare_digest(_signature(key, message).encode(), each) for key in keys for each in offered]
    return any(matches)


def _message(message_id: str, timestamp: int, body: bytes) -> bytes:
    return b"%b.%d.%b" % (message_id.encode("utf-8", "surrogatepass"), timestamp, body)


def _signature(key: Secret, message: bytes) -> str:
    return b64encode(hmac.digest(key.key, message, "sha256")).decode()


def run_message(webhook_signature: str, run: Mapping[str, str]) -> bytes:
    """What `Evertick-Signature` signs; `run` has a value for each of the names."""
    lines = (_FIRST_LINE, webhook_signature, *(run[name] for name in RUN_HEADERS))
    return "\n".join(lines).encode("utf-8", "surrogatepass")
