"""API keys. Called by the use cases."""

from collections.abc import Collection
from datetime import datetime
from typing import NamedTuple

from evertick.store import statements
from evertick.store.statements import Connection
from evertick.store.tenants.tenants import TenantRow


class KeyRow(NamedTuple):
    """A key as people see it, without its digest."""

    key_id: int
    tenant_id: int
    role: str
    prefix: str
    name: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


class NewKey(NamedTuple):
    """A key to add."""

    tenant_id: int
    role: str
    digest: bytes
    prefix: str
    name: str
    expires_at: datetime | None


class ValidKey(NamedTuple):
    """A valid key, and its tenant.

    `seconds_left`: until it expires, if it does. `is_unseen`: its last use was not noted for a while.
    """

    key_id: int
    digest: bytes
    role: str
    seconds_left: float | None
    is_unseen: bool
    tenant: TenantRow


_SQL = statements.load("keys")
_ADD = _SQL["add"].rows(KeyRow)
_OF_DIGESTS = _SQL["of_digests"].rows(ValidKey)
_PAGE = _SQL["page"].rows(KeyRow)
_FIND = _SQL["find"].rows(KeyRow)
_REVOKE = _SQL["revoke"].rows(KeyRow)
_REPLACE = _SQL["replace"].values(int)
_LIVE = _SQL["live"].values(int)
_HAS_ANY = _SQL["has_any"].values(bool)


async def add(connection: Connection, key: NewKey) -> KeyRow:
    return await _ADD.one(connection, **key._asdict())


async def of_digests(connection: Connection, digests: Collection[bytes]) -> dict[bytes, ValidKey]:
    """The keys of some digests. Those that do not exist or are not valid any more are left out."""
    return {key.digest: key for key in await _OF_DIGESTS.all(connection, digests=list(digests))}


async def touch(connection: Connection, key_id: int) -> None:
    await _SQL["touch"].execute(connection, key_id=key_id)


async def page(connection: Connection, tenant_id: int, *, after: int, most: int) -> list[KeyRow]:
    """A tenant's keys, oldest first, those that ended included."""
    return await _PAGE.all(connection, tenant_id=tenant_id, after=after, most=most)


async def find(connection: Connection, key_id: int) -> KeyRow | None:
    return await _FIND.one_or_none(connection, key_id=key_id)


async def revoke(connection: Connection, key_id: int) -> KeyRow | None:
    return await _REVOKE.one_or_none(connection, key_id=key_id)


async def replace(connection: Connection, key_id: int, seconds: float) -> bool:
    """End a key. False: it has ended already, or was replaced."""
    return await _REPLACE.one_or_none(connection, key_id=key_id, seconds=seconds) is not None


async def lock_tenant(connection: Connection, tenant_id: int) -> None:
    """Lock the making of keys for the tenant until the transaction ends."""
    await _SQL["lock_tenant"].execute(connection, tenant_id=tenant_id)


async def live(connection: Connection, tenant_id: int, most: int) -> int:
    """How many keys of a tenant have not ended, counted up to a limit."""
    return await _LIVE.one(connection, tenant_id=tenant_id, most=most)


async def has_any(connection: Connection, tenant_id: int) -> bool:
    """Whether a tenant has ever had a key."""
    return await _HAS_ANY.one(connection, tenant_id=tenant_id)
