"""Admission of what App and command line submit: by the quotas and the rate bucket of the API's requests."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from evertick.domain.admission import AdmissionRequest, Admitted, Throttled
from evertick.domain.backpressure import DEFAULT_MAX_READY_IN_ALL
from evertick.domain.policies import Priority
from evertick.runtime.concurrency import Cached
from evertick.store.database import Pool
from evertick.store.engine.rate_buckets import RateBuckets
from evertick.store.tenants import tenants
from evertick.store.tenants.tenants import TenantRow
from evertick.usecases.context import TenantContext
from evertick.usecases.errors import QuotaReached, TenantNotFound
from evertick.usecases.tenants.quotas import Quotas
from evertick.usecases.tenants.tenants import public_id

LIMITS_SECONDS = 5.0
"""A change of a tenant's limits takes effect that late, as a change of a key does in the API."""
NO_PATIENCE = timedelta(0)


@dataclass(slots=True)
class Entry:
    """An admitted submission. `created` is how many of its jobs were created in the end."""

    admitted: Admitted
    created: int = 0


class TenantAdmission:
    """Admits submissions of one tenant."""

    def __init__(
        self, tenant: TenantContext, buckets: RateBuckets | None = None, max_ready: int = DEFAULT_MAX_READY_IN_ALL
    ) -> None:
        assert isinstance(tenant.pool, Pool)
        pool = self._pool = tenant.pool
        self._tenant_id = tenant.tenant_id
        self._quotas = Quotas(pool, buckets, max_ready)
        self._row = Cached(lambda: tenants.find(pool, tenant.tenant_id), LIMITS_SECONDS)

    @asynccontextmanager
    async def of(self, request: AdmissionRequest, patience: timedelta = NO_PATIENCE) -> AsyncIterator[Entry]:
        """The right to do what a request needs. QuotaReached: a quota does not admit it, nor within the patience."""
        row = await self._limits()
        entry = Entry(await self._admit(row, request, time.monotonic() + patience.total_seconds()))
        try:
            yield entry
        finally:
            self._quotas.end_runs(self._tenant_id, request.runs)
            if entry.admitted.jobs:
                self._quotas.confirm(row, entry.admitted.jobs, entry.created)

    async def overload(self) -> frozenset[Priority]:
        """Submissions of which priorities are refused because the system is overloaded."""
        return await self._quotas.overload(self._tenant_id)

    async def draw_up_to(self, submits: int) -> int:
        """As many of these as the rate admits now."""
        return await self._quotas.draw_up_to(await self._limits(), submits)

    def give_back(self, submits: int) -> None:
        """Return what was drawn for something that was undone."""
        self._quotas.give_back(self._tenant_id, submits)

    async def _admit(self, row: TenantRow, request: AdmissionRequest, until: float) -> Admitted:
        while True:
            verdict = await self._quotas.admit(row, request)
            if isinstance(verdict, Admitted):
                return verdict
            wait = verdict.retry_after.total_seconds() if isinstance(verdict, Throttled) else None
            if wait is None or time.monotonic() + wait > until:
                raise QuotaReached(verdict)
            await asyncio.sleep(wait)

    async def _limits(self) -> TenantRow:
        row = await self._row.get()
        if row is None:
            raise TenantNotFound(public_id(self._tenant_id))
        return row
