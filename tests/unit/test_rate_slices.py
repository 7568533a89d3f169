"""Slices of a rate bucket in one process: draws that fail, and callers that go away."""

import asyncio
from collections.abc import Sequence

import pytest

from evertick.domain import rate_bucket
from evertick.domain.rate_bucket import Bucket, Drawn, Rate
from evertick.runtime.rate_slices import RateSlices
from evertick.store.engine.rate_buckets import Ask

RATE = Rate(per_second=10, burst=20)


class HeldBuckets:
    """Buckets of a process of its own, on a clock that stands still. A draw waits until it is let go, and may fail."""

    def __init__(self) -> None:
        self.buckets: dict[str, Bucket] = {}
        self.asks: list[Ask] = []
        self.failure: Exception | None = None
        self.may_draw = asyncio.Event()
        self.may_draw.set()

    async def draw(self, asks: Sequence[Ask]) -> list[Drawn | None]:
        self.asks += asks
        await self.may_draw.wait()
        if self.failure is not None:
            raise self.failure
        return [self._draw(ask) for ask in asks]

    def _draw(self, ask: Ask) -> Drawn:
        bucket = self.buckets.get(ask.key) or rate_bucket.full(ask.rate, 0)
        drawn, self.buckets[ask.key] = rate_bucket.draw(ask.rate, bucket, 0, least=ask.least, wanted=ask.wanted)
        return drawn


async def turns(count: int = 10) -> None:
    """Let everything that can go on go on."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_draw_that_fails_fails_for_all_that_wait_for_it() -> None:
    buckets = HeldBuckets()
    buckets.failure = ConnectionError("away")
    buckets.may_draw.clear()
    slices = RateSlices(buckets)
    takes = [asyncio.create_task(slices.take("k", RATE, least=1, most=1)) for _ in range(100)]
    await turns()
    buckets.may_draw.set()
    results = await asyncio.gather(*takes, return_exceptions=True)
    assert {type(result) for result in results} == {ConnectionError}
    assert len(buckets.asks) == 1, "not one draw after the other"
    buckets.failure = None
    assert await slices.take("k", RATE, least=1, most=1) == Drawn(1)


async def test_what_is_drawn_for_a_caller_that_went_away_is_there_for_the_next() -> None:
    buckets = HeldBuckets()
    buckets.may_draw.clear()
    slices = RateSlices(buckets)
    gone = asyncio.create_task(slices.take("k", RATE, least=RATE.burst, most=RATE.burst))
    await turns()
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    buckets.may_draw.set()
    assert await slices.take("k", RATE, least=RATE.burst, most=RATE.burst) == Drawn(RATE.burst)


async def test_callers_at_once_get_all_that_is_there_and_no_more() -> None:
    slices = RateSlices(HeldBuckets())
    drawn = await asyncio.gather(*(slices.take("k", RATE, least=1, most=3) for _ in range(50)))
    assert sum(each.granted for each in drawn) == RATE.burst
    assert all(each.wait_us > 0 for each in drawn if not each.granted)


async def test_a_refusal_under_an_old_rate_does_not_hold_for_a_new_one() -> None:
    buckets = HeldBuckets()
    slices = RateSlices(buckets)
    slow = Rate(per_second=0.001, burst=1)
    assert await slices.take("k", slow, least=1, most=1) == Drawn(1)
    assert not (await slices.take("k", slow, least=1, most=1)).granted
    del buckets.buckets["k"]
    assert not (await slices.take("k", slow, least=1, most=1)).granted, "it is not asked again at once"
    assert await slices.take("k", RATE, least=1, most=1) == Drawn(1)
