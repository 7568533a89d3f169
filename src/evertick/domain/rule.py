"""Rules: the one normal form of everything that decides when a job fires, shared by all jobs that fire alike.

Ways of writing the same have the same canonical text and digest: names, ranges and steps of cron are resolved, an
interval keeps only its phase, a zone where none matters is UTC, and numbers that the chosen policy does not look at are
dropped. A million one-offs share one rule, since their only tick is in their timer.
"""

import dataclasses
import functools
import json
from dataclasses import dataclass
from datetime import timedelta
from hashlib import blake2b
from typing import Any, assert_never

from evertick.domain.errors import InvalidInput, require_at_least
from evertick.domain.limits import DEFAULT_MAX_MISSED, MAX_MISSED
from evertick.domain.policies import ConcurrentPolicy, DstGap, DstOverlap, MissedWindow
from evertick.domain.schedule.budget import bounded
from evertick.domain.schedule.cron import Cron
from evertick.domain.schedule.instants import duration_us
from evertick.domain.schedule.interval import Every, EveryMonths
from evertick.domain.schedule.rrule.spec import RRule
from evertick.domain.schedule.rrule.text import Freq
from evertick.domain.schedule.schedule import Schedule
from evertick.domain.schedule.spec import Manual, Once, Soon, Spec, ticks_of
from evertick.domain.schedule.ticks import NoTicks, Ticks, WithinTicks
from evertick.domain.schedule.zone import zone

LONGEST_DEFAULT_GRACE = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class OneOff:
    """A single tick, whose instant is in the job's timer."""


RuleSpec = Cron | RRule | Every | EveryMonths | OneOff | Manual

