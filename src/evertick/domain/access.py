"""Access: the roles of API keys, and the text of a key.

A key is `evt_`, 22 base62 characters of randomness (131 bits) and 6 of checksum, so that a mistyped one is refused
without a look, and scanners for leaked secrets can tell a real one.
"""

import hashlib
import re
import zlib
from enum import StrEnum

KEY_PREFIX = "evt_"
SHOWN_LENGTH = 10
"""Of a key, so much is kept for people to tell it from others."""

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_RANDOM_DIGITS = 22
_CHECK_DIGITS = 6
_KEY = re.compile(rf"{KEY_PREFIX}[0-9A-Za-z]{{{_RANDOM_DIGITS + _CHECK_DIGITS}}}")

KEYSPACE = 62**_RANDOM_DIGITS


class KeyRole(StrEnum):
    """What a key may do. Each of the first four may do what those before it may."""

    VIEWER = "viewer"  # look
    OPERATOR = "operator"  # pause, resume, trigger, cancel, replay
    EDITOR = "editor"  # create, edit, delete
    ADMIN = "admin"  # everything, tenants and keys included
    WORKER = "worker"  # lease, heartbeat and record on its tenant's queues, and nothing else
    APP = "app"  # what a worker may, and create or replace jobs by their names: for remote workers that declare jobs


_RANKS = {role: rank for rank, role in enumerate((KeyRole.VIEWER, KeyRole.OPERATOR, KeyRole.EDITOR, KeyRole.ADMIN))}


def allows(held: KeyRole, needed: KeyRole) -> bool:
    """Whether a key of one role may do what needs another."""
    if needed is KeyRole.WORKER:
        return held in {KeyRole.WORKER, KeyRole.APP, KeyRole.ADMIN}
    if needed is KeyRole.APP:
        return held in {KeyRole.APP, KeyRole.EDITOR, KeyRole.ADMIN}
    return held in _RANKS and _RANKS[held] >= _RANKS[needed]


def write_key(random: int) -> str:
    """The key of a random number below KEYSPACE."""
    body = KEY_PREFIX + _base62(random, _RANDOM_DIGITS)
    return body + _checksum(body)


def is_well_formed(key: str) -> bool:
    """Whether a text may be a key at all."""
    return _KEY.fullmatch(key) is not None and _checksum(key[:-_CHECK_DIGITS]) == key[-_CHECK_DIGITS:]


def digest_of(key: str) -> bytes:
    """What is kept of a key. It has enough randomness that no salt or slow hash would add anything."""
    return hashlib.sha256(key.encode()).digest()


def _checksum(text: str) -> str:
    return _base62(zlib.crc32(text.encode()), _CHECK_DIGITS)


def _base62(number: int, width: int) -> str:
    digits: list[str] = []
    for _ in range(width):
        number, digit = divmod(number, len(_ALPHABET))
        digits.append(_ALPHABET[digit])
    return "".join(reversed(digits))
