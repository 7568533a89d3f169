"""One thread computes for all tenants: each gets an equal share of its time, and what nobody waits for is not done."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import pytest

from evertick.runtime.background import MAX_PENDING_PER_TENANT, SLICE_SECONDS, Background, Steps, TooBusy


class Bench:
    """A thread under a clock that only its pieces move, and the order in which they were done."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.done: list[str] = []
        self.background = Background(lambda: self.seconds)

    def piece(self, name: str, seconds: float = 0.01) -> Callable[[], str]:
        def work() -> str:
            self.seconds += seconds
            self.done.append(name)
            return name

        return work

    def ask(self, name: str, seconds: float = 0.01, tenant: str | None = None) -> "asyncio.Task[str]":
        return asyncio.create_task(self.background.run(tenant or name[0], self.piece(name, seconds)))

    @asynccontextmanager
    async def held(self, tenant: str = "holder") -> AsyncIterator[None]:
        """Nothing is begun inside: the thread is busy with another tenant's piece."""
        begun, may_end = threading.Event(), threading.Event()

        def hold() -> None:
            begun.set()
            may_end.wait()
            self.seconds += 0.01

        holding = asyncio.create_task(self.background.run(tenant, hold))
        await asyncio.to_thread(begun.wait)
        try:
            yield
            await _all_have_run()
        finally:
            may_end.set()
        await holding

    async def forgotten(self) -> None:
        """Return once the thread has nothing left to remember."""
        while self.background.tenants:  # noqa: ASYNC110 - the thread forgets on its own
            await asyncio.sleep(0)


async def _all_have_run() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_work_returns_what_it_returns_and_raises_what_it_raises() -> None:
    bench = Bench()
    assert await bench.ask("a") == "a"
    for error in (ValueError("no"), StopIteration("odd"), SystemExit(3)):

        def fail(error: BaseException = error) -> None:
            raise error

        with pytest.raises((type(error), RuntimeError)):  # a coroutine cannot raise StopIteration
            await bench.background.run("a", fail)
    assert await bench.ask("b") == "b"


async def test_tenants_share_the_threads_time_not_its_pieces() -> None:
    bench = Bench()
    async with bench.held():
        tasks = [bench.ask(f"long {number}", 0.100) for number in range(5)]
        tasks += [bench.ask(f"short {number}", 0.010) for number in range(40)]
    await asyncio.gather(*tasks)
    until = bench.done.index("long 3")  # three long pieces are done
    shorts = sum(name.startswith("short") for name in bench.done[:until])
    assert abs(shorts * 0.010 - 3 * 0.100) <= 0.100


async def test_a_newcomers_one_piece_comes_before_the_second_of_a_tenant_with_many() -> None:
    bench = Bench()
    async with bench.held("a"):
        tasks = [bench.ask(f"a{number}", 1) for number in range(MAX_PENDING_PER_TENANT - 1)]
        await _all_have_run()
        tasks.append(bench.ask("newcomer"))
    await asyncio.gather(*tasks)
    assert bench.done.index("newcomer") == 0


async def test_idle_time_gives_no_credit() -> None:
    bench = Bench()
    await bench.ask("idle")
    begun, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        may_end.wait()

    busy: list[asyncio.Task[Any]] = [bench.ask(f"busy{number}", 1.0) for number in range(50)]
    busy.append(asyncio.create_task(bench.background.run("b", hold)))
    busy += [bench.ask(f"busy{number}", 1.0) for number in range(50, 60)]
    await asyncio.to_thread(begun.wait)
    served = len(bench.done)
    idle = [bench.ask(f"idle{number}", 1.0) for number in range(10)]
    await _all_have_run()
    may_end.set()
    await asyncio.gather(*busy, *idle)
    following = bench.done[served : served + 8]
    assert sum(name.startswith("idle") for name in following) == 4


async def test_a_tenant_that_asks_one_by_one_pays_for_its_long_pieces() -> None:
    bench = Bench()
    async with bench.held():
        shorts = [bench.ask(f"short {number}", 0.01) for number in range(90)]

        async def one_by_one() -> None:
            for number in range(3):
                await bench.background.run("long", bench.piece(f"long {number}", 0.2))

        longs = asyncio.create_task(one_by_one())
    await asyncio.gather(longs, *shorts)
    between = bench.done[bench.done.index("long 0") : bench.done.index("long 1")]
    assert len(between) >= 20  # 20 short pieces take as long as one long one


async def test_cancelled_work_that_has_not_begun_never_runs() -> None:
    bench = Bench()
    async with bench.held():
        tasks = [bench.ask(f"a{number}") for number in range(50)]
        await _all_have_run()
        assert bench.background.waiting("a") == 50
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert bench.background.waiting("a") == 0
    assert await bench.ask("b") == "b"
    assert bench.done == ["b"]


async def test_cancelling_a_caller_whose_work_is_under_way_harms_nobody() -> None:
    bench = Bench()
    begun, may_end = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        may_end.wait()

    task = asyncio.create_task(bench.background.run("a", work))
    await asyncio.to_thread(begun.wait)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    may_end.set()
    assert await bench.ask("b") == "b"


