"""Middleware around handlers, and hooks that are told of failures."""

import asyncio
import contextvars
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from engine import PATIENCE_SECONDS, until
from evertick import App, DoNotRetry, InvalidInput, RetryLater, Run, RunFailed
from evertick.client import AsyncClient
from sdk.served import Served, submitted, worker_of

scope: contextvars.ContextVar[str] = contextvars.ContextVar("scope", default="none")


def make_app(database_url: str | None, seen: list[Any]) -> App:
    app = App(name="shop", database_url=database_url)

    @app.middleware
    async def outer(run: Run, call_next: Callable[[], Awaitable[Any]]) -> Any:
        scope.set(run.name)
        seen.append(("outer", threading.current_thread().name.startswith("evertick-")))
        try:
            return [await call_next(), "wrapped"]
        except ValueError as error:
            raise DoNotRetry(f"wrapped {error}") from error

    @app.middleware
    def inner(run: Run, call_next: Callable[[], Any]) -> Any:
        seen.append(("inner", scope.get(), threading.current_thread().name.startswith("evertick-")))
        return call_next()

    @app.handler
    async def on_loop(run: Run) -> str:
        return scope.get()

    @app.handler
    def in_thread(run: Run, *, fails: bool = False) -> str:
        if fails:
            raise ValueError("odd")
        return scope.get()

    return app


async def test_middleware_wraps_async_and_other_handlers(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Any] = []
    app = make_app(database_url, seen)
    async with app.running(), asyncio.timeout(PATIENCE_SECONDS):
        async_one = await app.submit("on_loop", name="a")
        assert (await async_one.wait()).output == ["a", "wrapped"]
        assert seen == [("outer", False)], "what is not async wraps no async handler"
        del seen[:]
        other = await app.submit("in_thread", name="b")
        assert (await other.wait()).output == ["b", "wrapped"]
        assert seen == [("outer", False), ("inner", "b", True)]
        with pytest.raises(RunFailed, match="dead after 1 attempt: DoNotRetry: wrapped odd"):
            await (await app.submit("in_thread", {"fails": True})).result()
    assert "middleware 'inner' does not wrap async handlers (on_loop): one that is async wraps all" in caplog.text


