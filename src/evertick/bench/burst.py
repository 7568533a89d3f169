"""A burst: many jobs due at one instant. Loads them, starts and warms up processes, measures from the instant on."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from evertick.bench import queries
from evertick.bench.preparation import vacuum_and_checkpoint
from evertick.bench.processes import BenchFailed, Process
from evertick.bench.results import count_fields, cpu_used, lag_fields, rate_fields, read_runs, seconds_between
from evertick.bench.testbed import Testbed
from evertick.bench.waiting import SOON, wait_until_drained
from evertick.bench.workload import QUEUE, Fields

MAX_PREPARATIONS = 3


@dataclass(frozen=True, slots=True)
class Burst:
    """The jobs of one instant, the time that loading and warming up take at most, and the processes to start."""

    count: int
    lead_seconds: float
    jobs: Callable[[datetime], Iterator[Fields]]
    start: Callable[[], Awaitable[Sequence[Process]]]


async def prepare_burst(testbed: Testbed, burst: Burst) -> datetime:
    """Load the jobs, start the processes and return the instant. If that took too long, try again with a later one."""
    for number in range(MAX_PREPARATIONS):
        due_at = (await testbed.now() + timedelta(seconds=burst.lead_seconds * 2**number)).replace(microsecond=0)
        await testbed.load(burst.jobs(due_at), burst.count, "loading jobs that are due at one instant")
        await vacuum_and_checkpoint(testbed)
        base = await queries.counters(testbed.pool)
        processes = await burst.start()
        if await testbed.now() < due_at:
            return due_at
        await wait_until_drained(
            testbed, base, burst.count, "loading took too long: trying again", due_before=due_at + SOON
        )
        await testbed.fleet.stop(*processes)
    raise BenchFailed(f"loading took longer than estimated, {MAX_PREPARATIONS} times: is the machine busy?")


async def measure_burst(testbed: Testbed, due_at: datetime, count: int, queue: str = QUEUE) -> dict[str, Any]:
    """The result from an instant to the last outcome of the burst."""
    base = await queries.counters(testbed.pool)
    await testbed.sleep_until(due_at, "waiting for the instant")
    cpu = testbed.cpu_seconds()
    drained_at = await wait_until_drained(testbed, base, count, "running", due_before=due_at + SOON)
    cpu_us_per_run = cpu_used(cpu, testbed.cpu_seconds(), count / 1e6)
    runs = await read_runs(testbed, due_at, _after(due_at), queue)
    return {
        **count_fields(runs, count),
        **rate_fields(runs.succeeded, (drained_at - due_at).total_seconds()),
        "first_start_seconds": seconds_between(due_at, runs.first_started_at),
        "last_finish_seconds": seconds_between(due_at, runs.last_finished_at),
        **lag_fields(runs),
        "cpu_us_per_run": cpu_us_per_run,
    }


def _after(at: datetime) -> datetime:
    return at + timedelta(microseconds=1)