def _in_steps(bench: Bench, name: str, count: int, seconds: float = SLICE_SECONDS) -> Steps[str]:
    for number in range(count):
        bench.piece(f"{name}{number}", seconds)()
        yield
    return name


async def test_long_work_in_steps_lets_others_have_their_turns() -> None:
    bench = Bench()
    async with bench.held():
        steps = asyncio.create_task(bench.background.run_steps("a", _in_steps(bench, "a", 100)))
        others = [bench.ask(f"{tenant} others") for tenant in "bcd"]
    assert await steps == "a"
    await asyncio.gather(*others)
    assert bench.done.index("d others") <= 4


async def test_short_work_of_a_tenant_does_not_wait_for_all_of_its_long_work() -> None:
    bench = Bench()
    async with bench.held():
        long = asyncio.create_task(bench.background.run_steps("a", _in_steps(bench, "long ", 3)))
        await _all_have_run()
        short = bench.ask("short", tenant="a")
    await asyncio.gather(long, short)
    assert bench.done == ["long 0", "short", "long 1", "long 2"]


async def test_short_steps_share_a_slice() -> None:
    bench = Bench()
    async with bench.held():
        steps = asyncio.create_task(bench.background.run_steps("a", _in_steps(bench, "a", 8, SLICE_SECONDS / 4.1)))
        other = bench.ask("b")
    await asyncio.gather(steps, other)
    assert bench.done.index("b") in {0, 5}


async def test_work_in_steps_ends_when_nobody_waits_for_it_any_more() -> None:
    bench = Bench()
    begun, may_go_on = threading.Event(), threading.Event()
    ended: list[str] = []

    def steps() -> Steps[None]:
        try:
            begun.set()
            may_go_on.wait()
            while True:
                yield
        finally:
            ended.append(threading.current_thread().name)

    task = asyncio.create_task(bench.background.run_steps("a", steps()))
    await asyncio.to_thread(begun.wait)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    may_go_on.set()
    assert await bench.ask("b") == "b"
    assert ended == ["background"]


async def test_what_one_work_sets_in_its_context_is_not_seen_between_its_steps() -> None:
    bench = Bench()
    seen: list[str | None] = []
    name: ContextVar[str | None] = ContextVar("name", default=None)

    def steps(mine: str) -> Steps[None]:
        token = name.set(mine)
        for _ in range(3):
            bench.seconds += SLICE_SECONDS
            seen.append(name.get() if name.get() != mine else None)
            yield
        name.reset(token)

    async with bench.held():
        tasks = [asyncio.create_task(bench.background.run_steps(tenant, steps(tenant))) for tenant in "ab"]
    await asyncio.gather(*tasks)
    assert seen == [None] * 6


async def test_a_tenant_with_too_much_waiting_is_refused_and_the_others_are_not() -> None:
    bench = Bench()
    async with bench.held():
        tasks = [bench.ask(f"a{number}") for number in range(MAX_PENDING_PER_TENANT)]
        await _all_have_run()
        with pytest.raises(TooBusy, match=str(MAX_PENDING_PER_TENANT)):
            await bench.background.run("a", bench.piece("over"))
        tasks[0].cancel()
        await asyncio.gather(tasks[0], return_exceptions=True)
        tasks[0] = bench.ask("a again")
        tasks.append(bench.ask("b"))
    await asyncio.gather(*tasks)
    assert "over" not in bench.done
    assert {"a again", "b"} <= set(bench.done)


async def test_idle_tenants_are_forgotten() -> None:
    bench = Bench()
    await asyncio.gather(*[bench.ask("x", tenant=f"tenant {number}") for number in range(1000)])
    await bench.forgotten()


def _in_a_loop_of_its_own(work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    thread.join()


def test_callers_in_several_event_loops_are_served() -> None:
    bench = Bench()

    async def ask() -> None:
        assert await bench.ask("a") == "a"

    for _ in range(3):
        asyncio.run(ask())
        _in_a_loop_of_its_own(ask)
    assert len(bench.done) == 6


def test_a_callers_loop_that_was_closed_hurts_nobody() -> None:
    bench = Bench()
    begun, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        may_end.wait()

    loop = asyncio.new_event_loop()

    async def leave_work_behind() -> None:
        loop.create_task(bench.background.run("a", hold))  # noqa: RUF006 - nobody looks after it
        loop.create_task(bench.background.run("b", bench.piece("never")))  # noqa: RUF006
        await asyncio.to_thread(begun.wait)

    loop.run_until_complete(leave_work_behind())
    loop.close()  # its tasks are left as they are, and not cancelled
    may_end.set()

    async def ask() -> None:
        assert await bench.ask("c") == "c"

    asyncio.run(ask())
    assert bench.done == ["c"]


def test_the_end_of_the_process_does_not_wait_for_work() -> None:
    code = """
import asyncio, threading
from evertick.runtime import background
begun = threading.Event()
def forever():
    begun.set()
    while True: pass
async def main():
    task = asyncio.create_task(background.run(1, forever))
    await asyncio.to_thread(begun.wait)
    task.cancel()
asyncio.run(main())
print("over")
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "over\n"
