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
from evertick.domain.job.payload import Json
from evertick.executor.executor import CONCURRENCY, THREADS
from evertick.runtime.extras import server_extra
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
    from evertick.sdk.link import Database, Link, Submitted

F = TypeVar("F", bound=Function)
_T = TypeVar("_T")


class App:
    """Declares handlers and jobs, submits one-offs, and runs all of it.

    Data lies in the database of `database_url` or `EVERTICK_DATABASE_URL`, else in an embedded server in `data_dir`.
    Jobs that the app declares carry the label `app` with its `name`; its worker draws from `queue`, named as the app
    unless it is given: workers of different apps do not get each other's runs.
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
        self._database: Database | None = None
        self._links: dict[asyncio.AbstractEventLoop, asyncio.Task[Link]] = {}
        self._portal: Portal | None = None

    def cron(self, expression: str, *, name: str | None = None, **fields: Any) -> Callable[[F], F]:
        """Run the function at a cron expression's times. Any field of a job may follow, such as `timezone`."""
        return self.schedule(expression, name=name, **fields)

    def every(self, interval: str | timedelta, *, name: str | None = None, **fields: Any) -> Callable[[F], F]:
        """Run the function again and again: `5m`, `1h30m`, or a timedelta."""
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
            from evertick.sdk.link import submit  # noqa: PLC0415 - as in `link`
        target = target_of(self.declarations.handler_of(handler), queue or self.queue)
        job = {**fields, "schedule": when_text(delay, at), "target": target, "payload": payload}
        return await submit(job, self.link)

    def submit_sync(self, handler: str | Function, payload: Json = None, **fields: Any) -> "Submitted":
        """`submit` for code that is not async, such as handlers in threads. Takes the same."""
        refuse_on_loop("use `await app.submit(...)`")
        if self._portal is None:
            self._portal = Portal()
        return self._portal.call(self.submit(handler, payload, **fields))

    def run(self, *, schedules: bool = True) -> None:
        """Bring the database up to date, register the declared jobs, then schedule and work until SIGTERM or Ctrl-C.

        `schedules=False` only registers and works: for processes beside schedulers, which have migrated before.
        """
        if not logging.getLogger().handlers:
            set_up_logs()
        uvloop.run(self.serve(schedules=schedules))

    async def serve(self, *, schedules: bool = True) -> None:
        """`run`, on a loop that runs already."""
        with stop_signal() as stopping:
            async with self.running(schedules=schedules):
                await stopping.wait()

    @asynccontextmanager
    async def running(self, *, schedules: bool = True) -> AsyncIterator["DatabaseWorker"]:
        """The app at work, for as long as the block lasts."""
        link = await self.link(with_migrations=schedules)
        settings = self.settings()
        from evertick.sdk.process import at_work  # noqa: PLC0415 - as in `link`

        try:
            async with at_work(link, settings, self.worker_options, self.declarations, schedules=schedules) as worker:
                yield worker
        finally:
            await self.close()

    async def __aenter__(self) -> Self:
        await self.link()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of the database. The next `submit` would connect anew."""
        if self._portal is not None:
            await asyncio.to_thread(self.close_sync)
        opening = self._links.pop(asyncio.get_running_loop(), None)
        if opening is not None:
            await (await opening).close()
        if not self._links and self._database is not None:
            database, self._database = self._database, None
            await asyncio.to_thread(database.stop)

    def close_sync(self) -> None:
        """`close` for code that is not async: lets go of what `submit_sync` has opened."""
        refuse_on_loop("use `await app.close()`")
        if self._portal is not None:
            portal, self._portal = self._portal, None
            portal.call(self.close())
            portal.close()

    @asynccontextmanager
    async def redirected(self, url: str) -> AsyncIterator[None]:
        """The app on another database, for as long as the block lasts: for tests."""
        if self._links:
            raise RuntimeError("the app is connected already: close it first")
        before, self._database_url = self._database_url, url
        try:
            yield
        finally:
            await self.close()
            self._database_url = before

    def settings(self) -> Settings:
        """The settings of the environment and its file. What the app was given goes before them, a directory too."""
        settings = read_settings()
        if self._database_url is not None:
            return replace(settings, database_url=self._database_url)
        if self._data_dir is not None:
            return replace(settings, database_url=None, data_dir=self._data_dir)
        return settings

    async def link(self, *, with_migrations: bool = False) -> "Link":
        """The connection of this event loop, made when first needed."""
        # Imported here because a remote worker of the app does without a database, and so without its driver.
        with server_extra("an App that is not run by a remote worker"):
            from evertick.sdk.link import Database, open_link  # noqa: PLC0415
        loop = asyncio.get_running_loop()
        if loop not in self._links:
            if self._database is None:
                self._database = Database(self.settings())
            self._links[loop] = loop.create_task(open_link(self._database, with_migrations=with_migrations))
        try:
            return await asyncio.shield(self._links[loop])
        except Exception:
            self._links.pop(loop, None)
            raise


class Portal:
    """Lets plain functions call what is async: on a loop in a thread of its own, kept until `close`."""

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
    """A loop that waits for itself never ends."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(f"this is async code: {instead}")
