"""The worker: an executor that runs users' functions in this process, on attempts straight from the database.

Duty, invariants and steps are the executor's (`evertick.executor.executor`); leasing is the database source's
(`evertick.executor.sources.database`).
"""

import logging
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from evertick.contract.target import DEFAULT_QUEUE
from evertick.domain.serving import AppVersion
from evertick.executor.executor import CONCURRENCY, GRACE, THREADS, Executor
from evertick.executor.handlers.registry import Handlers
from evertick.executor.sources.database.queues import NamedQueues
from evertick.executor.sources.database.source import LEASE_TIME, DatabaseSource
from evertick.runtime.clock import Clock
from evertick.store.location import DatabaseAddress

logger = logging.getLogger("evertick.worker")


class DatabaseWorker(Executor):
    """One process's worker. `queues` of one tenant, or of all if none is named. `app_version`: of its handlers."""

    def __init__(  # noqa: PLR0913 - where it works and how much
        self,
        url: DatabaseAddress,
        handlers: Handlers,
        *,
        queues: Sequence[str] = (DEFAULT_QUEUE,),
        tenant_id: int | None = None,
        name: str | None = None,
        concurrency: int = CONCURRENCY,
        threads: int = THREADS,
        lease_time: timedelta = LEASE_TIME,
        redis_url: str | None = None,
        app_version: AppVersion | None = None,
        clock: Clock | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.queues = queues
        selection = NamedQueues(queues, tenant_id)
        self.source = DatabaseSource(
            url,
            selection,
            lease_time=lease_time,
            redis_url=redis_url,
            app_version=app_version,
            monotonic=monotonic,
        )
        super().__init__(
            self.source,
            handlers,
            name=name,
            concurrency=concurrency,
            threads=threads,
            hooks=handlers.hooks,
            clock=clock,
            monotonic=monotonic,
        )

    async def start(self) -> None:
        await super().start()
        logger.info("worker %s started on %s", self.name, ", ".join(self.queues), extra={"worker": self.name})

    async def stop(self, grace: timedelta = GRACE) -> None:
        await super().stop(grace)
        logger.info("worker %s stopped", self.name, extra={"worker": self.name})
