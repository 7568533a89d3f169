"""The workers that serve a tenant, and what of its work they serve."""

from itertools import groupby

from evertick.contract.workers import QueueHandler, ServedQueue, Worker
from evertick.domain.serving import Served
from evertick.domain.states import WorkerRole
from evertick.store.engine import workers
from evertick.store.engine.workers import WorkerRow
from evertick.usecases.context import DEFAULT_PER_PAGE, Page, TenantContext, checked_limit, page_of

JOBS_LOOKED_AT = 1000
"""The newest ones of a tenant: their handlers are listed."""


async def list_workers(
    tenant: TenantContext, *, limit: int = DEFAULT_PER_PAGE, cursor: str | None = None
) -> Page[Worker]:
    """The workers in the order of their names."""
    most = checked_limit(limit)
    rows = await workers.page(tenant.pool, tenant.tenant_id, after=cursor or "", most=most + 1)
    views = (_view_of(list(of_worker)) for _, of_worker in groupby(rows, lambda row: row.name))
    return page_of(views, most, lambda worker: worker.worker_id)


async def served(tenant: TenantContext) -> Served:
    """What workers that are alive serve for the tenant."""
    rows = await workers.serving(tenant.pool, tenant.tenant_id)
    return Served(
        {row.queue: row.workers for row in rows if row.is_total},
        {(row.queue, row.handler): row.workers for row in rows if not row.is_total},
    )


async def handlers_by_queue(tenant: TenantContext, now: Served) -> dict[str, tuple[QueueHandler, ...]]:
    """The handlers of each queue that jobs name or workers serve, and how many workers serve each."""
    names = {(queue, handler) for queue, handler in now.handlers if handler is not None}
    names |= set(await workers.handlers_seen(tenant.pool, tenant.tenant_id, JOBS_LOOKED_AT))
    return {
        queue: tuple(QueueHandler(handler=each, workers=now.workers(queue, each)) for _, each in of_queue)
        for queue, of_queue in groupby(sorted(names), lambda name: name[0])
    }


def _view_of(rows: list[WorkerRow]) -> Worker:
    return Worker(
        worker_id=rows[0].name,
        role=WorkerRole(rows[0].role),
        is_alive=any(row.is_alive for row in rows),
        version=rows[0].version,
        started_at=min(row.started_at for row in rows),
        seen_at=max(row.seen_at for row in rows),
        finished_per_second=rows[0].finished_per_second,
        queues=tuple(
            ServedQueue(queue=row.queue, handlers=None if row.handlers is None else tuple(sorted(row.handlers)))
            for row in rows
        ),
    )
