"""API keys: who may come in. Called by the use cases."""

from collections.abc import Collection
from datetime import datetime
from typing import NamedTuple

from evertick.store import statements
from evertick.store.statements import Connection
from evertick.store.tenants import TenantRow

_SQL = statements.load("keys")


class KeyRow(NamedTuple):
    """A key as people see it: without what would let anyone in."""

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
    """A key that may come in, and its tenant.

    `seconds_left`: until it expires, if it does. `is_unseen`: its last use was not noted for a while.
    """

    key_id: int
    digest: bytes
    role: str
    seconds_left: float | None
    is_unseen: bool
    tenant: TenantRow


async def add(connection: Connection, key: NewKey) -> KeyRow:
    row = await _SQL["add"].fetchrow(connection, **key._asdict())
    assert row is not None
    return KeyRow(*row)


async def of_digests(connection: Connection, digests: Collection[bytes]) -> dict[bytes, ValidKey]:
    """The keys of some digests. Those that are not there, or may not come in any more, are left out."""
    found = {}
    for key_id, digest, role, seconds_left, is_unseen, *tenant in await _SQL["of_digests"].fetch(
        connection, digests=list(digests)
    ):
        found[digest] = ValidKey(key_id, digest, role, seconds_left, is_unseen, TenantRow(*tenant))
    return found


async def touch(connection: Connection, key_id: int) -> None:
    await _SQL["touch"].execute(connection, key_id=key_id)


async def page(connection: Connection, tenant_id: int, *, after: int, most: int) -> list[KeyRow]:
    """A tenant's keys, oldest first, those that ended included."""
    rows = await _SQL["page"].fetch(connection, tenant_id=tenant_id, after=after, most=most)
    return [KeyRow(*row) for row in rows]


async def find(connection: Connection, key_id: int) -> KeyRow | None:
    row = await _SQL["find"].fetchrow(connection, key_id=key_id)
    return None if row is None else KeyRow(*row)


async def revoke(connection: Connection, key_id: int) -> KeyRow | None:
    row = await _SQL["revoke"].fetchrow(connection, key_id=key_id)
    return None if row is None else KeyRow(*row)


async def replace(connection: Connection, key_id: int, seconds: float) -> bool:
    """Let a key end. False: it has ended already, or somebody else has replaced it."""
    return await _SQL["replace"].fetchval(connection, key_id=key_id, seconds=seconds) is not None


async def lock_tenant(connection: Connection, tenant_id: int) -> None:
    """Wait for whoever makes keys for the tenant, until the transaction ends."""
    await _SQL["lock_tenant"].execute(connection, tenant_id=tenant_id)


async def live(connection: Connection, tenant_id: int, most: int) -> int:
    """How many keys of a tenant have not ended, counted up to a limit."""
    count: int = await _SQL["live"].fetchval(connection, tenant_id=tenant_id, most=most)
    return count


async def has_any(connection: Connection, tenant_id: int) -> bool:
    """Whether a tenant has ever had a key."""
    has: bool = await _SQL["has_any"].fetchval(connection, tenant_id=tenant_id)
    return has
