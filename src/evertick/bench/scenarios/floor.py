"""Scenario `floor`: how fast the rows could be written that runs leave, if writing them were all there is to do.

By bare binary COPY and one UPDATE for each batch, in batches as large as the scheduler's and the worker's. What a run
costs beyond that is Evertick's own.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeAlias, TypeVar

from evertick.bench import floor_queries
from evertick.bench.results import rated
from evertick.bench.floor_queries import AttemptRow, OutcomeRow, TimerRow
from evertick.bench.scenario import Scenario
from evertick.bench.preparation import tidy
from evertick.bench.testbed import Testbed
from evertick.domain.ids import PARTITIONS
from evertick.domain.schedule.instants import to_us
from evertick.executor.sources.database.source import MAX_OUTCOMES
from evertick.roles.scheduler.firing import BATCH
from evertick.store.database import Session, connect

QUEUE_ID = 1
NORMAL = 1
WORKER = "worker.example-12345-a1b2c3"
"""As long as the names are that workers give themselves."""
PERIOD = timedelta(days=1)
TOOK = timedelta(milliseconds=1)


class RunRows:
    """Runs by number, all fired at one instant; jobs are spread evenly over the partitions."""

    def __init__(self, fire_at: datetime, seed: int) -> None:
        self.fire_at = fire_at
        self.next_at = fire_at + PERIOD
        self._seed = seed
        self._first_seq = to_us(fire_at) + 1
        # In which order is up to the seed.
        self._partitions = random.Random(seed).sample(range(PARTITIONS), PARTITIONS)  # noqa: S311 - a repeatable load

    def following(self) -> "RunRows":
        """The next run of each job."""
        return RunRows(self.next_at, self._seed)

    def attempts(self, numbers: Iterable[int]) -> list[AttemptRow]:
        at = self.fire_at
        return [
            AttemptRow(
                self._lane_id(number), self._first_seq + number, self._job_id(number), at, at, 1, 1, "tick", 1, False
            )
            for number in numbers
        ]

    def outcomes(self, numbers: Iterable[int]) -> list[OutcomeRow]:
        started_at, finished_at = self.fire_at, self.fire_at + TOOK
        return [
            OutcomeRow(
                *(self._lane_id(number), self._first_seq + number, started_at, finished_at, "success"),
                *(None, True, WORKER, None, None),
            )
            for number in numbers
        ]

    def timers(self, numbers: Iterable[int]) -> list[TimerRow]:
        """The jobs' timers before all that."""
        at = self.fire_at
        return [
            TimerRow(
                *(self._job_id(number), at, at, 1, 1, None, None, QUEUE_ID, 1),
                *("tick", None, self._partition(number), 1, NORMAL),
            )
            for number in numbers
        ]

    def _partition(self, number: int) -> int:
        return self._partitions[number % PARTITIONS]

    def _job_id(self, number: int) -> int:
        return (number + 1) << 8 | self._partition(number)

    def _lane_id(self, number: int) -> int:
        return QUEUE_ID << 10 | self._partition(number) << 2 | NORMAL


STRETCH = 24 * BATCH
"""Of so many runs the rows are made at a time, while the clock stands still."""

Row = TypeVar("Row", AttemptRow, OutcomeRow)
Pass: TypeAlias = Callable[[range], Coroutine[Any, Any, int]]
"""Makes the rows of some runs, and returns what then writes them; that returns how many of them it wrote."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How many runs' rows to write."""

    runs: int = 500_000
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Written:
    """Rows of one pass, and how long writing them took."""

    rows: int
    seconds: float


async def run(stage: Testbed, settings: Settings) -> dict[str, Any]:
    await floor_queries.make_tables(stage.pool)
    rows = RunRows(await stage.now(), settings.seed)
    stage.progress.begin("making timers")
    for numbers in _stretches(settings.runs):
        await floor_queries.copy_timers(stage.pool, rows.timers(numbers))
    # Not from the pool, which has few, and is needed besides.
    async with _connected(stage.url) as firing, _connected(stage.url) as recording:
        passes = _passes(firing, recording, rows)
        written = {name: await _measure(stage, settings.runs, name, each) for name, each in passes.items()}
    wanted = {"attempts": 1, "outcomes": 1, "attempts_and_outcomes": 2, "timers": 1, "everything": 2}
    seconds = written["everything"].seconds
    return {
        "runs": settings.runs,
        "missing": sum(count * settings.runs - written[name].rows for name, count in wanted.items()),
        "seconds": round(seconds, 3),
        "runs_per_second": round(settings.runs / seconds),
        "rows": {name: rated(each.rows, each.seconds) for name, each in written.items() if name != "everything"},
    }


def _passes(firing: Session, recording: Session, rows: RunRows) -> dict[str, Pass]:
    """Each table alone, both ledgers at once, and everything: by two connections, as scheduler and worker have theirs.

    Everything: a transaction for each batch that moves its timers and appends its attempts; beside it, outcomes.
    """
    later = rows.following()
    fire = partial(floor_queries.fire, firing, next_at=later.next_at)
    move = partial(floor_queries.move, firing, next_at=rows.next_at)

    def attempts(numbers: range) -> Coroutine[Any, Any, int]:
        return _write(partial(floor_queries.copy_attempts, firing), _batches(rows.attempts(numbers), BATCH))

    def outcomes(numbers: range) -> Coroutine[Any, Any, int]:
        return _write(partial(floor_queries.copy_outcomes, recording), _batches(rows.outcomes(numbers), MAX_OUTCOMES))

    def everything(numbers: range) -> Coroutine[Any, Any, int]:
        recorded = _write(
            partial(floor_queries.copy_outcomes, recording), _batches(later.outcomes(numbers), MAX_OUTCOMES)
        )
        return _at_once(_write(fire, _batches(later.attempts(numbers), BATCH)), recorded)

    return {
        "attempts": attempts,
        "outcomes": outcomes,
        "attempts_and_outcomes": lambda numbers: _at_once(attempts(numbers), outcomes(numbers)),
        "timers": lambda numbers: _write(move, _batches(rows.attempts(numbers), BATCH)),
        "everything": everything,
    }


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[Session]:
    connection = await connect(url)
    try:
        yield connection
    finally:
        await connection.close()


async def _measure(stage: Testbed, runs: int, name: str, writes: Pass) -> Written:
    """One pass over all runs, into empty ledgers."""
    await floor_queries.empty_tables(stage.pool)
    await tidy(stage)
    stage.progress.begin(f"writing {name.replace('_', ' ')}", runs)
    count, seconds = 0, 0.0
    for numbers in _stretches(runs):
        writing = writes(numbers)
        began = time.perf_counter()
        count += await writing
        seconds += time.perf_counter() - began
        stage.progress.reach(numbers.stop)
    return Written(count, seconds)


async def _write(write: Callable[[Sequence[Row]], Awaitable[int]], batches: Sequence[Sequence[Row]]) -> int:
    return sum([await write(batch) for batch in batches])


async def _at_once(*writing: Awaitable[int]) -> int:
    return sum(await asyncio.gather(*writing))


def _batches(rows: Sequence[Row], size: int) -> list[list[Row]]:
    """In the order of the key, as the product's own statements write them."""
    return [sorted(rows[first : first + size]) for first in range(0, len(rows), size)]


def _stretches(runs: int) -> Iterator[range]:
    for first in range(0, runs, STRETCH):
        yield range(first, min(first + STRETCH, runs))


SCENARIO = Scenario("floor", run, reuses=False)
