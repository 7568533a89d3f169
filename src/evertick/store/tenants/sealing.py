"""Seals what is secret before it is stored, with keys that the database never sees.

There may be several keys, so that one can replace another without a gap: the first seals, all of them open. What is
sealed names its key by a short id, which says nothing about the key itself.
"""

import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from evertick.domain.errors import EvertickError

KEY_FILE = "secret.key"
_FORM = b"\x02"  # of what is stored: the form, the key's id, a nonce, AES-256-GCM's text and tag
_UNNAMED_FORM = b"\x01"  # the same without an id: whichever key opens it has sealed it
_ID_BYTES = 4
_NONCE_BYTES = 12
WEBHOOK_SECRETS = b"evertick webhook secrets"
ANSWERS = b"evertick answers"
_KEY_IDS = b"evertick key ids"


class CannotUnseal(EvertickError):  # noqa: N818 - says what is wrong
    """What was sealed cannot be read. The message names keys by their ids, never the keys."""


class NoKey(EvertickError):  # noqa: N818 - says what is wrong
    """There is no key where one was expected."""


class Seal:
    """Seals for one tenant at a time: what is copied into another tenant's row cannot be read there."""

    def __init__(self, keys: str | Sequence[str], purpose: bytes = WEBHOOK_SECRETS) -> None:
        given = (keys,) if isinstance(keys, str) else keys
        self._ciphers = {_derive(key, _KEY_IDS, _ID_BYTES): AESGCM(_derive(key, purpose, 32)) for key in given}
        self._first = next(iter(self._ciphers))
        self.stamp = _FORM + self._first
        """What all begins with that the first key has sealed."""

    @property
    def key_ids(self) -> tuple[str, ...]:
        """The ids of the keys; the first is the one that seals."""
        return tuple(key_id.hex() for key_id in self._ciphers)

    def seal(self, plain: bytes, tenant_id: int) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return self.stamp + nonce + self._ciphers[self._first].encrypt(nonce, plain, _owner(tenant_id))

    def unseal(self, sealed: bytes, tenant_id: int) -> bytes:
        form, rest = sealed[:1], sealed[1:]
        if form == _FORM:
            return self._open_named(rest[:_ID_BYTES], rest[_ID_BYTES:], tenant_id)
        if form == _UNNAMED_FORM:
            return self._open_unnamed(rest, tenant_id)
        raise CannotUnseal("a stored secret is in no form that this version of Evertick knows")

    def _open_named(self, key_id: bytes, rest: bytes, tenant_id: int) -> bytes:
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise CannotUnseal(f"a stored secret was sealed with the key {key_id.hex()}: {self._not_given()}")
        plain = _opened(cipher, rest, tenant_id)
        if plain is None:
            raise CannotUnseal(
                f"a stored secret is broken, or another tenant's: its key {key_id.hex()} does not open it"
            )
        return plain

    def _open_unnamed(self, rest: bytes, tenant_id: int) -> bytes:
        for cipher in self._ciphers.values():
            if (plain := _opened(cipher, rest, tenant_id)) is not None:
                return plain
        raise CannotUnseal(f"a stored secret was sealed with another key: {self._not_given()}")

    def _not_given(self) -> str:
        return (
            f"given are only {', '.join(self.key_ids)}. Put that key behind the others in EVERTICK_SECRET_KEY, or back"
            f" into {KEY_FILE}"
        )


def keys_in(data_dir: Path) -> tuple[str, ...]:
    """The keys in a data directory, one on each line; the first process that asks makes the first.

    Only the file's owner can read it.
    """
    path = data_dir / KEY_FILE
    if not path.exists():
        data_dir.mkdir(parents=True, exist_ok=True)
        _make(path)
    keys = tuple(line.strip() for line in path.read_text(encoding="ascii").splitlines() if line.strip())
    if not keys:
        raise NoKey(f"{path} is empty: bring it back from a copy, for without its key no stored secret can be read")
    return keys


def _make(path: Path) -> None:
    draft = path.with_name(f"{KEY_FILE}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "w", encoding="ascii") as file:  # noqa: PTH123 - a Path cannot open a descriptor
            file.write(secrets.token_urlsafe(32) + "\n")
            file.flush()
            os.fsync(file.fileno())
        # A link appears whole or not at all, and never replaces what another process has made meanwhile.
        with suppress(FileExistsError):
            path.hardlink_to(draft)
    finally:
        draft.unlink()


def _derive(key: str, purpose: bytes, length: int) -> bytes:
    return HKDF(SHA256(), length, salt=None, info=purpose).derive(key.encode())


def _opened(cipher: AESGCM, rest: bytes, tenant_id: int) -> bytes | None:
    try:
        return cipher.decrypt(rest[:_NONCE_BYTES], rest[_NONCE_BYTES:], _owner(tenant_id))
    except (InvalidTag, ValueError):  # ValueError: cut short
        return None


def _owner(tenant_id: int) -> bytes:
    return b"tenant %d" % tenant_id
