"""Webhook secrets, one for each tenant and two during a rotation, and the seal for what is stored in secret.

A seal encrypts with keys that the database never sees. There may be several keys, so that one can replace another
without a gap: the first seals, all of them open. What is sealed names its key by a short id, which says nothing about
the key itself.
"""

import os
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from secrets import token_hex, token_urlsafe
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from evertick.domain.errors import EvertickError
from evertick.store import statements
from evertick.store.statements import Connection

KEY_FILE = "secret.key"
_FORM = b"\x02"  # of what is stored: the form, the key's id, a nonce, AES-256-GCM's text and tag
_UNNAMED_FORM = b"\x01"  # the same without an id: any of the keys may have sealed it
_ID_BYTES = 4
_NONCE_BYTES = 12
WEBHOOK_SECRETS = b"evertick webhook secrets"
ANSWERS = b"evertick answers"
CONNECTIONS = b"evertick broker connections"
_KEY_IDS = b"evertick key ids"


class CannotUnseal(EvertickError):  # noqa: N818 - says what is wrong
    """What was sealed cannot be read. The message names keys by their ids, never the keys."""


class NoKey(EvertickError):  # noqa: N818 - says what is wrong
    """There is no key where one was expected."""


class Seal:
    """Seals for one tenant at a time: what is copied into another tenant's row cannot be read there."""

    def __init__(self, keys: str | Sequence[str], purpose: bytes = WEBHOOK_SECRETS) -> None:
        self._keys = given = (keys,) if isinstance(keys, str) else tuple(keys)
        self._ciphers = {_derive(key, _KEY_IDS, _ID_BYTES): AESGCM(_derive(key, purpose, 32)) for key in given}
        self._first = next(iter(self._ciphers))
        self.stamp = _FORM + self._first
        """The beginning of everything that the first key has sealed."""

    def to(self, purpose: bytes) -> "Seal":
        """The seal by the same keys for another purpose: neither opens what the other has sealed."""
        return Seal(self._keys, purpose)

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


class Sealed(NamedTuple):
    """A tenant's secrets as they are stored."""

    tenant_id: int
    current: bytes
    previous: bytes | None
    rotated_at: datetime

    def __repr__(self) -> str:
        return f"Sealed(tenant_id={self.tenant_id}, rotated_at={self.rotated_at})"

    def open(self, seal: Seal) -> tuple[bytes, ...]:
        """The keys that are valid, the newest first; CannotUnseal if the seal is another's."""
        found = (self.current,) if self.previous is None else (self.current, self.previous)
        return tuple(seal.unseal(each, self.tenant_id) for each in found)


_SQL = statements.load("secrets")
_FIND = _SQL["find"].rows(Sealed)
_ROTATE = _SQL["rotate"].rows(Sealed)
_COUNT = _SQL["count"].values(int)
_SEALED_OTHERWISE = _SQL["sealed_otherwise"].rows(Sealed)
_RESEAL = _SQL["reseal"].values(int)


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
    draft = path.with_name(f"{KEY_FILE}.{token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "w", encoding="ascii") as file:  # noqa: PTH123 - a Path cannot open a descriptor
            file.write(token_urlsafe(32) + "\n")
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


async def ensure(
    connection: Connection, seal: Seal, tenant_ids: Collection[int], generate: Callable[[], bytes]
) -> dict[int, Sealed]:
    """The secrets of tenants; a tenant without one gets its first."""
    found = await _find(connection, tenant_ids)
    if missing := [tenant_id for tenant_id in tenant_ids if tenant_id not in found]:
        first = [seal.seal(generate(), tenant_id) for tenant_id in missing]
        await _SQL["add"].execute(connection, tenant_ids=missing, currents=first)
        # A further query: another session may have added them first.
        found |= await _find(connection, missing)
    return found


async def rotate(connection: Connection, seal: Seal, tenant_id: int, key: bytes) -> Sealed | None:
    """Sign with this key too. None: a rotation is under way, or the tenant has no secret yet."""
    return await _ROTATE.one_or_none(connection, tenant_id=tenant_id, current=seal.seal(key, tenant_id))


async def drop_previous(connection: Connection, tenant_id: int) -> None:
    await _SQL["drop_previous"].execute(connection, tenant_id=tenant_id)


async def count_sealed_otherwise(connection: Connection, seal: Seal) -> int:
    """How many tenants have a secret that the seal's first key has not sealed."""
    return await _COUNT.one(connection, stamp=seal.stamp)


async def sealed_otherwise(connection: Connection, seal: Seal, *, after: int, most: int) -> list[Sealed]:
    """The next tenants of which one secret at least is not sealed with the seal's first key."""
    return await _SEALED_OTHERWISE.all(connection, stamp=seal.stamp, after=after, most=most)


async def reseal(connection: Connection, seal: Seal, found: Sequence[Sealed]) -> int:
    """Seal the same secrets with the first key; how many tenants' have not changed since they were found."""
    opened = [(each.tenant_id, each.open(seal)) for each in found]
    anew = [[seal.seal(key, tenant_id) for key in keys] for tenant_id, keys in opened]
    resealed = await _RESEAL.all(
        connection,
        tenant_ids=[each.tenant_id for each in found],
        old_currents=[each.current for each in found],
        old_previouses=[each.previous for each in found],
        currents=[sealed[0] for sealed in anew],
        previouses=[sealed[1] if len(sealed) > 1 else None for sealed in anew],
    )
    return len(resealed)


async def _find(connection: Connection, tenant_ids: Collection[int]) -> dict[int, Sealed]:
    return {row.tenant_id: row for row in await _FIND.all(connection, tenant_ids=list(tenant_ids))}
