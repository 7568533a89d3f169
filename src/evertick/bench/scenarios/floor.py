"""Scenario `floor`: how fast the database can write the rows of runs, without anything else.

Uses binary COPY and one UPDATE for each batch, with the batch sizes of scheduler and worker. The difference to the
other scenarios is the cost of Evertick itself.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any, TypeAlias, TypeVar

from evertick.bench import floor_queries
from evertick.bench.floor_queries import FloorAttempt, FloorOutcome, FloorTimer
from evertick.bench.queries import connected
from evertick.bench.results import rate_fields
from evertick.bench.scenario import MAX_COUNT, Option, Scenario, Seed
from evertick.bench.steps import vacuum_and_checkpoint
from evertick.bench.testbed import Testbed
from evertick.domain.ids import PARTITIONS
from evertick.domain.schedule.instants import to_us
from evertick.executor.sources.database.source import MAX_OUTCOMES
from evertick.roles.scheduler.batch_size import BATCH
from evertick.store.database import Session
from evertick.store.engine.lanes import lane_id_of

QUEUE_ID = 1
NORMAL = 1
WORKER = "worker.example-12345-a1b2c3"
"""As long as the name of a real worker."""
PERIOD = timedelta(days=1)
TOOK = timedelta(milliseconds=1)


class RunRows:
    """Rows of runs, all fired at one instant. Jobs are spread evenly over the partitions."""

    def __init__(self, fire_at: datetime, seed: int) -> None:
        self.fire_at = fire_at
        self.next_at = fire_at + PERIOD
        self._seed = seed
        self._first_seq = to_us(fire_at) + 1
        # The seed decides their order.
        self._partitions = random.Random(seed).sample(range(PARTITIONS), PARTITIONS)  # noqa: S311 - a repeatable load

    def following(self) -> "RunRows":
        """The next run of each job."""
        return RunRows(self.next_at, self._seed)

    def attempts(self, numbers: Iterable[int]) -> list[FloorAttempt]:
        at = self.fire_at
        return [
            FloorAttempt(
                self._lane_id(number), self._first_seq + number, self._job_id(number), at, at, 1, 1, "tick", 1, False
            )
            for number in numbers
        ]

    def outcomes(self, numbers: Iterable[int]) -> list[FloorOutcome]:
        started_at, finished_at = self.fire_at, self.fire_at + TOOK
        return [
            FloorOutcome(
                *(self._lane_id(number), self._first_seq + number, started_at, finished_at, "success"),
                *(None, True, WORKER, None, None),
                output=None,
                held_ms=1,
            )
            for number in numbers
        ]

    def timers(self, numbers: Iterable[int]) -> list[FloorTimer]:
        """The timers of the jobs before the runs."""
        at = self.fire_at
        return [
            FloorTimer(
                *(self._job_id(number), at, at, 1, 1, None, None, None, QUEUE_ID, 1),
                *("tick", None, self._partition(number), 1, NORMAL),
            )
            for number in numbers
        ]

    def _partition(self, number: int) -> int:
        return self._partitions[number % PARTITIONS]

    def _job_id(self, number: int) -> int:
        return (number + 1) << 8 | self._partition(number)

    def _lane_id(self, number: int) -> int:
        return lane_id_of(QUEUE_ID, self._partition(number), NORMAL)


CHUNK = 24 * BATCH
"""For how many runs at a time rows are made, outside of the measured time."""

Row = TypeVar("Row", FloorAttempt, FloorOutcome)
Pass: TypeAlias = Callable[[range], Coroutine[Any, Any, int]]
"""Makes the rows of some runs, and returns a coroutine that writes them and returns how many it wrote."""


@dataclass(frozen=True, slots=True)
class FloorOptions:
    runs: Annotated[int, Option("Number of runs.", 1, MAX_COUNT)] = 500_000
    seed: Seed = 1


@dataclass(frozen=True, slots=True)
class Written:
    """Rows of one pass, and the time to write them."""

    rows: int
    seconds: float


async def run(testbed: Testbed, options: FloorOptions) -> dict[str, Any]:
    await floor_queries.make_tables(testbed.pool)
    rows = RunRows(await testbed.now(), options.seed)
    testbed.progress.begin("making timers")
    for numbers in _chunks(options.runs):
        await floor_queries.copy(testbed.pool, rows.timers(numbers))
    async with connected(testbed.url) as firing, connected(testbed.url) as recording:
        passes = _passes(firing, recording, rows)
        written = {name: await _measure(testbed, options.runs, name, each) for name, each in passes.items()}
    rows_per_run = {"attempts": 1, "outcomes": 1, "attempts_and_outcomes": 2, "timers": 1, "everything": 2}
    seconds = written["everything"].seconds
    return {
        "runs": options.runs,
        "missing": sum(count * options.runs - written[name].rows for name, count in rows_per_run.items()),
        "seconds": round(seconds, 3),
        "runs_per_second": round(options.runs / seconds),
        "rows": {name: rate_fields(each.rows, each.seconds) for name, each in written.items() if name != "everything"},
    }


def _passes(firing: Session, recording: Session, rows: RunRows) -> dict[str, Pass]:
    """Each table alone, attempts and outcomes at once, and everything, on two connections as scheduler and worker.

    Everything: one transaction for each batch updates timers and appends attempts, concurrently with outcomes.
    """
    later = rows.following()
    fire = partial(floor_queries.fire, firing, next_at=later.next_at)
    move = partial(floor_queries.move, firing, next_at=rows.next_at)

    copy_attempts = partial(floor_queries.copy, firing)
    copy_outcomes = partial(floor_queries.copy, recording)

    def attempts(numbers: range) -> Coroutine[Any, Any, int]:
        return _write(copy_attempts, rows.attempts(numbers), BATCH)

    def outcomes(numbers: range, of: RunRows = rows) -> Coroutine[Any, Any, int]:
        return _write(copy_outcomes, of.outcomes(numbers), MAX_OUTCOMES)

    return {
        "attempts": attempts,
        "outcomes": outcomes,
        "attempts_and_outcomes": lambda numbers: _concurrently(attempts(numbers), outcomes(numbers)),
        "timers": lambda numbers: _write(move, rows.attempts(numbers), BATCH),
        "everything": lambda numbers: _concurrently(
            _write(fire, later.attempts(numbers), BATCH), outcomes(numbers, later)
        ),
    }


async def _measure(testbed: Testbed, runs: int, name: str, writes: Pass) -> Written:
    """One pass over all runs, into empty tables."""
    await floor_queries.empty_tables(testbed.pool)
    await vacuum_and_checkpoint(testbed)
    testbed.progress.begin(f"writing {name.replace('_', ' ')}", runs)
    count, seconds = 0, 0.0
    for numbers in _chunks(runs):
        writing = writes(numbers)
        began = time.perf_counter()
        count += await writing
        seconds += time.perf_counter() - began
        testbed.progress.reach(numbers.stop)
    return Written(count, seconds)


def _write(
    write: Callable[[Sequence[Row]], Awaitable[int]], rows: Sequence[Row], size: int
) -> Coroutine[Any, Any, int]:
    """Write rows in batches in the order of the key, as the statements of Evertick do.

    The batches are made before the returned coroutine runs, outside of the measured time.
    """
    batches = [sorted(rows[first : first + size]) for first in range(0, len(rows), size)]

    async def write_batches() -> int:
        return sum([await write(batch) for batch in batches])

    return write_batches()


async def _concurrently(*writing: Awaitable[int]) -> int:
    return sum(await asyncio.gather(*writing))


def _chunks(runs: int) -> Iterator[range]:
    for first in range(0, runs, CHUNK):
        yield range(first, min(first + CHUNK, runs))


SCENARIO = Scenario(
    "floor",
    "How fast the database writes the rows of runs by plain COPY and UPDATE, without anything else.",
    "evertick bench floor --runs 500000 --json",
    FloorOptions,
    run,
    reuses_database=False,
)
