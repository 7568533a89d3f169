"""What all requests of one process share."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeAlias

from evertick.api.body_limits import BodyLimits
from evertick.api.doorbell import Doorbell
from evertick.api.metrics import Metrics
from evertick.api.readiness import Readiness
from evertick.runtime.gathering import Gathering
from evertick.runtime.wakeups import Notifier
from evertick.store.database import Pool
from evertick.store.tenants import TenantRow
from evertick.usecases import idempotency
from evertick.usecases.catalogue import Catalogue
from evertick.usecases.context import Tenant
from evertick.usecases.create_together import Result, Wanted, create_together
from evertick.usecases.idempotency import Asked, OtherRequest
from evertick.usecases.keys import KeyRing
from evertick.usecases.quotas import Quotas
from evertick.usecases.tenants import shortest_of

Known: TypeAlias = idempotency.Answer | OtherRequest | None


async def _earlier(tenant: Tenant, asked: list[Asked]) -> list[Known | Exception]:
    return [*await idempotency.earlier(tenant, asked)]


@dataclass(slots=True)
class Services:
    """The pool, and what is known or kept beside it. `lease_time`: for so long a pull worker holds what it leased.

    `reserved` connections are for what must be answered whatever other requests wait for: workers, keys, probes. New
    rules and queues, too, are committed on one of them, so that nobody waits for the transaction that brought them.

    `creations` and `answers` are where requests meet that can share a transaction or a look.
    """

    pool: Pool
    reserved: Pool
    notifier: Notifier
    doorbell: Doorbell
    keys: KeyRing
    quotas: Quotas
    metrics: Metrics
    lease_time: timedelta
    lifetime: timedelta
    bodies: BodyLimits
    openapi: bytes = b""
    catalogue: Catalogue = field(init=False)
    creations: Gathering[Tenant, Wanted, Result] = field(
        default_factory=lambda: Gathering[Tenant, Wanted, Result](create_together)
    )
    answers: Gathering[Tenant, Asked, Known] = field(default_factory=lambda: Gathering[Tenant, Asked, Known](_earlier))
    readiness: Readiness = field(init=False)

    def __post_init__(self) -> None:
        self.readiness = Readiness(self.reserved)
        self.catalogue = Catalogue(self.reserved)

    def acting_for(self, tenant: TenantRow, *, reserved: bool = False) -> Tenant:
        pool = self.reserved if reserved else self.pool
        return Tenant(pool, tenant.tenant_id, tenant.fanout, shortest_of(tenant), self.notifier.timers, self.catalogue)