async def test_a_traceback_through_middleware_has_the_users_frames_alone(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(name="shop", database_url=database_url)

    @app.middleware
    async def wrapped(run: Run, call_next: Callable[[], Awaitable[Any]]) -> Any:
        return await call_next()

    @app.handler
    def fails() -> None:
        raise ValueError("odd")

    async with app.running(), asyncio.timeout(PATIENCE_SECONDS):
        error = (await (await fails.options(max_retries=0).submit()).wait()).error
    assert error is not None
    assert error.startswith("ValueError: odd\n")
    for text in (error, caplog.text):
        frames = [line.strip() for line in text.splitlines() if line.strip().startswith("File ")]
        assert [(__file__ in frame, frame.rpartition(" in ")[2]) for frame in frames] == [
            (True, "wrapped"),
            (True, "fails"),
        ]


async def test_many_threads_share_the_loop_for_their_middleware(database_url: str) -> None:
    app = make_app(database_url, [])
    async with app.running(), asyncio.timeout(PATIENCE_SECONDS):
        runs = [await app.submit("in_thread", name=f"n{number}") for number in range(30)]
        results = await asyncio.gather(*(run.wait() for run in runs))
    assert [run.output for run in results] == [[f"n{number}", "wrapped"] for number in range(30)]


async def test_a_handler_that_exits_inside_async_middleware_ends_its_attempt_and_not_the_worker(
    database_url: str,
) -> None:
    app = make_app(database_url, [])

    @app.handler
    def leave() -> None:
        raise SystemExit(3)

    async with app.running(), asyncio.timeout(PATIENCE_SECONDS):
        with pytest.raises(RunFailed, match="dead after 1 attempt: SystemExit: 3"):
            await (await app.submit("leave", max_retries=0)).result()
        assert (await (await app.submit("in_thread", name="b")).wait()).output == ["b", "wrapped"]


def test_what_cannot_be_called_is_refused_where_it_is_declared() -> None:
    app = App(name="shop")
    with pytest.raises(InvalidInput, match="middleware: 'none' must take two arguments, the run and call_next"):

        @app.middleware
        def none() -> None: ...

    with pytest.raises(InvalidInput, match="hook: 'one' must take two arguments, the run and the error"):

        @app.on_dead  # type: ignore[type-var]
        def one(run: Run) -> None: ...


def with_hooks(app: App) -> dict[str, list[tuple[str, int, str]]]:
    told: dict[str, list[tuple[str, int, str]]] = {"failed": [], "dead": []}

    @app.on_failure
    def failed(run: Run, error: BaseException) -> None:
        told["failed"].append((run.name, run.attempt, repr(error)))
        raise RuntimeError("the hook is broken")

    @app.on_failure
    async def also(run: Run, error: BaseException) -> None:
        raise OSError("so is this one")

    @app.on_dead
    async def dead(run: Run, error: BaseException) -> None:
        told["dead"].append((run.name, run.attempt, repr(error)))

    @app.handler
    async def fail(run: Run) -> None:
        if run.attempt == 1:
            raise RetryLater(0, "not yet")
        raise ValueError("odd")

    @app.handler
    async def hang() -> None:
        await asyncio.Event().wait()

    return told


async def test_hooks_are_told_and_change_nothing(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    app = App(name="shop", database_url=database_url)
    told = with_hooks(app)
    async with app.running(), asyncio.timeout(PATIENCE_SECONDS):
        options: dict[str, Any] = {"max_retries": 1, "retry_delay_seconds": 0}
        await (await app.submit("fail", name="odd", **options)).wait()
        await (await app.submit("hang", name="slow", timeout_seconds=1, max_retries=0)).wait()
    assert told["failed"][:2] == [("odd", 1, "RetryLater('not yet')"), ("odd", 2, "ValueError('odd')")]
    late = ("slow", 1, 'TimeoutError("not finished after 1 s, the job\'s timeout")')
    assert told["failed"][2:] == [late]
    assert told["dead"] == [("odd", 2, "ValueError('odd')"), late]
    assert "hook failed raised; the outcome of the run stays as it is" in caplog.text
    assert "hook also raised" in caplog.text


async def test_hooks_of_a_remote_worker_are_told_of_dead_runs_too(house: Served, client: AsyncClient) -> None:
    app = App(name="shop")
    told = with_hooks(app)
    async with (await worker_of(house, app, queues=("default",))).running():
        run = await submitted(client, "fail", name="odd", max_retries=1, retry_delay_seconds=0)
        await house.until_run(client, run, "dead")

        async def is_told() -> bool:
            return bool(told["dead"])

        await until(is_told)
    assert told["dead"] == [("odd", 2, "ValueError('odd')")]
    assert len(told["failed"]) == 2


async def test_progress_is_shown_while_a_run_runs(database_url: str) -> None:
    app = App(name="shop", database_url=database_url)
    go_on = threading.Event()

    @app.handler
    def count(run: Run) -> str:
        run.progress("0 of 10")
        run.progress("3 of\n 10" + "!" * 500)
        go_on.wait(PATIENCE_SECONDS)
        return "done"

    async with app.running(), asyncio.timeout(PATIENCE_SECONDS):
        run = await app.submit("count")
        text = "3 of 10" + "!" * 193

        async def is_shown() -> bool:
            entries = await app.history()
            return [getattr(each, "progress", None) for each in entries] == [text]

        await until(is_shown)
        assert getattr((await app.history(run.job_id))[0], "progress", None) == text
        go_on.set()
        assert (await run.wait()).progress is None


async def test_progress_of_a_remote_worker_is_shown_too(house: Served, client: AsyncClient) -> None:
    app = App(name="shop")
    go_on = asyncio.Event()

    @app.handler
    async def count(run: Run) -> None:
        run.progress("1 of 2")
        await go_on.wait()

    async with (await worker_of(house, app, queues=("default",))).running():
        run = await submitted(client, "count")

        async def is_shown() -> bool:
            return (await client.runs.get(run)).progress == "1 of 2"

        await until(is_shown)
        go_on.set()
        await house.until_run(client, run, "success")
