"""Seals what is secret before it is stored, with a key that the database never sees."""

import os
import secrets
from contextlib import suppress
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from evertick.domain.errors import EvertickError

KEY_FILE = "secret.key"
_FORM = b"\x01"  # of what is stored: the form, a nonce, AES-256-GCM's text and tag
_NONCE_BYTES = 12
_PURPOSE = b"evertick webhook secrets"


class CannotUnseal(EvertickError):  # noqa: N818 - says what is wrong
    """What was sealed cannot be read: another key sealed it, or it was tampered with."""

    def __init__(self) -> None:
        super().__init__(
            "the stored webhook secrets cannot be read with this key: set EVERTICK_SECRET_KEY to the one they were"
            f" made with, or bring back its {KEY_FILE}"
        )


class Seal:
    """Seals for one tenant at a time: what is copied into another tenant's row cannot be read there."""

    def __init__(self, key: str) -> None:
        derived = HKDF(SHA256(), 32, salt=None, info=_PURPOSE).derive(key.encode())
        self._cipher = AESGCM(derived)

    def seal(self, plain: bytes, tenant_id: int) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        return _FORM + nonce + self._cipher.encrypt(nonce, plain, _owner(tenant_id))

    def unseal(self, sealed: bytes, tenant_id: int) -> bytes:
        form, nonce, rest = sealed[:1], sealed[1 : 1 + _NONCE_BYTES], sealed[1 + _NONCE_BYTES :]
        if form != _FORM:
            raise CannotUnseal
        try:
            return self._cipher.decrypt(nonce, rest, _owner(tenant_id))
        except (InvalidTag, ValueError):  # ValueError: cut short
            raise CannotUnseal from None


def key_in(data_dir: Path) -> str:
    """The key in a data directory, made by whoever asks first. Only its owner can read the file."""
    path = data_dir / KEY_FILE
    if not path.exists():
        data_dir.mkdir(parents=True, exist_ok=True)
        _make(path)
    return path.read_text(encoding="ascii").strip()


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


def _owner(tenant_id: int) -> bytes:
    return b"tenant %d" % tenant_id
