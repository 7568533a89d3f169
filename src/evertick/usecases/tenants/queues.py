"""The queues of a tenant, how much of each runs at once, and how much may wait."""

import re

from evertick.contract import patterns
from evertick.contract.workers import Queue
from evertick.domain.admission import QuotaName, Refused
from evertick.domain.backpressure import DEFAULT_MAX_READY
from evertick.domain.errors import InvalidInput
from evertick.store.jobs import references
from evertick.store.jobs.references import NO_CAP, QueueCap
from evertick.usecases.context import DEFAULT_PER_PAGE, Page, TenantContext, checked_limit, page_of
from evertick.usecases.errors import QueueNotFound, QuotaReached
from evertick.usecases.references import MAX_QUEUES

MAX_READY = 1_000_000_000
_QUEUE = re.compile(patterns.QUEUE)


async def list_queues(
    tenant: TenantContext, *, limit: int = DEFAULT_PER_PAGE, cursor: str | None = None
) -> Page[Queue]:
    """The queues in the order of their names."""
    most = checked_limit(limit)
    rows = await references.queue_page(tenant.pool, tenant.tenant_id, after=cursor or "", most=most + 1)
    return page_of(map(_view_of, rows), most, lambda queue: queue.name)


async def get_queue(tenant: TenantContext, name: str) -> Queue:
    rows = await references.queue_page(tenant.pool, tenant.tenant_id, only=name)
    if not rows:
        raise QueueNotFound(name)
    return _view_of(rows[0])


async def cap_queue(
    tenant: TenantContext, name: str, max_running: int | None, max_ready: int = DEFAULT_MAX_READY
) -> Queue:
    """Set how many attempts of a queue run at once (None: no limit) and may wait, perhaps before its first job."""
    if not _QUEUE.fullmatch(name):
        raise InvalidInput("queue", "must be 1 to 63 lowercase letters, digits and . _ -, a letter or digit first")
    if await references.queues_with(tenant.pool, tenant.tenant_id, [name]) > MAX_QUEUES:
        raise QuotaReached(Refused(QuotaName.QUEUES, MAX_QUEUES))
    if not 1 <= max_ready <= MAX_READY:
        raise InvalidInput("max_ready", f"must be a number from 1 to {MAX_READY}")
    cap = NO_CAP if max_running is None else max_running
    await references.cap_queue(tenant.pool, tenant.tenant_id, name, cap, max_ready)
    return await get_queue(tenant, name)


def _view_of(row: QueueCap) -> Queue:
    fields = row._asdict() | {"max_running": None if row.max_running == NO_CAP else row.max_running}
    return Queue(**fields)
