"""What a job's schedule and policies mean, worked out once for all jobs that were given the same.

Most texts mean the same to every job. Some depend on the job's creation (`every 5m`, an RRULE without DTSTART), and
cron's `H` depends on the job's id: the `Binding` of a parsed text tells which.
"""

import functools
import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from typing import NamedTuple, assert_never

from evertick.domain.errors import Fault, InvalidInput, InvalidSchedule
from evertick.domain.policies import ConcurrentPolicy, DstGap, DstOverlap, MissedWindow
from evertick.domain.rule import Policies, Rule, default_grace, rule_of
from evertick.domain.schedule.cron import Cron
from evertick.domain.schedule.instants import SECOND_US, to_us
from evertick.domain.schedule.interval import Every
from evertick.domain.schedule.rrule.spec import RRule
from evertick.domain.schedule.schedule import Schedule
from evertick.domain.schedule.spec import Once, Soon, Spec
from evertick.domain.schedule.text import ParseContext, is_one_off, parse, split_zone
from evertick.domain.schedule.zone import zone

_CACHE_SIZE = 4096
_INSTANT = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:Z|[+-]\d\d:\d\d)", re.ASCII)
"""An instant as most programs write it. Other forms are allowed, and cost more to read."""
_SOME_INSTANT = "2000-01-01T00:00:00Z"
_HASHED = re.compile(r"(?:^|[\s,])H(?![A-Z])", re.IGNORECASE)
_UTC = "UTC"
SOON = timedelta(seconds=1)


class Binding(Enum):
    """What besides its own fields a job's timing depends on."""

    NOTHING = auto()  # also a delay: only its instant is the job's own
    CREATION = auto()  # the second of it
    JOB = auto()  # its id, which seeds `H`


class Timing(NamedTuple):
    """The fields that decide when, as a key: for jobs that agree in them, the rule is worked out once."""

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


class ParsedText(NamedTuple):
    """What a schedule's text says, whatever the job, its creation and its window. The spec is None if it has faults."""

    spec: Spec | None
    binding: Binding
    faults: tuple[Fault, ...] = ()


@functools.lru_cache(maxsize=_CACHE_SIZE)
def parse_text(schedule: str, timezone: str, gap: DstGap, overlap: DstOverlap) -> ParsedText:
    """Parse a text in its zone. What cannot be parsed has faults, unless another job's `H` may make it usable."""
    faults: list[Fault] = []
    bare, name = split_zone(schedule, timezone)
    try:
        setting = ParseContext(zone(name), gap, overlap)
    except InvalidSchedule as refused:
        faults.append(fault_of(refused))
        bare, name = split_zone(schedule, _UTC)
        if name != _UTC:  # the text brings its own zone, and cannot be read without it
            return ParsedText(None, Binding.JOB, tuple(faults))
        setting = ParseContext(zone(name), gap, overlap)
    try:
        spec = parse(bare, setting)
    except InvalidSchedule as refused:
        # `0 0 30 H *` is a date for some jobs only.
        faults += [] if _HASHED.search(bare) else [fault_of(refused)]
        return ParsedText(None, Binding.JOB, tuple(faults))
    except OverflowError:  # leaves the calendar; making the whole schedule tells why
        return ParsedText(None, Binding.JOB, tuple(faults))
    if faults:
        return ParsedText(None, Binding.JOB, tuple(faults))
    return ParsedText(spec, _binding(spec, bare))


def _binding(spec: Spec, bare: str) -> Binding:
    match spec:
        case Cron() if _HASHED.search(bare):
            return Binding.JOB
        case Every(from_anchor=False) | RRule(first=None):
            return Binding.CREATION
        case _:
            return Binding.NOTHING


def binding_of(timing: Timing) -> Binding:
    return Binding.NOTHING if _INSTANT.fullmatch(timing.schedule) else parse_text(*timing[:4]).binding


def fires_at_once(schedule: str, timezone: str, now: datetime) -> bool:
    """Whether a job has a run within a second from now. A text that cannot be used has none."""
    try:
        if _INSTANT.fullmatch(schedule):
            return datetime.fromisoformat(schedule) <= now + SOON
        if not is_one_off(schedule):
            return False
        match parse_text(schedule, timezone, DstGap.CATCH_UP, DstOverlap.FIRST).spec:
            case Soon(delay_us, _):
                return delay_us <= SOON.total_seconds() * SECOND_US
            case Once(at_us):
                return at_us <= to_us(now + SOON)
            case _:
                return False
    except (InvalidSchedule, ValueError, OverflowError):
        return False


@dataclass(frozen=True, slots=True)
class ResolvedTiming:
    """A schedule and all that is worked out from it."""

    schedule: Schedule
    rule: Rule
    canonical: str
    digest: bytes
    shortest_interval: timedelta | None
    grace: timedelta
    jitter: timedelta


def resolve(timing: Timing, key: str, created_at: datetime) -> ResolvedTiming:
    """Resolve for one job. A delay stays one (`Soon`): all jobs with it share everything but the instant."""
    binding = binding_of(timing)
    match binding:
        case Binding.NOTHING:
            return _resolve_shared(timing, None)
        case Binding.CREATION:
            second = created_at.replace(microsecond=0) if timing.start_at is None else None
            return _resolve_shared(timing, second)
        case Binding.JOB:
            return resolve_alone(timing, key, created_at)
        case _:
            assert_never(binding)


def one_off_at(timing: Timing) -> datetime | None:
    """The instant of a one-off that is plainly written and has no window; None: a closer look is needed."""
    if timing.start_at is not None or timing.end_at is not None or not _INSTANT.fullmatch(timing.schedule):
        return None
    try:
        return datetime.fromisoformat(timing.schedule).astimezone(UTC)
    except ValueError:
        return None


def resolve_one_off(timing: Timing) -> ResolvedTiming:
    """Resolve a one-off but for its instant, which is no part of its rule: most have an instant of their own."""
    return _resolve_shared(Timing(_SOME_INSTANT, *timing[1:]), None)


def resolve_alone(timing: Timing, key: str, created_at: datetime | None) -> ResolvedTiming:
    """Resolve for one job, or for all jobs if the text needs no key, without the cache."""
    schedule = Schedule(*timing[:6], key, anchor_at=created_at)
    policies, shortest = timing.policies, schedule.shortest_interval()
    if policies.misfire_grace is None:
        policies = replace(policies, misfire_grace=default_grace(shortest))
    rule = rule_of(schedule, policies)
    canonical, digest = _written(rule)
    grace = timedelta(microseconds=rule.grace_us)
    return ResolvedTiming(schedule, rule, canonical, digest, shortest, grace, policies.jitter)


@functools.lru_cache(maxsize=_CACHE_SIZE)
def _resolve_shared(timing: Timing, created_at: datetime | None) -> ResolvedTiming:
    return resolve_alone(timing, "", created_at)


@functools.lru_cache(maxsize=_CACHE_SIZE)
def _written(rule: Rule) -> tuple[str, bytes]:
    return rule.canonical(), rule.digest()


def fault_of(refused: InvalidInput) -> Fault:
    return Fault(f"/{refused.field}", refused.reason)
