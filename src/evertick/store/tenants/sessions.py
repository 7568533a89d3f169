"""Sessions of browsers, and links that log in once. Called by the use cases."""

from collections.abc import Collection
from typing import NamedTuple

from evertick.store import statements
from evertick.store.statements import Connection
from evertick.store.tenants.keys import ValidKey


class LinkKey(NamedTuple):
    """The key that a link logs in with, and its tenant."""

    key_id: int
    tenant_id: int


_SQL = statements.load("sessions")
_OF_DIGESTS = _SQL["of_digests"].rows(ValidKey)
_USE_LINK = _SQL["use_link"].rows(LinkKey)
_ADMIN_KEY = _SQL["admin_key"].values(int)


async def add(connection: Connection, digest: bytes, key_id: int, seconds: float, *, is_link: bool) -> None:
    await _SQL["add"].execute(connection, digest=digest, key_id=key_id, seconds=seconds, is_link=is_link)


async def of_digests(connection: Connection, digests: Collection[bytes]) -> dict[bytes, ValidKey]:
    """The keys of some sessions, by the digests of the sessions. Those that have ended are left out."""
    return {key.digest: key for key in await _OF_DIGESTS.all(connection, digests=list(digests))}


async def use_link(connection: Connection, digest: bytes) -> LinkKey | None:
    """Take a link, and return its key. None: it was used, or has expired."""
    return await _USE_LINK.one_or_none(connection, digest=digest)


async def end(connection: Connection, digest: bytes) -> None:
    await _SQL["end"].execute(connection, digest=digest)


async def admin_key(connection: Connection, tenant_id: int) -> int | None:
    return await _ADMIN_KEY.one_or_none(connection, tenant_id=tenant_id)
