"""Webhook secrets: one for each tenant, two during a rotation. They are sealed here on their way in, and never kept."""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import NamedTuple

from evertick.store import statements
from evertick.store.statements import Connection
from evertick.store.tenants.sealing import Seal


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


async def ensure(
    connection: Connection, seal: Seal, tenant_ids: Collection[int], generate: Callable[[], bytes]
) -> dict[int, Sealed]:
    """The secrets of tenants; a tenant without one gets its first."""
    found = await _find(connection, tenant_ids)
    if missing := [tenant_id for tenant_id in tenant_ids if tenant_id not in found]:
        first = [seal.seal(generate(), tenant_id) for tenant_id in missing]
        await _SQL["add"].execute(connection, tenant_ids=missing, currents=first)
        # A look of its own: someone else may have been faster.
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
