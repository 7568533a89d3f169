"""The queues of a tenant: how much of each runs at once, starts per second, and may wait; and who serves them."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import asdict, replace

from evertick.contract import patterns
from evertick.contract.reading import read_settings
from evertick.contract.workers import Queue, QueueSettings, limits_of
from evertick.domain.admission import Refused
from evertick.domain.errors import InvalidInput
from evertick.domain.limits import QuotaName
from evertick.store.jobs import references
from evertick.store.jobs.references import NO_CAP, QueueDepth, QueueLimits
from evertick.usecases import workers
from evertick.usecases.context import DEFAULT_PER_PAGE, Page, TenantContext, checked_limit, page_of
from evertick.usecases.errors import QueueNotFound, QuotaReached
from evertick.usecases.references import MAX_QUEUES

_QUEUE = re.compile(patterns.QUEUE)


async def list_queues(
    tenant: TenantContext, *, limit: int = DEFAULT_PER_PAGE, cursor: str | None = None
) -> Page[Queue]:
    """The queues in the order of their names."""
    most = checked_limit(limit)
    rows = await references.queue_page(tenant.pool, tenant.tenant_id, after=cursor or "", most=most + 1)
    return page_of(await _with_workers(tenant, rows), most, lambda queue: queue.name)


async def get_queue(tenant: TenantContext, name: str) -> Queue:
    rows = await references.queue_page(tenant.pool, tenant.tenant_id, only=name)
    if not rows:
        raise QueueNotFound(name)
    return (await _with_workers(tenant, rows))[0]


async def limit_queue(tenant: TenantContext, name: str, given: QueueSettings) -> Queue:
    """Replace the limits of a queue. It may get them before its first job."""
    if not _QUEUE.fullmatch(name):
        raise InvalidInput("queue", "must be 1 to 63 lowercase letters, digits and . _ -, a letter or digit first")
    if await references.queues_with(tenant.pool, tenant.tenant_id, [name]) > MAX_QUEUES:
        raise QuotaReached(Refused(QuotaName.QUEUES, MAX_QUEUES))
    if given.rate_burst is not None and given.rate_limit is None:
        raise InvalidInput("rate_burst", "needs a rate_limit")
    limits = asdict(given) | {"max_running": NO_CAP if given.max_running is None else given.max_running}
    await references.limit_queue(tenant.pool, tenant.tenant_id, name, QueueLimits(**limits))
    return await get_queue(tenant, name)


async def edit_queue(tenant: TenantContext, name: str, changes: Mapping[str, Any]) -> Queue:
    """Change some limits of a queue."""
    rows = await references.queue_page(tenant.pool, tenant.tenant_id, only=name)
    now = limits_of(_view_of(rows[0])) if rows else {}
    return await limit_queue(tenant, name, read_settings(now | dict(changes), QueueSettings))


async def _with_workers(tenant: TenantContext, rows: Sequence[QueueDepth]) -> list[Queue]:
    served = await workers.served(tenant)
    handlers = await workers.handlers_by_queue(tenant, served)
    return [
        replace(_view_of(row), workers=served.queues.get(row.name, 0), handlers=handlers.get(row.name, ()))
        for row in rows
    ]


def _view_of(row: QueueDepth) -> Queue:
    return Queue(**row._asdict() | {"max_running": None if row.max_running == NO_CAP else row.max_running})
