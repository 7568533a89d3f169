"""The identity of the cluster, for its operators: what is known of it, and the confirmation after a restore."""

from dataclasses import dataclass
from datetime import datetime

from evertick.domain.cluster_identity import explain
from evertick.domain.errors import EvertickError
from evertick.store.engine import identity
from evertick.store.engine.identity import Facts
from evertick.usecases.context import TenantContext

MAX_TRIES = 3


class ServerChanges(EvertickError):  # noqa: N818 - says what is wrong
    """The database's server was started again while it was being confirmed."""


@dataclass(frozen=True, slots=True)
class ClusterIdentity:
    """`suspicion`: why nothing runs. `active_at`: when a scheduler was last at work in the database."""

    name: str | None
    is_confirmed: bool
    suspicion: str | None
    confirmed_at: datetime | None
    active_at: datetime | None


async def show(tenant: TenantContext) -> ClusterIdentity:
    return _shown(await identity.facts(tenant.pool))


async def confirm(tenant: TenantContext, name: str | None) -> ClusterIdentity:
    """Let the cluster of this name work in the database as it is now. Returns what was known before."""
    for _ in range(MAX_TRIES):
        known = await identity.facts(tenant.pool)
        if await identity.confirm(tenant.pool, known):
            await identity.set_name(tenant.pool, name)
            return _shown(known)
    raise ServerChanges("the database's server was started again meanwhile: try again")


def _shown(known: Facts) -> ClusterIdentity:
    suspicion = None if known.suspected is None else explain(known.suspected)
    return ClusterIdentity(known.name, known.is_confirmed, suspicion, known.confirmed_at, known.active_at)
