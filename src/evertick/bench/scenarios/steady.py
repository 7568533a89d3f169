"""Scenario `steady`: very many jobs that fire again and again, so many each second, for some minutes."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from evertick.bench import figures_queries, workload
from evertick.bench.figures import accounted, lags, rated, read_runs, spent
from evertick.bench.figures_queries import Counters
from evertick.bench.look_ups import HORIZON, LookUps, poll_groups
from evertick.bench.measuring import Scenario
from evertick.bench.preparing import TRIAL, gather_crowd, seconds_to_load, seconds_to_warm_up, tidy, warm_crew
from evertick.bench.processes import peak_memory_mb
from evertick.bench.stage import Stage
from evertick.bench.watching import until_drained, until_fired

GOLDEN = 0.618
"""Multiples of this, without their whole parts, lie evenly and never close together for long."""
LOOK_UPS = 3
TRIAL_SHARE = 200
"""One in so many jobs is loaded to see how long the others will take: the better that is known, the less is waited."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How many jobs, about how many of them fire each second, and for how long that is measured.

    `spread`: by a jitter of a second. Otherwise all are due as the second begins.
    """

    jobs: int = 10_000_000
    rate: int = 2_800
    seconds: float = 300.0
    spread: bool = True
    payload_bytes: int = 100
    workers: int = 1
    concurrency: int | None = None
    seed: int = 1

    @property
    def period_seconds(self) -> int:
        """After so many seconds each job fires again."""
        return max(1, math.ceil(self.jobs / self.rate))

    @property
    def stride(self) -> int:
        """By so many seconds of the period a job fires later than the one created before it.

        Those that lie on one page of the database fire all over the period, as they would if people had made them. It
        has no divisor in common with the period, so each second has its share.
        """
        period = self.period_seconds
        return next(each for each in range(max(1, round(period * GOLDEN)), 2 * period) if math.gcd(each, period) == 1)


async def run(stage: Stage, settings: Settings) -> dict[str, Any]:
    first_at = await _load(stage, settings)
    base = await figures_queries.counters(stage.pool)
    crew = await warm_crew(stage, settings.workers, settings.concurrency)
    from_at = await _quiet_from(stage, first_at, base)
    seconds = math.ceil(settings.seconds)  # whole ones, for which it is known what fires in them
    until_at = from_at + timedelta(seconds=seconds)
    expected = expected_ticks(settings, round((from_at - first_at).total_seconds()))
    base = await figures_queries.counters(stage.pool)
    await stage.sleep_until(from_at, "waiting for the first tick")
    cpu = stage.cpu_seconds()
    look_ups = await _look_up_now_and_then(stage, until_at, seconds)
    cores_used = spent(cpu, stage.cpu_seconds(), seconds, digits=3)
    await until_fired(stage, until_at, expected, "firing the rest")
    memory = peak_memory_mb(crew.scheduler.pid)
    await stage.fleet.stop(crew.scheduler)
    await until_drained(stage, base, expected, "running the rest")
    runs = await read_runs(stage, from_at, until_at)
    return {
        **accounted(runs, expected),
        **rated(runs.succeeded, seconds),
        "gaps": await figures_queries.gaps(stage.pool, from_at, until_at),
        **lags(runs),
        "period_seconds": settings.period_seconds,
        "scheduler_peak_memory_mb": memory,
        "cores_used": cores_used,
        "due_look_up_ms": look_ups.figures,
    }


def expected_ticks(settings: Settings, offset: int) -> int:
    """How many ticks fall into the measured stretch, which begins so many seconds after the first tick of all.

    Job number n fires at second n times the stride, modulo the period.
    """
    period = settings.period_seconds
    back = pow(settings.stride, -1, period)
    rounds, rest = divmod(math.ceil(settings.seconds), period)
    firsts = ((offset + each) * back % period for each in range(rest))
    return rounds * settings.jobs + sum(len(range(first, settings.jobs, period)) for first in firsts)


async def _load(stage: Stage, settings: Settings) -> datetime:
    """Load everything, and return the instant of the first tick, for which there should be time to warm up."""
    share = max(TRIAL, settings.jobs // TRIAL_SHARE)
    trial = await gather_crowd(stage, 0, rules=100, seed=settings.seed, trial=share)
    soon = min(settings.jobs, settings.rate * round(HORIZON.total_seconds()))
    lead = timedelta(seconds=seconds_to_load(settings.jobs, trial.rate) + seconds_to_warm_up(soon))
    first_at = (await stage.now() + lead).replace(microsecond=0)
    await stage.load(_jobs(settings, first_at), settings.jobs, "loading jobs that fire again and again")
    await tidy(stage)
    return first_at


async def _quiet_from(stage: Stage, first_at: datetime, base: Counters) -> datetime:
    """The second from which on all is as ever: the first tick's or, if loading took longer, a later one."""
    now_at = await stage.now()
    if now_at < first_at:
        return first_at
    await until_fired(stage, now_at, 1, "loading took longer than foreseen: catching up")
    await until_drained(stage, base, 1, "catching up")
    return (await stage.now() + timedelta(seconds=2)).replace(microsecond=0)


def _jobs(settings: Settings, from_at: datetime) -> Iterator[workload.Fields]:
    period, stride = settings.period_seconds, settings.stride
    starts = [(from_at + timedelta(seconds=second)).isoformat() for second in range(period)]
    fields = {
        "schedule": f"every {period}s",
        "target": workload.target(),
        "payload": workload.payload(settings.payload_bytes, settings.seed),
        "jitter_seconds": int(settings.spread),
    }
    return ({**fields, "start_at": starts[number * stride % period]} for number in range(settings.jobs))


async def _look_up_now_and_then(stage: Stage, until_at: datetime, seconds: float) -> LookUps:
    """Wait for the end of the stretch; in between, a few times, see how long finding what is due takes."""
    took: tuple[float, ...] = ()
    found = 0
    for number in range(1, LOOK_UPS + 1):
        left = timedelta(seconds=seconds * (1 - number / (LOOK_UPS + 1)))
        await stage.sleep_until(until_at - left, "measuring")
        look_ups = await poll_groups(stage)
        took, found = took + look_ups.took_ms, found + look_ups.timers
    await stage.sleep_until(until_at, "measuring")
    return LookUps(took, found)


SCENARIO = Scenario("steady", run, reuses=False)
