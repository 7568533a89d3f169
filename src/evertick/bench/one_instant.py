"""Work that is due at one instant: loads it, has everything up and warm before, and measures from that instant on."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from evertick.bench import figures_queries
from evertick.bench.figures import accounted, lags, rated, read_runs, seconds_between, spent
from evertick.bench.preparing import tidy
from evertick.bench.processes import BenchFailed, Process
from evertick.bench.stage import Stage
from evertick.bench.watching import SOON, until_drained
from evertick.bench.workload import QUEUE, Fields

TRIES = 3


@dataclass(frozen=True, slots=True)
class Due:
    """So many jobs for one instant, how long loading and warming up may take, and the processes that see to them."""

    count: int
    lead_seconds: float
    jobs: Callable[[datetime], Iterator[Fields]]
    start: Callable[[], Awaitable[Sequence[Process]]]


async def prepare(stage: Stage, due: Due) -> datetime:
    """Load and start all, and return the instant that is waited for. Should it come too early, a later one."""
    for tries in range(TRIES):
        due_at = (await stage.now() + timedelta(seconds=due.lead_seconds * 2**tries)).replace(microsecond=0)
        await stage.load(due.jobs(due_at), due.count, "loading jobs that are due at one instant")
        await tidy(stage)
        base = await figures_queries.counters(stage.pool)
        processes = await due.start()
        if await stage.now() < due_at:
            return due_at
        await until_drained(stage, base, due.count, "it took too long: once more", due_before=due_at + SOON)
        await stage.fleet.stop(*processes)
    raise BenchFailed("loading took longer than foreseen, again and again: is the machine busy?")


async def measure_from(stage: Stage, due_at: datetime, count: int, queue: str = QUEUE) -> dict[str, Any]:
    """The figures from an instant to the last outcome of what was due then."""
    base = await figures_queries.counters(stage.pool)
    await stage.sleep_until(due_at, "waiting for the instant")
    cpu = stage.cpu_seconds()
    drained_at = await until_drained(stage, base, count, "running", due_before=due_at + SOON)
    cpu_us_per_run = spent(cpu, stage.cpu_seconds(), count / 1e6)
    runs = await read_runs(stage, due_at, _after(due_at), queue)
    return {
        **accounted(runs, count),
        **rated(runs.succeeded, (drained_at - due_at).total_seconds()),
        "first_start_seconds": seconds_between(due_at, runs.first_started_at),
        "last_finish_seconds": seconds_between(due_at, runs.last_finished_at),
        **lags(runs),
        "cpu_us_per_run": cpu_us_per_run,
    }


def _after(at: datetime) -> datetime:
    return at + timedelta(microseconds=1)
