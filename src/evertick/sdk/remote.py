"""The remote worker: runs the same handlers as `App`, on any machine that reaches the HTTP API. It needs no database.

It is an executor on the HTTP source; duty, invariants and steps are the executor's (`evertick.executor.executor`), and
what happens while the server is away is the source's (`evertick.executor.sources.http.source`).
"""

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Protocol, TypeAlias, cast

import uvloop

from evertick.client import AsyncClient, Forbidden
from evertick.client.transport import TIMEOUT_SECONDS, server_settings
from evertick.config.reading import read_settings
from evertick.contract.job import JobFields
from evertick.contract.target import DEFAULT_QUEUE
from evertick.executor.executor import CONCURRENCY, GRACE, THREADS, Executor
from evertick.executor.handlers.registry import Handlers
from evertick.executor.source import AttemptCounters
from evertick.executor.sources.http.source import HttpSource
from evertick.runtime.logs import set_up_logs
from evertick.runtime.metrics_server import serving_metrics
from evertick.runtime.process import quiet_interrupt, stop_signal
from evertick.runtime.tracing import tracing
from evertick.sdk.declarations import Declarations, WorkerOptions

logger = logging.getLogger("evertick.worker")


class DeclaringApp(Protocol):
    """What a worker needs of an `App`. Importing `App` itself would need the server's packages."""

    worker_options: WorkerOptions
    declarations: Declarations


AppOrHandlers: TypeAlias = DeclaringApp | Handlers | Mapping[str, Callable[..., Any]]


class Worker:
    """Runs the handlers of an app, or given ones, for a server elsewhere.

    Without a URL or key it uses EVERTICK_URL and EVERTICK_API_KEY. The key's role is `worker`, or `app`, which lets it
    also put the jobs that the app declares. It takes runs from `queues`, by default the app's.
    """

    def __init__(  # noqa: PLR0913 - what it runs, for whom and how much
        self,
        app_or_handlers: AppOrHandlers,
        url: str | None = None,
        api_key: str | None = None,
        *,
        queues: Sequence[str] | None = None,
        concurrency: int | None = None,
        threads: int | None = None,
        name: str | None = None,
    ) -> None:
        if isinstance(app_or_handlers, Mapping):
            self._app: DeclaringApp | None = None
            functions = app_or_handlers
            handlers = functions if isinstance(functions, Handlers) else Handlers(functions)
        else:
            self._app = app_or_handlers
            handlers = app_or_handlers.declarations.handlers
        options = self._app.worker_options if self._app else WorkerOptions("", DEFAULT_QUEUE, CONCURRENCY, THREADS)
        self.queues = tuple(queues or options.queues)
        self._server = server_settings(url, api_key, TIMEOUT_SECONDS, retries=0)
        self._source = HttpSource(self._client, self.queues)
        self._executor = Executor(
            self._source,
            handlers,
            name=name,
            role="remote_worker",
            concurrency=concurrency or options.concurrency,
            threads=threads or options.threads,
            hooks=handlers.hooks,
        )

    @property
    def name(self) -> str:
        return self._executor.name

    @property
    def counters(self) -> AttemptCounters:
        return self._executor.counters

    def run(self) -> None:
        """Work until SIGTERM or Ctrl-C."""
        if not logging.getLogger().handlers:
            settings = read_settings()
            set_up_logs(settings.log_level, settings.log_format, has_users_code=True)
        with quiet_interrupt():
            uvloop.run(self.serve())

    async def serve(self) -> None:
        """`run`, on an event loop that runs already."""
        with stop_signal() as stopping:
            async with self.running():
                await stopping.wait()

    @asynccontextmanager
    async def running(self, grace: timedelta = GRACE) -> AsyncIterator["Worker"]:
        """Run the worker for the duration of the block."""
        settings = read_settings()
        async with tracing(settings.tracing, self.name), serving_metrics(settings):
            await self.start()
            try:
                yield self
            finally:
                await self.stop(grace)

    async def start(self) -> None:
        """Work until `stop`. Raises ApiError if the server cannot be reached or refuses the key."""
        await self._executor.open()
        if self._app is not None:
            self._app.declarations.warn()
        try:
            await self._put_jobs()
        except BaseException:
            await self._executor.close()
            raise
        self._executor.run()
        logger.info("remote worker %s started on %s", self.name, ", ".join(self.queues), extra={"worker": self.name})

    async def stop(self, grace: timedelta = GRACE) -> None:
        """Lease no more, let running handlers finish within the grace, put back the rest, and record everything."""
        await self._executor.stop(grace)
        logger.info("remote worker %s stopped", self.name, extra={"worker": self.name})

    def _client(self, timeout: float | None) -> AsyncClient:
        server = self._server
        return AsyncClient(server.url, server.api_key, timeout=timeout or server.timeout, retries=0)

    async def _put_jobs(self) -> None:
        """Put the jobs that an app declares, if the key's role allows that. The role `worker` does not."""
        declared = {} if self._app is None else self._app.declarations.jobs
        for name, job in declared.items():
            if job.is_one_off:
                # Nothing here could remember that it was done.
                logger.warning("%s: job %s is not put: only an App with a database registers one-offs", job.place, name)
                continue
            try:
                await self._source.client.jobs.replace(name, **cast("JobFields", {**job.fields}))
            except Forbidden:
                text = "the key's role is not `app`, so the jobs that the app declares stay as they are: %s"
                logger.warning(text, ", ".join(sorted(declared)))
                return
