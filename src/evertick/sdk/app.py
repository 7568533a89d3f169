"""`App`: the way a Python program uses Evertick."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Literal,
    NamedTuple,
    ParamSpec,
    Self,
    TypeVar,
    Unpack,
    cast,
    overload,
)

import uvloop

from evertick.config.reading import read_settings
from evertick.config.settings import Settings
from evertick.executor.executor import CONCURRENCY, THREADS
from evertick.executor.handlers.hooks import Hook, checked_hook
from evertick.executor.handlers.registry import to_json
from evertick.executor.handlers.run import Run
from evertick.runtime.extras import server_extra
from evertick.runtime.liveness import reporting_liveness
from evertick.runtime.logs import set_up_logs
from evertick.runtime.process import quiet_interrupt, stop_signal
from evertick.sdk.control import AppControl
from evertick.sdk.declarations import (
    Declarations,
    Function,
    WorkerOptions,
    checked_schema,
    every_text,
    name_of,
    orphans_of,
    queue_of,
    rrule_text,
    target_of,
    when_text,
)
from evertick.sdk.functions import (
    DeclaredFields,
    Decorator,
    HandlerFunction,
    SubmitOptions,
    check_options,
    submittable,
)
from evertick.sdk.opened import Opened, refuse_on_loop

if TYPE_CHECKING:
    from evertick.roles.worker import DatabaseWorker
    from evertick.sdk.process import AppConnection
    from evertick.sdk.submitting import Submitted, SubmittedSync

P = ParamSpec("P")
R = TypeVar("R")
_F = TypeVar("_F", bound=Callable[..., Any])
_H = TypeVar("_H", bound=Hook)


class OneOff(NamedTuple):
    """What is submitted: the fields of a job, the application's connection, and the idempotency key."""

    fields: dict[str, Any]
    connection: Any
    key: str | None


