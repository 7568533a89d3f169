"""Forecasts that are kept for pages: the last one is shown while the next is counted, and failures are told."""

import asyncio
from typing import Any

import pytest

from evertick.usecases.forecast import keeping
from evertick.usecases.forecast.keeping import Forecasts


class Counting:
    """Counts that a test ends. `results` are the numbers of those that were begun."""

    def __init__(self) -> None:
        self.begun = 0
        self.end = asyncio.Event()
        self.failure: Exception | None = None

    async def count(self) -> Any:
        self.begun += 1
        number = self.begun
        await self.end.wait()
        if self.failure is not None:
            raise self.failure
        return number, number


@pytest.fixture
def kept_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "MAX_AGE_SECONDS", 0.0)


async def get(forecasts: Forecasts, counting: Counting, patience: float = 0.0) -> Any:
    return await forecasts.get("asked", counting.count, patience=patience)


@pytest.mark.usefixtures("kept_briefly")
async def test_the_last_result_is_shown_while_the_next_is_counted() -> None:
    forecasts, counting = Forecasts(), Counting()
    assert await get(forecasts, counting) is None
    counting.end.set()
    assert await get(forecasts, counting, patience=5) == (1, 1)
    counting.end.clear()
    assert await get(forecasts, counting) == (1, 1)
    assert counting.begun == 2
    counting.end.set()
    assert await get(forecasts, counting, patience=5) == (2, 2)


async def test_all_that_look_share_one_count() -> None:
    forecasts, counting = Forecasts(), Counting()
    looks = [asyncio.create_task(get(forecasts, counting, patience=5)) for _ in range(5)]
    await asyncio.sleep(0)
    counting.end.set()
    assert await asyncio.gather(*looks) == [(1, 1)] * 5
    assert counting.begun == 1


async def test_a_failure_is_told_and_not_repeated_at_once() -> None:
    forecasts, counting = Forecasts(), Counting()
    counting.failure = ValueError("too long")
    counting.end.set()
    for _ in range(3):
        with pytest.raises(ValueError, match="too long"):
            await get(forecasts, counting, patience=5)
    assert counting.begun == 1


async def test_a_result_is_kept_from_its_end_on() -> None:
    now = 0.0
    forecasts, counting = Forecasts(lambda: now), Counting()
    assert await get(forecasts, counting) is None
    now = 100.0  # it takes longer than it is kept
    counting.end.set()
    assert await get(forecasts, counting, patience=5) == (1, 1)
    now = 101.0
    assert await get(forecasts, counting) == (1, 1)
    assert counting.begun == 1
