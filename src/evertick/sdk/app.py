"""`App`: the way a Python program uses Evertick."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import uvloop

from evertick.config import Settings, read_settings
from evertick.domain.job.checks import Json
from evertick.executor.executor import CONCURRENCY, THREADS
from evertick.runtime.extras import server_extra
from evertick.runtime.liveness import reporting_liveness
from evertick.runtime.logs import set_up_logs
from evertick.runtime.process import stop_signal
from evertick.sdk.declarations import (
    Declarations,
    Function,
    WorkerOptions,
    every_text,
    name_of,
    queue_of,
    rrule_text,
    target_of,
    when_text,
)

if TYPE_CHECKING:
    from evertick.roles.worker import DatabaseWorker
    from evertick.sdk.process import AppConnection, AppServer, Submitted

F = TypeVar("F", bound=Function)
_T = TypeVar("_T")


class App:
    """Declares handlers and jobs, submits one-offs, and runs all of it.

    The database is the one of `database_url` or `EVERTICK_DATABASE_URL`, else that of an embedded server in `data_dir`.
    Jobs that the app declares have the label `app` with its `name`. Its worker takes runs from `queue`, by default a
    queue with the app's name, so that workers of different apps do not get each other's runs.
    """

    def __init__(  # noqa: PLR0913 - all optional
        self,
        *,
        name: str = "app",
        queue: str | None = None,
        database_url: str | None = None,
        data_dir: str | Path | None = None,
        concurrency: int = CONCURRENCY,
        threads: int = THREADS,
    ) -> None:
        self.name = name
        self.queue = queue = queue_of(name, queue)
        self.declarations = Declarations(name, queue)
        self._database_url = database_url
        self._data_dir = None if data_dir is None else Path(data_dir)
        self.worker_options = WorkerOptions(name, queue, concurrency, threads)
        self._server: AppServer | None = None
        self._connections: dict[asyncio.AbstractEventLoop, asyncio.Task[AppConnection]] = {}
        self._loop_thread: LoopThread | None = None

    def cron(self, expression: str, *, name: str | None = None, **fields: Any) -> Callable[[F], F]:
        """Run the function at a cron expression's times. Any field of a job may follow, such as `timezone`."""
        return self.schedule(expression, name=name, **fields)

    def every(self, interval: str | timedelta, *, name: str | None = None, **fields: Any) -> Callable[[F], F]:
        """Run the function at an interval: `5m`, `1h30m`, or a timedelta."""
        return self.schedule(every_text(interval), name=name, **fields)

    def rrule(self, rule: str, *, name: str | None = None, **fields: Any) -> Callable[[F], F]:
        """Run the function by an RFC 5545 recurrence: `FREQ=MONTHLY;BYDAY=-1FR`."""
        return self.schedule(rrule_text(rule), name=name, **fields)

    def schedule(self, text: str, *, name: str | None = None, **fields: Any) -> Callable[[F], F]:
        """Run the function by a schedule of any form. The job has the function's name unless it is given another."""

        def declare(function: F) -> F:
            self.declarations.add_job(function, text, name, fields)
            return function

        return declare

    def handler(self, name: str | None = None) -> Callable[[F], F]:
        """Let jobs call the function by a name, its own by default."""

        def declare(function: F) -> F:
            self.declarations.add_handler(name or name_of(function), function)
            return function

        return declare

    async def submit(
        self,
        handler: str | Function,
        payload: Json = None,
        *,
        delay: str | timedelta | None = None,
        at: datetime | None = None,
        queue: str | None = None,
        **fields: Any,
    ) -> "Submitted":
        """Run a handler once: now, after a delay (`3d`), or at an instant. Any field of a job may follow."""
        with server_extra("App.submit"):
            from evertick.sdk.process import submit  # noqa: PLC0415 - as in `connection`
        target = target_of(self.declarations.handler_of(handler), queue or self.queue)
        job = {**fields, "schedule": when_text(delay, at), "target": target, "payload": payload}
        return await submit(job, self.connection)

    def submit_sync(self, handler: str | Function, payload: Json = None, **fields: Any) -> "Submitted":
        """`submit` for sync code, such as handlers in threads. It takes the same arguments."""
        refuse_on_loop("use `await app.submit(...)`")
        if self._loop_thread is None:
            self._loop_thread = LoopThread()
        return self._loop_thread.call(self.submit(handler, payload, **fields))

    def run(self, *, schedules: bool = True) -> None:
        """Bring the database up to date, register the declared jobs, then schedule and work until SIGTERM or Ctrl-C.

        `schedules=False` only registers and works: for processes beside schedulers, which have migrated before.
        """
        if not logging.getLogger().handlers:
            set_up_logs(log_format=self.settings().log_format)
        uvloop.run(self.serve(schedules=schedules))

    async def serve(self, *, schedules: bool = True) -> None:
        """`run`, on an event loop that runs already."""
        with stop_signal() as stopping:
            async with self.running(schedules=schedules), reporting_liveness(self.settings().health_file):
                await stopping.wait()

    @asynccontextmanager
    async def running(self, *, schedules: bool = True) -> AsyncIterator["DatabaseWorker"]:
        """Run the app for the duration of the block."""
        connection = await self.connection(with_migrations=schedules)
        settings = self.settings()
        from evertick.sdk.process import running_roles  # noqa: PLC0415 - as in `connection`

        try:
            async with running_roles(
                connection, settings, self.worker_options, self.declarations, schedules=schedules
            ) as worker:
                yield worker
        finally:
            await self.close()

    async def __aenter__(self) -> Self:
        await self.connection()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection to the database. The next `submit` opens it again."""
        if self._loop_thread is not None:
            await asyncio.to_thread(self.close_sync)
        opening = self._connections.pop(asyncio.get_running_loop(), None)
        if opening is not None:
            await (await opening).close()
        if not self._connections and self._server is not None:
            server, self._server = self._server, None
            await asyncio.to_thread(server.stop)

    def close_sync(self) -> None:
        """`close` for sync code: closes what `submit_sync` has opened."""
        refuse_on_loop("use `await app.close()`")
        if self._loop_thread is not None:
            thread, self._loop_thread = self._loop_thread, None
            thread.call(self.close())
            thread.close()

    @asynccontextmanager
    async def redirected(self, url: str) -> AsyncIterator[None]:
        """Use another database for the duration of the block: for tests."""
        if self._connections:
            raise RuntimeError("the app is connected already: close it first")
        before, self._database_url = self._database_url, url
        try:
            yield
        finally:
            await self.close()
            self._database_url = before

    def settings(self) -> Settings:
        """The settings of environment and config file, overridden by the arguments of the app."""
        settings = read_settings()
        if self._database_url is not None:
            return replace(settings, database_url=self._database_url)
        if self._data_dir is not None:
            return replace(settings, database_url=None, data_dir=self._data_dir)
        return settings

    async def connection(self, *, with_migrations: bool = False) -> "AppConnection":
        """The connection of this event loop, opened at the first call."""
        # Imported here because a remote worker of the app does without a database, and so without its driver.
        with server_extra("an App that is not run by a remote worker"):
            from evertick.sdk.process import AppServer, open_connection  # noqa: PLC0415
        loop = asyncio.get_running_loop()
        if loop not in self._connections:
            if self._server is None:
                self._server = AppServer(self.settings())
            self._connections[loop] = loop.create_task(open_connection(self._server, with_migrations=with_migrations))
        try:
            return await asyncio.shield(self._connections[loop])
        except Exception:
            self._connections.pop(loop, None)
            raise


class LoopThread:
    """An event loop in a thread of its own, on which sync code calls async functions, until `close`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="evertick-submit", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def refuse_on_loop(instead: str) -> None:
    """Raise RuntimeError on an event loop: a loop that waits for itself never ends."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(f"this is async code: {instead}")
