"""Who asks while others are served waits for the next batch, and every one gets an answer of its own. A tenant has so
much under way at once, and so much may wait for that, for so long.
"""

import asyncio
from contextlib import AsyncExitStack

import pytest

from evertick.runtime import concurrency
from evertick.runtime.concurrency import MAX_CONCURRENT, Batcher, Cached, InFlight, LimitReached, TenantLimit


class Desk:
    """Answers batches when it is told to."""

    def __init__(self) -> None:
        self.batches: list[tuple[str, list[int]]] = []
        self.may_answer = asyncio.Event()
        self.batcher: Batcher[str, int, int] = Batcher(self._work)

    def ask(self, *items: int, key: str = "a") -> "list[asyncio.Task[int]]":
        return [asyncio.create_task(self.batcher.ask(key, item)) for item in items]

    async def busy(self, key: str = "a") -> "list[asyncio.Task[int]]":
        """As many batches under way as may be."""
        tasks = []
        for number in range(MAX_CONCURRENT):
            tasks += self.ask(number, key=key)
            await _all_have_run()
        return tasks

    async def _work(self, key: str, items: list[int]) -> list[int | Exception]:
        self.batches.append((key, items))
        await self.may_answer.wait()
        if 13 in items:
            raise RuntimeError("thirteen")
        return [ValueError(item) if item < 0 else item * 10 for item in items]


async def _all_have_run() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
async def desk() -> Desk:
    return Desk()


async def test_who_comes_to_an_idle_desk_is_served_at_once_and_alone(desk: Desk) -> None:
    desk.may_answer.set()
    assert await desk.batcher.ask("a", 1) == 10
    assert await desk.batcher.ask("a", 2) == 20
    assert desk.batches == [("a", [1]), ("a", [2])]


async def test_who_comes_meanwhile_goes_together_in_the_next_lot(desk: Desk) -> None:
    first = await desk.busy()
    later = desk.ask(7, 8, 9)
    await _all_have_run()
    assert len(desk.batches) == MAX_CONCURRENT
    desk.may_answer.set()
    assert await asyncio.gather(*first, *later) == [0, 10, 20, 70, 80, 90]
    assert desk.batches[MAX_CONCURRENT:] == [("a", [7, 8, 9])]


async def test_nobody_waits_for_those_with_another_key(desk: Desk) -> None:
    busy = await desk.busy()
    other = desk.ask(5, key="b")
    await _all_have_run()
    assert desk.batches[-1] == ("b", [5])
    desk.may_answer.set()
    await asyncio.gather(*busy, *other)


async def test_an_exception_in_an_answers_place_is_raised_to_its_own_asker(desk: Desk) -> None:
    first = await desk.busy()
    good, bad = desk.ask(1, -1)
    desk.may_answer.set()
    assert await good == 10
    with pytest.raises(ValueError, match="-1"):
        await bad
    await asyncio.gather(*first)


async def test_when_the_work_fails_all_of_the_lot_hear_of_it_and_the_next_is_served(desk: Desk) -> None:
    first = await desk.busy()
    unlucky = desk.ask(1, 13)
    desk.may_answer.set()
    found = await asyncio.gather(*unlucky, return_exceptions=True)
    assert [type(each) for each in found] == [RuntimeError, RuntimeError]
    assert await desk.batcher.ask("a", 2) == 20
    await asyncio.gather(*first)


async def test_who_goes_away_leaves_the_others_their_answers(desk: Desk) -> None:
    first = await desk.busy()
    gone, staying = desk.ask(1, 2)
    await _all_have_run()
    gone.cancel()
    desk.may_answer.set()
    assert await staying == 20
    await asyncio.gather(*first)
    assert gone.cancelled()


async def test_a_lot_has_an_end(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency, "MAX_BATCH_SIZE", 2)
    first = await desk.busy()
    later = desk.ask(1, 2, 3)
    await _all_have_run()
    desk.may_answer.set()
    await asyncio.gather(*first, *later)
    assert max(len(items) for _, items in desk.batches) == 2


async def test_nothing_is_kept_of_a_key_that_nobody_asks_under(desk: Desk) -> None:
    first = await desk.busy()
    desk.may_answer.set()
    await asyncio.gather(*first)
    await _all_have_run()
    assert len(desk.batcher) == 0


async def test_others_do_not_wait_for_who_has_all_of_its_own() -> None:
    limit = TenantLimit(1)
    async with limit.slot(1), limit.slot(2):
        waiting = asyncio.create_task(_use(limit, 1))
        await asyncio.sleep(0)
        assert not waiting.done()
    await waiting


async def test_no_more_than_so_many_wait() -> None:
    limit = TenantLimit(1, max_waiting=1)
    async with limit.slot(1):
        waiting = asyncio.create_task(_use(limit, 1))
        await asyncio.sleep(0)
        with pytest.raises(LimitReached):
            await _use(limit, 1)
        await _use(limit, 2)
    await waiting
    await _use(limit, 1)


async def test_nobody_waits_longer_than_it_is_worth() -> None:
    limit = TenantLimit(2, wait_seconds=0.01)
    async with AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(limit.slot(1))
        with pytest.raises(LimitReached):
            await _use(limit, 1)
    await _use(limit, 1)


async def test_a_place_in_line_is_free_again_when_its_client_left() -> None:
    limit = TenantLimit(1, max_waiting=1)
    async with limit.slot(1):
        waiting = asyncio.create_task(_use(limit, 1))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        another = asyncio.create_task(_use(limit, 1))
        await asyncio.sleep(0)
        assert not another.done()
    await another


async def _use(limit: TenantLimit, tenant_id: int) -> None:
    async with limit.slot(tenant_id):
        pass


async def test_equal_computations_at_the_same_time_are_one() -> None:
    in_flight, end, begun = InFlight(), asyncio.Event(), 0

    async def compute() -> int:
        nonlocal begun
        begun += 1
        number = begun
        await end.wait()
        return number

    calls = [asyncio.create_task(in_flight.share(key, compute)) for key in ("a", "a", "b")]
    await asyncio.sleep(0)
    calls[0].cancel()
    end.set()
    assert await asyncio.gather(*calls[1:]) == [1, 2]
    assert await in_flight.share("a", compute) == 3, "what is over is computed anew"


async def test_an_error_is_that_of_all_who_share_the_computation() -> None:
    in_flight = InFlight()

    async def fail() -> None:
        raise ValueError("no")

    calls = [asyncio.create_task(in_flight.share("a", fail)) for _ in range(2)]
    assert [str(error) for error in await asyncio.gather(*calls, return_exceptions=True)] == ["no", "no"]


@pytest.mark.parametrize(("takes", "lasts"), [(0.01, 1.0), (2.0, 20.0), (60.0, 30.0)])
async def test_what_took_long_is_cached_for_as_many_times_as_long(takes: float, lasts: float) -> None:
    now, computed = 0.0, 0

    async def compute() -> int:
        nonlocal now, computed
        now += takes
        computed += 1
        return computed

    cached = Cached(compute, 1.0, times_as_long=10.0, max_seconds=30.0, monotonic=lambda: now)
    assert await cached.get() == 1
    now += lasts
    assert await cached.get() == 1
    now += 0.001
    assert await cached.get() == 2
