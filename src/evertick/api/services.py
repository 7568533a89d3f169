"""What all requests of one process share."""

from dataclasses import dataclass, field
from datetime import timedelta

from evertick.api.doorbell import Doorbell
from evertick.api.metrics import Metrics
from evertick.api.readiness import Readiness
from evertick.api.replays import Replays
from evertick.runtime.wakeups import Notifier
from evertick.store.database import Pool
from evertick.store.tenants import TenantRow
from evertick.usecases.catalogue import Catalogue
from evertick.usecases.context import Tenant
from evertick.usecases.keys import KeyRing
from evertick.usecases.quotas import Quotas
from evertick.usecases.tenants import shortest_of


@dataclass(slots=True)
class Services:
    """The pool, and what is known or kept beside it. `lease_time`: for so long a pull worker holds what it leased."""

    pool: Pool
    notifier: Notifier
    doorbell: Doorbell
    keys: KeyRing
    quotas: Quotas
    metrics: Metrics
    lease_time: timedelta
    lifetime: timedelta
    openapi: bytes = b""
    catalogue: Catalogue = field(default_factory=Catalogue)
    replays: Replays = field(init=False)
    readiness: Readiness = field(init=False)

    def __post_init__(self) -> None:
        self.replays = Replays(self.acting_for)
        self.readiness = Readiness(self.pool)

    def acting_for(self, tenant: TenantRow) -> Tenant:
        return Tenant(
            self.pool, tenant.tenant_id, tenant.fanout, shortest_of(tenant), self.notifier.timers, self.catalogue
        )