class App(AppControl):
    """Declares handlers and jobs, submits one-offs, and runs all of it.

    The database is the one of `database_url` or `EVERTICK_DATABASE_URL`, else that of an embedded server in `data_dir`.
    Jobs that the app declares have the label `app` with its `name`. Its worker takes runs from `queue`, by default a
    queue with the app's name, so that workers of different apps do not get each other's runs. `schema` is where
    Evertick's tables are in the database. `orphans` says what happens to jobs that the code declares no more.
    """

    def __init__(  # noqa: PLR0913 - all optional
        self,
        *,
        name: str = "app",
        queue: str | None = None,
        database_url: str | None = None,
        data_dir: str | Path | None = None,
        schema: str | None = None,
        orphans: Literal["warn", "pause", "delete"] = "warn",
        concurrency: int = CONCURRENCY,
        threads: int = THREADS,
    ) -> None:
        self.name = name
        self.queue = queue = queue_of(name, queue)
        self.declarations = Declarations(name, queue, orphans_of(orphans))
        self._database_url = database_url
        self._data_dir = None if data_dir is None else Path(data_dir)
        self._schema = schema if schema is None else checked_schema(schema)
        self.worker_options = WorkerOptions(name, queue, concurrency, threads)
        self._opened = Opened()

    def cron(
        self, expression: str, *, name: str | None = None, keep_result: bool = True, **fields: Unpack[DeclaredFields]
    ) -> Decorator:
        """Run the function at a cron expression's times. Any field of a job may follow, such as `timezone`."""
        return self.schedule(expression, name=name, keep_result=keep_result, **fields)

    def every(
        self,
        interval: str | timedelta,
        *,
        name: str | None = None,
        keep_result: bool = True,
        **fields: Unpack[DeclaredFields],
    ) -> Decorator:
        """Run the function at an interval: `5m`, `1h30m`, or a timedelta."""
        return self.schedule(every_text(interval), name=name, keep_result=keep_result, **fields)

    def rrule(
        self, rule: str, *, name: str | None = None, keep_result: bool = True, **fields: Unpack[DeclaredFields]
    ) -> Decorator:
        """Run the function by an RFC 5545 recurrence: `FREQ=MONTHLY;BYDAY=-1FR`."""
        return self.schedule(rrule_text(rule), name=name, keep_result=keep_result, **fields)

    def schedule(
        self, text: str, *, name: str | None = None, keep_result: bool = True, **fields: Unpack[DeclaredFields]
    ) -> Decorator:
        """Run the function by a schedule of any form. The job has the function's name unless it is given another.

        A one-off is created once for each declaration, however often the app starts. `keep_result=False`: what the
        function returns is not kept with its runs.
        """

        def declare(function: Function) -> Any:
            handler = self.declarations.add_job(function, text, name, fields, keep_result=keep_result)
            return submittable(self, handler, function)

        return cast("Decorator", declare)

    @overload
    def handler(
        self, function: Callable[Concatenate[Run, P], Coroutine[Any, Any, R]], /
    ) -> HandlerFunction[Concatenate[Run, P], P, Coroutine[Any, Any, R], R]: ...
    @overload
    def handler(
        self, function: Callable[Concatenate[Run, P], R], /
    ) -> HandlerFunction[Concatenate[Run, P], P, R, R]: ...
    @overload
    def handler(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> HandlerFunction[P, P, Coroutine[Any, Any, R], R]: ...
    @overload
    def handler(self, function: Callable[P, R], /) -> HandlerFunction[P, P, R, R]: ...
    @overload
    def handler(
        self, given: str | None = None, /, *, name: str | None = None, keep_result: bool = True
    ) -> Decorator: ...
    def handler(self, given: Any = None, /, *, name: str | None = None, keep_result: bool = True) -> Any:
        """Let jobs call the function by a name, its own by default: `@app.handler`, or `@app.handler("other")`.

        `keep_result=False`: what it returns is not kept with its runs.
        """

        def declare(function: Function) -> Any:
            known_as = name or (given if isinstance(given, str) else name_of(function))
            self.declarations.add_handler(known_as, function, keep_result=keep_result)
            return submittable(self, known_as, function)

        return declare(given) if callable(given) else declare

    def middleware(self, function: _F) -> _F:
        """Call the function around handlers: `async def wrap(run, call_next)`, which returns `await call_next()`.

        An async one wraps all handlers. One that is not wraps handlers that are not async, in their threads. The one
        that is added first is the outermost.
        """
        self.declarations.handlers.add_middleware(function)
        return function

    def on_failure(self, hook: _H) -> _H:
        """Call the function, async or not, with run and error when an attempt fails. It cannot change the outcome."""
        self.declarations.handlers.hooks.on_failure.append(checked_hook(hook))
        return hook

    def on_dead(self, hook: _H) -> _H:
        """Call the function, async or not, with run and error when a run fails for good and becomes a dead letter."""
        self.declarations.handlers.hooks.on_dead.append(checked_hook(hook))
        return hook

    async def submit(
        self, handler: str | Function, payload: Any = None, **options: Unpack[SubmitOptions]
    ) -> "Submitted[Any]":
        """Run a handler once: now, after a `delay` (`3d`), or `at` an instant. Any field of a job may follow.

        The payload holds the handler's parameters by name. With a `connection` of asyncpg, psycopg 3, SQLAlchemy or
        Django the job is written in its transaction: it exists if that commits. With an `idempotency_key` the same
        submission is made once, and gets the same run again.
        """
        with server_extra("App.submit"):
            from evertick.sdk.submitting import Submission, submit, submit_in  # noqa: PLC0415 - as in `connection`
        one_off = self._one_off(handler, payload, options)
        if one_off.connection is None:
            submitted = await submit(one_off.fields, self.connection, one_off.key)
        else:
            submitted = await submit_in(
                Submission(one_off.fields, self.connection, one_off.connection, one_off.key, is_async=True)
            )
        return self._typed(submitted, one_off)

    def submit_sync(
        self, handler: str | Function, payload: Any = None, **options: Unpack[SubmitOptions]
    ) -> "SubmittedSync[Any]":
        """`submit` for sync code, such as handlers in threads. It takes the same arguments."""
        refuse_on_loop("use `await app.submit(...)`")
        with server_extra("App.submit_sync"):
            from evertick.sdk.submitting import Submission, submit, submit_in_sync  # noqa: PLC0415 - as in `connection`
        one_off = self._one_off(handler, payload, options)
        call = self._opened.loop_thread().call
        if one_off.connection is None:
            submitted = call(submit(one_off.fields, self.connection, one_off.key))
        else:
            submission = Submission(one_off.fields, self.connection, one_off.connection, one_off.key, is_async=False)
            submitted = submit_in_sync(submission, call)
        return self._sync(self._typed(submitted, one_off))

    def _typed(self, submitted: "Submitted[Any]", one_off: "OneOff") -> "Submitted[Any]":
        """With what makes its result from JSON, if the handler is here."""
        read = self.declarations.read_output(one_off.fields["target"]["handler"])
        return submitted if read is None else replace(submitted, _read_output=read)

    def _one_off(self, handler: str | Function, payload: Any, options: SubmitOptions) -> "OneOff":
        check_options(options)
        fields: dict[str, Any] = {**options}
        connection, queue = fields.pop("connection", None), fields.pop("queue", None) or self.queue
        key = fields.pop("idempotency_key", None)
        schedule = when_text(fields.pop("delay", None), fields.pop("at", None))
        name, value = self.declarations.handler_of(handler), to_json(payload)
        if queue == self.queue:
            self.declarations.check_payload(name, value)
        job = {**fields, "schedule": schedule, "target": target_of(name, queue), "payload": value}
        return OneOff(job, connection, key)

    def run(self, *, schedules: bool = True) -> None:
        """Bring the database up to date, register the declared jobs, then schedule and work until SIGTERM or Ctrl-C.

        `schedules=False` only registers and works: for processes beside schedulers, which have migrated before.
        """
        if not logging.getLogger().handlers:
            settings = self.settings()
            set_up_logs(settings.log_level, settings.log_format, has_users_code=True)
        with quiet_interrupt():
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
        opened = self._opened
        if opened.has_loop_thread:
            await asyncio.to_thread(self.close_sync)
        opening = opened.connections.pop(asyncio.get_running_loop(), None)
        if opening is not None:
            await (await opening).close()
        if not opened.connections and opened.server is not None:
            server, opened.server = opened.server, None
            await asyncio.to_thread(server.stop)

    def close_sync(self) -> None:
        """`close` for sync code: closes what `submit_sync` has opened."""
        refuse_on_loop("use `await app.close()`")
        thread = self._opened.take_loop_thread()
        if thread is not None:
            thread.call(self.close())
            thread.close()

    @asynccontextmanager
    async def redirected(self, url: str) -> AsyncIterator[None]:
        """Use another database for the duration of the block: for tests."""
        if self._opened.connections:
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
        if self._schema is not None:
            settings = replace(settings, database_schema=self._schema)
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
        loop, opened = asyncio.get_running_loop(), self._opened
        if loop not in opened.connections:
            if opened.server is None:
                opened.server = AppServer(self.settings())
            opening = open_connection(opened.server, with_migrations=with_migrations)
            opened.connections[loop] = loop.create_task(opening)
        try:
            return await asyncio.shield(opened.connections[loop])
        except Exception:
            opened.connections.pop(loop, None)
            raise
