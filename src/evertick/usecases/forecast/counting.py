"""Counts a forecast: reads timers in groups, asks the domain, and says which jobs stand for a rule."""

from collections import Counter as Tally, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from evertick.domain.forecast.counting import Counter
from evertick.domain.forecast.horizon import MINUTE_US, Horizon, Pending, RuleLoad
from evertick.domain.forecast.peaks import ranked
from evertick.domain.forecast.sampling import FEW_JOBS, Probe, Sample, has_one_second, sample_of
from evertick.domain.ids import PARTITIONS
from evertick.domain.rule import OneOff, Policies, from_canonical, rule_of
from evertick.domain.schedule.instants import SECOND_US, from_us
from evertick.domain.schedule.schedule import Schedule
from evertick.runtime import background
from evertick.runtime.background import Steps
from evertick.store.jobs import forecast
from evertick.store.jobs.forecast import ForecastFilter, RuleTimers
from evertick.store.statements import Connection

MAX_SAMPLES = 5
"""Jobs that stand for a rule."""
_PROBED = 0
_STEP_RULES = 50
TIMERS = -1
"""The key of timers that are not of ticks: retries, runs that wait, requested runs."""
_ONCE = rule_of(Schedule("2026-01-01T00:00:00Z"), Policies())


@dataclass(frozen=True, slots=True)
class Counted:
    """A forecast. `loads`: the heaviest rules by id, the heaviest first; `samples`: some jobs of each rule."""

    horizon: Horizon
    counts: list[int]
    partitions: int
    is_estimate: bool
    jobs: int
    uncounted: int
    loads: list[tuple[int, RuleLoad]]
    samples: Mapping[int, Sequence[int]]

    def at(self, place: int) -> datetime:
        """When a bucket begins."""
        return from_us(self.horizon.from_us + place * self.horizon.bucket_us)


@dataclass(slots=True)
class Timers:
    """Timers in groups: of ticks by rule; those that fire once by minute. `partitions`: of how many they were read."""

    partitions: int
    loads: dict[int, RuleLoad] = field(default_factory=dict)
    once: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    samples: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    unreadable: int = 0
    is_estimate: bool = False

    def add(self, row: RuleTimers, scale: int) -> None:
        key = row.rule_id if row.is_tick else TIMERS
        self.samples[key] = [*dict.fromkeys(self.samples[key] + row.sample_job_ids)][:MAX_SAMPLES]
        if not row.is_tick:
            for due_us, jobs in zip(row.dues_us, row.jobs, strict=True):
                self.once[due_us] += jobs * scale
            return
        try:
            self.loads[key] = _load_of(row, scale)
        except (ValueError, KeyError, TypeError):
            # Its zone is gone, or the row is corrupt: the scheduler has put its jobs aside.
            self.unreadable += scale * sum(row.jobs)


async def count(connection: Connection, wanted: ForecastFilter, horizon: Horizon, payer: int) -> Counted:
    """Forecast the timers that fit. `payer`: the tenant that pays for the computation."""
    timers = await read(connection, wanted, from_us(horizon.to_us), payer)
    return await background.run_steps(payer, count_timers(timers, horizon))


async def read(connection: Connection, wanted: ForecastFilter, to_at: datetime, payer: int) -> Timers:
    """The timers that are due before an instant: of as many partitions as can be counted."""
    probed = await forecast.in_partitions(connection, wanted, [_PROBED], to_at, by_second=True)
    seen, probe = await background.run_steps(payer, _probe(probed))
    sample = sample_of(probe, has_labels=wanted.labels != "{}")
    if sample == Sample(1, by_second=True):
        return await background.run_steps(payer, _grouped(seen, sample))
    return await read_sample(connection, wanted, to_at, payer, sample, is_many=probe.jobs > FEW_JOBS)


async def read_sample(  # noqa: PLR0913 - which timers, and how many
    connection: Connection, wanted: ForecastFilter, to_at: datetime, payer: int, sample: Sample, *, is_many: bool
) -> Timers:
    rows = await _rows(connection, wanted, to_at, sample, is_many=is_many)
    return await background.run_steps(payer, _grouped(rows, sample))