_KINDS: dict[str, type[Any]] = {
    "cron": Cron,
    "rrule": RRule,
    "every": Every,
    "every_months": EveryMonths,
    "one_off": OneOff,
    "manual": Manual,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


@dataclass(frozen=True, slots=True)
class Rule:
    """Everything that decides when, normalised. Durations are microseconds, as in the ticks."""

    spec: RuleSpec
    timezone: str
    dst_gap: DstGap
    dst_overlap: DstOverlap
    start_us: int | None
    end_us: int | None
    jitter_us: int
    missed_window: MissedWindow
    grace_us: int
    max_missed: int
    concurrent_policy: ConcurrentPolicy
    max_concurrent: int

    def ticks(self) -> Ticks:
        """The nominal fire times; none for a one-off, whose only one is the timer's."""
        return _large_ticks(self) if _is_large(self.spec) else _ticks(self)

    def canonical(self) -> str:
        """The text that equal rules share, and from which `from_canonical` makes the rule again."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        fields["spec"] = {"kind": _NAMES[type(self.spec)], **dataclasses.asdict(self.spec)}
        return json.dumps(fields, sort_keys=True, separators=(",", ":"))

    def digest(self) -> bytes:
        """128 bits that identify the rule in the database."""
        return blake2b(self.canonical().encode(), digest_size=16).digest()


def from_canonical(text: str) -> Rule:
    """The rule whose canonical text this is."""
    fields = json.loads(text)
    spec = fields["spec"]
    kind = _KINDS[spec.pop("kind")]
    values = {name: _untuple(value) for name, value in spec.items()}
    if kind is RRule:
        values["freq"] = Freq(values["freq"])
    fields["spec"] = kind(**values)
    fields["dst_gap"] = DstGap(fields["dst_gap"])
    fields["dst_overlap"] = DstOverlap(fields["dst_overlap"])
    fields["missed_window"] = MissedWindow(fields["missed_window"])
    fields["concurrent_policy"] = ConcurrentPolicy(fields["concurrent_policy"])
    return Rule(**fields)


@dataclass(frozen=True, slots=True)
class Policies:
    """What a job's author chose besides the schedule. A grace of None is the default for the schedule's interval."""

    jitter: timedelta = timedelta(0)
    missed_window: MissedWindow = MissedWindow.RUN_ONCE
    misfire_grace: timedelta | None = None
    max_missed: int = DEFAULT_MAX_MISSED
    concurrent_policy: ConcurrentPolicy = ConcurrentPolicy.SKIP
    max_concurrent: int = 1

    def __post_init__(self) -> None:
        require_at_least("jitter_seconds", self.jitter, timedelta(0))
        require_at_least("misfire_grace_seconds", self.misfire_grace or timedelta(0), timedelta(0))
        require_at_least("max_missed", self.max_missed, 1)
        if self.max_missed > MAX_MISSED:
            raise InvalidInput("max_missed", f"must be at most {MAX_MISSED}")
        require_at_least("max_concurrent", self.max_concurrent, 1)


def default_grace(shortest: timedelta | None) -> timedelta:
    """How late a tick may be and still run as if on time: as long as the shortest interval, an hour at most."""
    return LONGEST_DEFAULT_GRACE if shortest is None else min(shortest, LONGEST_DEFAULT_GRACE)


def rule_of(schedule: Schedule, policies: Policies) -> Rule:
    """Normalise a schedule and its policies. What counts from the job's creation must know it: `anchor_at`."""
    if isinstance(schedule.spec, RRule) and schedule.spec.is_unanchored:
        raise ValueError("a COUNT without DTSTART counts from the job's creation: give the schedule its anchor_at")
    spec = _normal_spec(schedule.spec, clocks_change=not schedule.zone.is_utc)
    by_clock = isinstance(spec, Cron | RRule | EveryMonths)
    by_policy = by_clock and not schedule.zone.is_utc and _reads_the_clock(spec)
    ends = not isinstance(spec, OneOff | Manual)
    grace = default_grace(schedule.shortest_interval()) if policies.misfire_grace is None else policies.misfire_grace
    misfires = not isinstance(spec, Manual)
    return Rule(
        spec=spec,
        timezone=schedule.timezone if by_clock and not schedule.zone.is_utc else "UTC",
        dst_gap=schedule.dst_gap if by_policy else DstGap.CATCH_UP,
        dst_overlap=schedule.dst_overlap if by_policy else DstOverlap.FIRST,
        start_us=schedule.window_us[0] if ends else None,
        end_us=schedule.window_us[1] if ends else None,
        jitter_us=duration_us(policies.jitter),
        missed_window=policies.missed_window if misfires else MissedWindow.RUN_ONCE,
        grace_us=duration_us(grace) if misfires else 0,
        max_missed=policies.max_missed if ends and policies.missed_window is MissedWindow.RUN_ALL else 1,
        concurrent_policy=policies.concurrent_policy,
        max_concurrent=policies.max_concurrent if policies.concurrent_policy is ConcurrentPolicy.ALLOW else 1,
    )


def _normal_spec(spec: Spec, *, clocks_change: bool) -> RuleSpec:
    match spec:
        case Cron():
            return dataclasses.replace(spec, elapsed=spec.elapsed and clocks_change)
        case Once() | Soon():
            return OneOff()
        case Every(total=None, from_anchor=False):
            return dataclasses.replace(spec, anchor_us=spec.anchor_us % spec.step_us)
        case Every() | EveryMonths() | RRule() | Manual():
            return spec
        case _:
            assert_never(spec)


def _reads_the_clock(spec: RuleSpec) -> bool:
    """Whether some tick is a time on the clock, which a change of the clocks can remove or repeat."""
    match spec:
        case RRule():
            return not spec.elapsed or bool(spec.rdates)
        case Cron() | EveryMonths():
            return not spec.elapsed
        case _:
            return False


@bounded
def make_ticks(rule: Rule) -> Ticks:
    match rule.spec:
        case OneOff():
            return NoTicks()
        case spec:
            ticks = ticks_of(spec, zone(rule.timezone), rule.dst_gap, rule.dst_overlap)
    bounded_by_window = rule.start_us is not None or rule.end_us is not None
    return WithinTicks(ticks, rule.start_us, rule.end_us) if bounded_by_window else ticks


# Most rules keep a few kilobytes. The few that may keep a hundred are kept in smaller number.
_ticks = functools.lru_cache(maxsize=65_536)(make_ticks)
_large_ticks = functools.lru_cache(maxsize=512)(make_ticks)
_FEW_DATES = 20


def _is_large(spec: RuleSpec) -> bool:
    """Whether the ticks keep long lists: of dates, or of the seconds of a day."""
    if not isinstance(spec, RRule):
        return False
    dates = len(spec.rdates) + len(spec.exdates) + len(spec.rdates_us) + len(spec.exdates_us)
    return dates > _FEW_DATES or spec.freq is Freq.SECONDLY or len(spec.bysetpos) > _FEW_DATES


def _untuple(value: Any) -> Any:
    """JSON's lists back to the tuples that specs hold."""
    return tuple(_untuple(item) for item in value) if isinstance(value, list) else value
