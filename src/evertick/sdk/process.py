"""An app at work: its jobs are registered, and the roles run, until told to stop."""

import gc
import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from evertick.config import Settings
from evertick.contract.annotations import MAX_PER_PAGE
from evertick.roles.janitor import Janitor, janitor_pool
from evertick.roles.scheduler import Scheduler
from evertick.roles.worker import DatabaseWorker
from evertick.sdk.declarations import APP_LABEL, Declarations, WorkerOptions
from evertick.sdk.link import Link
from evertick.usecases.context import TenantContext
from evertick.usecases.jobs.edit import put
from evertick.usecases.jobs.reading import list_jobs

logger = logging.getLogger("evertick.app")

COLLECT_AFTER = 10_000
"""New objects between two garbage collections. A busy worker makes 700, Python's default, in a few milliseconds, and
loses a seventh of its time to looking at them."""


async def register(tenant: TenantContext, app: str, declarations: Declarations) -> None:
    """Put the declared jobs; name those that an earlier version of the app declared, and leave them."""
    for declared in declarations.jobs.values():
        await put(tenant, declared.name, declared.fields)
    abandoned = [name for name in await _labelled(tenant, app) if name not in declarations.jobs]
    if abandoned:
        logger.warning(
            "these jobs of app %s are not declared in the code any more, and go on until they are deleted: %s",
            app,
            ", ".join(sorted(abandoned)),
        )


async def _labelled(tenant: TenantContext, app: str) -> list[str]:
    names: list[str] = []
    cursor: str | None = None
    while True:
        page = await list_jobs(tenant, labels={APP_LABEL: app}, limit=MAX_PER_PAGE, cursor=cursor)
        names += [job.name for job in page.items]
        cursor = page.next
        if cursor is None:
            return names


@asynccontextmanager
async def at_work(
    link: Link, settings: Settings, options: WorkerOptions, declarations: Declarations, *, schedules: bool
) -> AsyncIterator[DatabaseWorker]:
    """The roles at work. The tables get their partitions for the day first. The worker stops first, and puts back
    while the others still run.
    """
    _collect_less_often()
    async with AsyncExitStack() as stack:
        if schedules:
            janitor = Janitor(await stack.enter_async_context(await janitor_pool(link.url)), history=settings.history)
            await janitor.maintain(full=False)
            janitor.start()
            stack.push_async_callback(janitor.stop)
        await register(link.tenant, options.name, declarations)
        if schedules:
            scheduler = _scheduler(link.url, settings)
            await scheduler.start()
            stack.push_async_callback(scheduler.stop)
        worker = DatabaseWorker(
            link.url,
            declarations.handlers,
            queues=(options.queue,),
            tenant_id=link.tenant.tenant_id,
            concurrency=options.concurrency,
            threads=options.threads,
            lease_time=settings.lease_time,
        )
        await worker.start()
        stack.push_async_callback(worker.stop)
        yield worker


def _collect_less_often() -> None:
    first, *others = gc.get_threshold()
    if 0 < first < COLLECT_AFTER:  # 0 is off, by someone's choice
        gc.set_threshold(COLLECT_AFTER, *others)


def _scheduler(url: str, settings: Settings) -> Scheduler:
    return Scheduler(
        url,
        f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}",
        heartbeat=settings.heartbeat,
        lifetime=settings.heartbeat_timeout,
        horizon=settings.load_horizon,
        lease_time=settings.lease_time,
    )
