"""What a job's schedule and policies make of it, worked out once for all jobs that were given the same.

Most texts mean the same to every job. Some depend on the job's creation (`every 5m`, an RRULE without DTSTART), and
cron's `H` depends on the job's id: `binding_of` tells which.
"""

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from operator import attrgetter
from typing import NamedTuple, assert_never

from evertick.domain.errors import Fault, InvalidInput, InvalidSchedule
from evertick.domain.job.spec import DEFAULT_TIMEZONE, JobSpec
from evertick.domain.policies import ConcurrentPolicy, DstGap, DstOverlap, MissedWindow
from evertick.domain.rule import Policies, Rule, default_grace, rule_of
from evertick.domain.schedule.cron import Cron
from evertick.domain.schedule.interval import Every
from evertick.domain.schedule.rrule.spec import RRule
from evertick.domain.schedule.schedule import Schedule
from evertick.domain.schedule.text import Setting, parse, split_zone
from evertick.domain.schedule.zone import zone

_KEPT = 4096
_INSTANT = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:Z|[+-]\d\d:\d\d)", re.ASCII)
"""An instant as most programs write it. There are other ways, and they all cost more to read."""
_SOME_INSTANT = "2000-01-01T00:00:00Z"
_HASHED = re.compile(r"(?:^|[\s,])H(?![A-Z])", re.IGNORECASE)


class Binding(Enum):
    """What besides its own fields a job's timing depends on."""

    NOTHING = auto()  # also a delay: only its instant is the job's own
    CREATION = auto()  # the second of it
    JOB = auto()  # its id, which seeds `H`


class Timing(NamedTuple):
    """The fields that decide when, as a key: jobs that agree in them are settled once."""

    schedule: str
    timezone: str
    dst_gap: DstGap
    dst_overlap: DstOverlap
    start_at: datetime | None
    end_at: datetime | None
    jitter_seconds: float
    missed_window: MissedWindow
    misfire_grace_seconds: float | None
    max_missed: int
    concurrent_policy: ConcurrentPolicy
    max_concurrent: int

    @property
    def policies(self) -> Policies:
        grace = self.misfire_grace_seconds
        return Policies(
            jitter=timedelta(seconds=self.jitter_seconds),
            missed_window=self.missed_window,
            misfire_grace=None if grace is None else timedelta(seconds=grace),
            max_missed=self.max_missed,
            concurrent_policy=self.concurrent_policy,
            max_concurrent=self.max_concurrent,
        )


_timing_fields = attrgetter(*Timing._fields)


def timing_of(spec: JobSpec) -> Timing:
    return Timing._make(_timing_fields(spec))


@dataclass(frozen=True, slots=True)
class Settled:
    """A schedule and all that is worked out from it."""

    schedule: Schedule
    rule: Rule
    canonical: str
    digest: bytes
    shortest_interval: timedelta | None
    grace: timedelta
    jitter: timedelta


def settle(timing: Timing, key: str, created_at: datetime) -> Settled:
    """Settle for one job; a delay stays one (`Soon`), since all jobs with it share everything but the instant."""
    binding = binding_of(timing.schedule, timing.timezone, timing.dst_gap, timing.dst_overlap)
    match binding:
        case Binding.NOTHING:
            return _settle_shared(timing, None)
        case Binding.CREATION:
            second = created_at.replace(microsecond=0) if timing.start_at is None else None
            return _settle_shared(timing, second)
        case Binding.JOB:
            return settle_alone(timing, key, created_at)
        case _:
            assert_never(binding)


def is_plain_instant(schedule: str) -> bool:
    return _INSTANT.fullmatch(schedule) is not None


def one_off_at(timing: Timing) -> datetime | None:
    """The instant of a one-off that is plainly written and has no window; None: a closer look is needed."""
    if timing.start_at is not None or timing.end_at is not None or not _INSTANT.fullmatch(timing.schedule):
        return None
    try:
        return datetime.fromisoformat(timing.schedule).astimezone(UTC)
    except ValueError:
        return None


def settle_one_off(timing: Timing) -> Settled:
    """Settle a one-off but for its instant, which is no part of its rule: they come by the thousand, all different."""
    return _settle_shared(Timing(_SOME_INSTANT, *timing[1:]), None)


def settle_alone(timing: Timing, key: str, created_at: datetime | None) -> Settled:
    """Settle for one job, or for all whose meaning needs no key, without a look at what is known already."""
    schedule = Schedule(*timing[:6], key, anchor_at=created_at)
    policies, shortest = timing.policies, schedule.shortest_interval()
    if policies.misfire_grace is None:
        policies = replace(policies, misfire_grace=default_grace(shortest))
    rule = rule_of(schedule, policies)
    canonical, digest = _written(rule)
    grace = timedelta(microseconds=rule.grace_us)
    return Settled(schedule, rule, canonical, digest, shortest, grace, policies.jitter)


@functools.lru_cache(maxsize=_KEPT)
def _settle_shared(timing: Timing, created_at: datetime | None) -> Settled:
    return settle_alone(timing, "", created_at)


@functools.lru_cache(maxsize=_KEPT)
def _written(rule: Rule) -> tuple[str, bytes]:
    return rule.canonical(), rule.digest()


@functools.lru_cache(maxsize=_KEPT)
def binding_of(schedule: str, timezone: str, gap: DstGap, overlap: DstOverlap) -> Binding:
    if _INSTANT.fullmatch(schedule):
        return Binding.NOTHING
    try:
        bare, name = split_zone(schedule, timezone)
        spec = parse(bare, Setting(zone(name), gap, overlap))
    except (InvalidSchedule, OverflowError):
        return Binding.JOB  # refused for this job alone: another `H` may make a date of `0 0 30 H *`
    match spec:
        case Cron() if _HASHED.search(bare):
            return Binding.JOB
        case Every(from_anchor=False) | RRule(first=None):
            return Binding.CREATION
        case _:
            return Binding.NOTHING


def text_faults(schedule: str, timezone: str, gap: DstGap, overlap: DstOverlap) -> Iterator[Fault]:
    """What is wrong with the texts alone, whatever the job, its creation and its window."""
    try:
        bare, name = split_zone(schedule, timezone)
        setting = Setting(zone(name), gap, overlap)
    except InvalidSchedule as refused:
        yield fault_of(refused)
        bare, name = split_zone(schedule, DEFAULT_TIMEZONE)
        if name != DEFAULT_TIMEZONE:
            return  # the text brings its own zone, and cannot be read without it
        setting = Setting(zone(name), gap, overlap)
    if _HASHED.search(bare):
        return  # `0 0 30 H *` is a date for some jobs only
    try:
        parse(bare, setting)
    except InvalidSchedule as refused:
        yield fault_of(refused)
    except OverflowError:
        return  # leaves the calendar; said where the whole schedule is made


def fault_of(refused: InvalidInput) -> Fault:
    return Fault(f"/{refused.field}", refused.reason)
