"""No handler is called under a lease that has run out, by a monotonic clock that the tests move."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from engine import PATIENCE_SECONDS, until
from evertick.roles.worker import DatabaseWorker
from evertick.store.database import connect
from hooked_pool import Run, hook_every_pool
from roles.workshop import Workshop, within_patience

LEASE = timedelta(seconds=60)


class Hands:
    """A monotonic clock that can be set forward, as if the process had stood still."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead

    def stand_still(self) -> None:
        self.ahead += LEASE.total_seconds() + 1


async def waits_for_lease(worker: DatabaseWorker) -> None:
    """Return when an attempt may not be started until its lease is extended."""

    async def waits() -> bool:
        return worker.waits_for_leases

    await until(waits)


class Turns:
    """A handler whose first call waits to be released; the others only count."""

    def __init__(self) -> None:
        self.calls = 0
        self.began = asyncio.Event()
        self.second = asyncio.Event()
        self.release = threading.Event()
        self._loop = asyncio.get_running_loop()

    async def in_task(self) -> None:
        self._note()
        if self.calls == 1:
            await asyncio.to_thread(self.release.wait, PATIENCE_SECONDS)

    def in_thread(self) -> None:
        self._note()
        if self.calls == 1:
            self.release.wait(PATIENCE_SECONDS)

    def _note(self) -> None:
        self.calls += 1
        self._loop.call_soon_threadsafe((self.began if self.calls == 1 else self.second).set)


@asynccontextmanager
async def leases_locked(workshop: Workshop) -> AsyncIterator[Any]:
    """Nobody can extend a lease, for as long as the block lasts."""
    other = await connect(workshop.url)
    async with other.transaction():
        await other.execute("SELECT FROM leases FOR UPDATE")
        yield other
    await other.close()


@pytest.mark.parametrize("kind", ["in_task", "in_thread"])
async def test_what_waited_past_its_lease_starts_when_the_database_has_confirmed_it(
    workshop: Workshop, kind: str
) -> None:
    hands, turns = Hands(), Turns()
    job = await workshop.ready(count=2, timeout_seconds=300)
    options: dict[str, Any] = {"concurrency": 1, "threads": 1, "lease_time": LEASE, "monotonic": hands}
    async with workshop.started({"handle": getattr(turns, kind), "other": other_kind(kind)}, **options) as worker:
        await within_patience(turns.began)

        async def has_leased_both() -> bool:
            return worker.counters.leased == 2

        await until(has_leased_both)
        async with leases_locked(workshop):
            hands.stand_still()
            turns.release.set()
            await waits_for_lease(worker)
            assert turns.calls == 1
        await within_patience(turns.second)
        await workshop.until_ended(job, 2)
    assert await workshop.results(job) == ["success", "success"]


def other_kind(kind: str) -> Callable[[], Any]:
    """A handler of the other kind, for whose slots the worker leases too."""

    async def in_task() -> None: ...

    def in_thread() -> None: ...

    return in_thread if kind == "in_task" else in_task


@pytest.mark.parametrize("kind", ["in_task", "in_thread"])
async def test_what_waited_past_its_lease_is_dropped_when_others_have_it(workshop: Workshop, kind: str) -> None:
    hands, turns = Hands(), Turns()
    job = await workshop.ready(count=2, timeout_seconds=300)
    options: dict[str, Any] = {"concurrency": 1, "threads": 1, "lease_time": LEASE, "monotonic": hands}
    async with workshop.started({"handle": getattr(turns, kind), "other": other_kind(kind)}, **options) as worker:
        await within_patience(turns.began)

        async def has_leased_both() -> bool:
            return worker.counters.leased == 2

        await until(has_leased_both)
        async with leases_locked(workshop) as other:
            hands.stand_still()
            turns.release.set()
            await waits_for_lease(worker)
            await other.execute("UPDATE leases SET worker = 'another'")

        async def is_dropped() -> bool:
            return worker.counters.lost == 1

        await until(is_dropped)
        assert turns.calls == 1
    # What had finished before is the first writer's.
    assert await workshop.results(job) == ["success"]


@pytest.mark.parametrize("statement", ["lease", "leased"])
async def test_what_an_answer_brings_that_was_under_way_for_too_long_is_not_started(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    hands = Hands()
    calls: list[int] = []

    async def late(run: Run, _: object) -> Any:
        answered = await run()
        hands.stand_still()
        return answered

    hook_every_pool(monkeypatch, f"lanes.{statement}", late)
    await workshop.ready()
    async with workshop.opened({"handle": lambda: calls.append(1)}, lease_time=LEASE, monotonic=hands) as worker:
        assert await worker.source.lease(1) == 1
        await waits_for_lease(worker)
    assert calls == []


async def test_a_thread_that_stood_still_before_the_call_does_not_make_it(workshop: Workshop) -> None:
    calls: list[int] = []
    main = threading.current_thread()

    def monotonic() -> float:
        return time.monotonic() + (0.0 if threading.current_thread() is main else 61.0)

    await workshop.ready()
    async with workshop.opened({"handle": lambda: calls.append(1)}, lease_time=LEASE, monotonic=monotonic) as worker:
        assert await worker.source.lease(1) == 1
        await waits_for_lease(worker)
    assert calls == []


async def test_what_could_not_be_started_before_the_worker_stopped_does_not_keep_it(workshop: Workshop) -> None:
    calls: list[int] = []
    main, is_called = threading.current_thread(), asyncio.Event()
    loop = asyncio.get_running_loop()
    go_on = threading.Event()

    def monotonic() -> float:
        if threading.current_thread() is main or threading.current_thread().name == "evertick-heartbeat":
            return time.monotonic()
        loop.call_soon_threadsafe(is_called.set)
        go_on.wait(PATIENCE_SECONDS)
        return time.monotonic() + 61.0

    job = await workshop.ready()
    worker = workshop.worker({"handle": lambda: calls.append(1)}, lease_time=LEASE, monotonic=monotonic)
    await worker.start()
    await within_patience(is_called)
    stopping = asyncio.create_task(worker.stop())
    await asyncio.sleep(0)  # so that it has begun
    go_on.set()
    await stopping
    assert (calls, await workshop.results(job), await workshop.free()) == ([], [], ["handle"])


async def test_handlers_go_on_while_their_lease_cannot_be_extended(workshop: Workshop) -> None:
    hands, turns = Hands(), Turns()
    job = await workshop.ready(timeout_seconds=300)
    async with workshop.started({"handle": turns.in_task}, lease_time=LEASE, monotonic=hands) as worker:
        await within_patience(turns.began)
        async with leases_locked(workshop):
            hands.stand_still()
            worker.sweep()
            assert worker.counters.lost == 0
        turns.release.set()
        await workshop.until_ended(job)
    assert await workshop.results(job) == ["success"]
    assert worker.counters.stale == 0


async def test_a_range_that_was_lost_before_it_was_read_is_left_alone(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    await workshop.ready()
    async with workshop.opened({"handle": lambda: calls.append(1)}, lease_time=LEASE) as worker:

        async def late(run: Run, _: object) -> Any:
            attempts = await run()
            worker.held_leases.extended(worker.held_leases.snapshot(), set(), 0.0)
            worker.sweep()
            return attempts

        hook_every_pool(monkeypatch, "lanes.leased", late)
        await worker.source.lease(1)
        assert worker.held == 0
    assert calls == []
