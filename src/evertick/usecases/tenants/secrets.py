"""A tenant's webhook secrets: what receivers verify our signatures with, and how one is replaced without a gap."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from evertick.domain.errors import EvertickError
from evertick.store.database import Pool, Session
from evertick.store.tenants import secrets
from evertick.store.tenants.secrets import Seal, Sealed
from evertick.targets.http.signing import Secret
from evertick.usecases.context import TenantContext
from evertick.usecases.tenants import connections

RESEAL_BATCH = 200


class RotationUnderWay(EvertickError):  # noqa: N818 - says what is wrong
    """Two secrets are valid: the older one has to go before there can be another."""

    def __init__(self) -> None:
        super().__init__("a rotation is under way: drop the previous secret first, once no receiver needs it")


@dataclass(frozen=True, slots=True)
class Secrets:
    """The secrets that every delivery is signed with, as `whsec_…`. `previous` is None outside of a rotation."""

    current: str = field(repr=False)
    previous: str | None = field(repr=False)
    rotated_at: datetime


async def show(tenant: TenantContext, seal: Seal) -> Secrets:
    """The tenant's secrets; the first is made when it is first needed."""
    found = await secrets.ensure(tenant.pool, seal, [tenant.tenant_id], _generate)
    return _opened(found[tenant.tenant_id], seal)


async def rotate(tenant: TenantContext, seal: Seal) -> Secrets:
    """Sign with a new secret and with the one so far, until that is dropped."""
    await show(tenant, seal)  # there has to be one, and under this key
    rotated = await secrets.rotate(tenant.pool, seal, tenant.tenant_id, _generate())
    if rotated is None:
        raise RotationUnderWay
    return _opened(rotated, seal)


async def drop_previous(tenant: TenantContext, seal: Seal) -> Secrets:
    """End a rotation: sign with the newest secret alone. Without one under way nothing changes."""
    await secrets.drop_previous(tenant.pool, tenant.tenant_id)
    return await show(tenant, seal)


@dataclass(frozen=True, slots=True)
class Resealed:
    """What a reseal did: for how many tenants and connections, with which key, and which keys open nothing any more."""

    tenants: int
    connections: int
    key_id: str
    unneeded_key_ids: tuple[str, ...]


async def reseal(pool: Pool | Session, seal: Seal, progress: Callable[[int, int], None]) -> Resealed:
    """Seal the secrets of all tenants, and of their connections, with the first key.

    `progress` is called with how many are done, of how many. A rotation at the same time wins: what has changed between
    read and write is read again, until nothing is left that another key has sealed.
    """
    done = 0
    while total := await secrets.count_sealed_otherwise(pool, seal):
        after, total = 0, done + total
        while found := await secrets.sealed_otherwise(pool, seal, after=after, most=RESEAL_BATCH):
            done += await secrets.reseal(pool, seal, found)
            after = found[-1].tenant_id
            progress(done, total)
    key_id, *others = seal.key_ids
    return Resealed(done, await connections.reseal(pool, seal, RESEAL_BATCH), key_id, tuple(others))


def _opened(sealed: Sealed, seal: Seal) -> Secrets:
    current, *previous = (Secret(key).text for key in sealed.open(seal))
    return Secrets(current, previous[0] if previous else None, sealed.rotated_at)


def _generate() -> bytes:
    return Secret.generate().key
