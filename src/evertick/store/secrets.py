"""Webhook secrets: one for each tenant, two during a rotation. They are sealed here on their way in, and never kept."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import datetime

from evertick.store import statements
from evertick.store.sealing import Seal
from evertick.store.statements import Connection

_SQL = statements.load("secrets")


@dataclass(frozen=True, slots=True)
class Sealed:
    """A tenant's secrets as they are stored."""

    tenant_id: int
    current: bytes = field(repr=False)
    previous: bytes | None = field(repr=False)
    rotated_at: datetime

    def open(self, seal: Seal) -> tuple[bytes, ...]:
        """The keys that are valid, the newest first; CannotUnseal if the seal is another's."""
        found = (self.current,) if self.previous is None else (self.current, self.previous)
        return tuple(seal.unseal(each, self.tenant_id) for each in found)


async def ensure(
    connection: Connection, seal: Seal, tenant_ids: Collection[int], generate: Callable[[], bytes]
) -> dict[int, Sealed]:
    """The secrets of tenants; who has none gets a first one."""
    found = await _find(connection, tenant_ids)
    if missing := [tenant_id for tenant_id in tenant_ids if tenant_id not in found]:
        first = [seal.seal(generate(), tenant_id) for tenant_id in missing]
        await _SQL["add"].execute(connection, tenant_ids=missing, currents=first)
        # A look of its own: someone else may have been faster.
        found |= await _find(connection, missing)
    return found


async def rotate(connection: Connection, seal: Seal, tenant_id: int, key: bytes) -> Sealed | None:
    """Sign with this key too. None: a rotation is under way, or the tenant has no secret yet."""
    row = await _SQL["rotate"].fetchrow(connection, tenant_id=tenant_id, current=seal.seal(key, tenant_id))
    return None if row is None else Sealed(*row)


async def drop_previous(connection: Connection, tenant_id: int) -> None:
    await _SQL["drop_previous"].execute(connection, tenant_id=tenant_id)


async def _find(connection: Connection, tenant_ids: Collection[int]) -> dict[int, Sealed]:
    rows = await _SQL["find"].fetch(connection, tenant_ids=list(tenant_ids))
    return {row["tenant_id"]: Sealed(*row) for row in rows}
