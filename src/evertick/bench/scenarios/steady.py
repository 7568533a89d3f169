"""Scenario `steady`: how punctual many recurring jobs are, with a constant number of fire times each second."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any

from evertick.bench import queries, results, steps, workload
from evertick.bench.processes import Process, memory_mb, peak_memory_mb
from evertick.bench.queries import WrittenRows
from evertick.bench.results import HORIZON, LookupTimes
from evertick.bench.scenario import Concurrency, Jobs, Option, PayloadBytes, Scenario, Seconds, Seed, Workers
from evertick.bench.testbed import Testbed
from evertick.bench.waiting import wait_until_drained, wait_until_fired

GOLDEN = 0.618
"""The fractional parts of its multiples are spread evenly."""
NO_END = timedelta(days=300)
"""Rules that end so late do not end during the measurement."""
LOOKUPS = 3
TRIAL_SHARE = 200
"""The fraction of the jobs, 1/n, that is loaded first to estimate how long loading the others takes."""


@dataclass(frozen=True, slots=True)
class SteadyOptions:
    jobs: Jobs = 10_000_000
    rate: Annotated[int, Option("How many of them fire each second.", 1, 100_000)] = 2_800
    seconds: Seconds = 300.0
    spread: Annotated[
        bool,
        Option("Spread due times over each second by jitter, or set all to its start.", flags="--spread/--at-once"),
    ] = True
    distinct_rules: Annotated[
        bool, Option("Give each job a rule of its own, or share rules.", flags="--distinct-rules/--shared-rules")
    ] = False
    payload_bytes: PayloadBytes = 100
    workers: Workers = 1
    concurrency: Concurrency = None
    seed: Seed = 1

    @property
    def period_seconds(self) -> int:
        """The interval of each job."""
        return max(1, math.ceil(self.jobs / self.rate))

    @property
    def stride(self) -> int:
        """By how many seconds, modulo the period, a job fires later than the job created before it.

        Jobs on one page of the database fire at different times of the period, as they do in production. The stride and
        the period have no common divisor, so all seconds get the same number of jobs.
        """
        period = self.period_seconds
        return next(each for each in range(max(1, round(period * GOLDEN)), 2 * period) if math.gcd(each, period) == 1)


async def run(testbed: Testbed, options: SteadyOptions) -> dict[str, Any]:
    first_at = await _load(testbed, options)
    base = await queries.written_rows(testbed.pool)
    scheduler, *_ = await steps.start_cluster(testbed, options.workers, options.concurrency)
    from_at = await _start_of_measurement(testbed, first_at, base)
    seconds = math.ceil(options.seconds)  # whole seconds: their number of fire times is known
    until_at = from_at + timedelta(seconds=seconds)
    expected = expected_ticks(options, round((from_at - first_at).total_seconds()))
    base = await queries.written_rows(testbed.pool)
    await testbed.sleep_until(from_at, "waiting for the first tick")
    cpu = testbed.cpu_seconds()
    lookups, memory = await _measure(testbed, scheduler, until_at, seconds)
    cores_used = results.cpu_used(cpu, testbed.cpu_seconds(), seconds, digits=3)
    await wait_until_fired(testbed, until_at, expected, "firing the rest")
    peak = peak_memory_mb(scheduler.pid)
    await testbed.fleet.stop(scheduler)
    await wait_until_drained(testbed, base, expected, "running the rest")
    runs = await results.read_runs(testbed, from_at, until_at)
    return {
        **results.count_fields(runs, expected),
        **results.rate_fields(runs.succeeded, seconds),
        "gaps": await queries.gaps(testbed.pool, from_at, until_at),
        **results.lag_fields(runs),
        "period_seconds": options.period_seconds,
        "scheduler_peak_memory_mb": peak,
        "scheduler_memory_mb": {"start": memory[0], "middle": memory[len(memory) // 2], "end": memory[-1]},
        "cores_used": cores_used,
        "due_look_up_ms": lookups.fields,
    }


def expected_ticks(options: SteadyOptions, offset: int) -> int:
    """How many ticks fall into the measured interval, which starts `offset` seconds after the first tick.

    Job number n fires at second n times the stride, modulo the period.
    """
    period = options.period_seconds
    back = pow(options.stride, -1, period)
    rounds, rest = divmod(math.ceil(options.seconds), period)
    firsts = ((offset + each) * back % period for each in range(rest))
    return rounds * options.jobs + sum(len(range(first, options.jobs, period)) for first in firsts)


async def _load(testbed: Testbed, options: SteadyOptions) -> datetime:
    """Load all jobs, and return the instant of the first tick. It leaves time to warm up."""
    share = max(steps.TRIAL, options.jobs // TRIAL_SHARE)
    trial = await steps.load_background_jobs(testbed, 0, rules=100, seed=options.seed, trial=share)
    soon = min(options.jobs, options.rate * round(HORIZON.total_seconds()))
    lead = timedelta(seconds=steps.seconds_to_load(options.jobs, trial.rate) + steps.seconds_to_warm_up(soon))
    first_at = (await testbed.now() + lead).replace(microsecond=0)
    await testbed.load(recurring_jobs(options, first_at), options.jobs, "loading recurring jobs")
    await steps.vacuum_and_checkpoint(testbed)
    return first_at


async def _start_of_measurement(testbed: Testbed, first_at: datetime, base: WrittenRows) -> datetime:
    """The second of the first tick or, if loading took longer, a later second after catching up."""
    now_at = await testbed.now()
    if now_at < first_at:
        return first_at
    await wait_until_fired(testbed, now_at, 1, "loading took longer than estimated: catching up")
    await wait_until_drained(testbed, base, 1, "catching up")
    return (await testbed.now() + timedelta(seconds=2)).replace(microsecond=0)


def recurring_jobs(options: SteadyOptions, from_at: datetime) -> Iterator[workload.Fields]:
    period, stride = options.period_seconds, options.stride
    starts = [(from_at + timedelta(seconds=second)).isoformat() for second in range(period)]
    fields = {
        "schedule": f"every {period}s",
        "target": workload.target(),
        "payload": workload.payload(options.payload_bytes, options.seed),
        "jitter_seconds": int(options.spread),
    }
    jobs = ({**fields, "start_at": starts[number * stride % period]} for number in range(options.jobs))
    if not options.distinct_rules:
        return jobs
    # Rules that end at different times are different.
    ends = (from_at + NO_END + timedelta(seconds=number) for number in range(options.jobs))
    return ({**job, "end_at": end_at.isoformat()} for job, end_at in zip(jobs, ends, strict=True))


async def _measure(
    testbed: Testbed, scheduler: Process, until_at: datetime, seconds: float
) -> tuple[LookupTimes, list[float | None]]:
    """Wait for the end of the interval. Measure lookups of due timers a few times meanwhile, and memory as often."""
    took: tuple[float, ...] = ()
    found = 0
    memory = [memory_mb(scheduler.pid)]
    for number in range(1, LOOKUPS + 1):
        left = timedelta(seconds=seconds * (1 - number / (LOOKUPS + 1)))
        await testbed.sleep_until(until_at - left, "measuring")
        lookups = await results.time_poll_lookups(testbed)
        took, found = took + lookups.took_ms, found + lookups.timers
        memory.append(memory_mb(scheduler.pid))
    await testbed.sleep_until(until_at, "measuring")
    return LookupTimes(took, found), [*memory, memory_mb(scheduler.pid)]


def fault(options: SteadyOptions) -> str | None:
    if options.rate > options.jobs:
        return "--rate must not be more than --jobs: no job fires more than once a second"
    return None


SCENARIO = Scenario(
    "steady",
    "How punctual many recurring jobs are, with fire times spread evenly over the seconds.",
    "evertick bench steady --jobs 1000000 --rate 1000 --seconds 60 --json",
    SteadyOptions,
    run,
    fault,
    reuses_database=False,
)