async def _rows(
    connection: Connection, wanted: ForecastFilter, to_at: datetime, sample: Sample, *, is_many: bool
) -> Iterable[RuleTimers]:
    if sample.partitions == PARTITIONS and is_many and wanted.labels == "{}":
        return await forecast.of_all(connection, wanted, to_at, by_second=sample.by_second)
    partitions = range(sample.partitions)
    return await forecast.in_partitions(connection, wanted, partitions, to_at, by_second=sample.by_second)


def _probe(probed: Iterable[RuleTimers]) -> Steps[tuple[list[RuleTimers], Probe]]:
    """What one partition has, and how many timers of each group."""
    rows: list[RuleTimers] = []
    by_second: list[int] = []
    by_minute: list[int] = []
    for number, row in enumerate(probed):
        rows.append(row)
        by_second += row.jobs
        minutes: Tally[tuple[int, int]] = Tally()
        for fire_us, due_us, jobs in zip(row.fires_us, row.dues_us, row.jobs, strict=True):
            minutes[fire_us // MINUTE_US, due_us] += jobs
        by_minute += minutes.values()
        if number % _STEP_RULES == 0:
            yield
    rules: Tally[int] = Tally()
    for row in rows:
        rules[row.rule_id] += sum(row.jobs)
    return rows, Probe(by_second, by_minute, list(rules.values()))


def _grouped(rows: Iterable[RuleTimers], sample: Sample) -> Steps[Timers]:
    scale = PARTITIONS // sample.partitions
    timers = Timers(sample.partitions, is_estimate=scale > 1)
    for number, row in enumerate(rows):
        timers.add(row, scale)
        if not sample.by_second and (load := timers.loads.get(row.rule_id)) and load.rule.jitter_us:
            timers.is_estimate |= not has_one_second(load.rule.spec)
        if number % _STEP_RULES == 0:
            yield
    return timers


def count_timers(timers: Timers, horizon: Horizon) -> Steps[Counted]:
    """Forecast these timers, and what follows them."""
    counter = Counter(horizon)
    uncounted: dict[int, int] = {}
    for number, (rule_id, load) in enumerate(timers.loads.items()):
        try:
            counter.add(load)
        except (ValueError, KeyError, TypeError):
            uncounted[rule_id] = load.jobs  # it is too costly by now: the scheduler has put its jobs aside
        if number % _STEP_RULES == 0:
            yield
    for due_us, jobs in timers.once.items():
        counter.add_timer(due_us, jobs)
    counts = counter.counts
    yield
    heaviest = ranked((key, load) for key, load in timers.loads.items() if key not in uncounted)
    yield
    jobs = sum(_due_before(horizon.to_us, load) for key, load in timers.loads.items() if key not in uncounted)
    jobs += sum(number for due_us, number in timers.once.items() if due_us < horizon.to_us)
    if timers.once:
        pending = tuple(Pending(due_us, 0, number) for due_us, number in timers.once.items())
        heaviest.append((TIMERS, RuleLoad(_ONCE, pending)))
    is_estimate = counter.is_estimate or timers.is_estimate
    left_out = timers.unreadable + sum(uncounted.values())
    return Counted(horizon, counts, timers.partitions, is_estimate, jobs, left_out, heaviest, timers.samples)


def _due_before(to_us: int, load: RuleLoad) -> int:
    """Jobs with a firing before an instant: timers may have been read for a longer time."""
    return sum(jobs for fire_us, offset_s, jobs in load.pending if fire_us + offset_s * SECOND_US < to_us)


def _load_of(row: RuleTimers, scale: int) -> RuleLoad:
    rule = from_canonical(row.canonical or "")
    if isinstance(rule.spec, OneOff):
        # Their fire times differ within the minute.
        ones = zip(row.dues_us, row.jobs, strict=True)
        return RuleLoad(rule, tuple(Pending(due_us, 0, jobs * scale) for due_us, jobs in ones))
    groups = zip(row.fires_us, row.lags_s, row.jobs, strict=True)
    pending = [Pending(fire_us, lag_s, jobs * scale) for fire_us, lag_s, jobs in groups]
    return RuleLoad(rule, tuple(sorted(pending, key=lambda each: each.offset_s)))
