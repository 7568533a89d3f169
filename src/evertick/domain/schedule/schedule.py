"""The public face of a schedule: a text, a zone and its policies in; fire times out."""

from collections.abc import Generator, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TypeVar

from evertick.domain.errors import InvalidSchedule, ScheduleTooCostly
from evertick.domain.policies import DstGap, DstOverlap
from evertick.domain.schedule.budget import ACCEPTED_STEPS, LIST_STEPS, at_most, bounded, bounded_by, grant_row
from evertick.domain.schedule.describe.describe import describe
from evertick.domain.schedule.instants import DAY_S, FIRST_YEAR, LAST_YEAR, SECOND_US, from_us, to_us
from evertick.domain.schedule.interval import Every
from evertick.domain.schedule.lint import Finding, LintedSchedule, lint
from evertick.domain.schedule.rrule.spec import RRule
from evertick.domain.schedule.spacing import shortest_interval
from evertick.domain.schedule.spec import Manual, Once, Soon, Spec, ticks_of
from evertick.domain.schedule.text import ParseContext, parse, split_zone
from evertick.domain.schedule.ticks import END_US, FIRST_US, ListTicks, NoTicks, Ticks, WithinTicks
from evertick.domain.schedule.zone import Zone, zone

_OUTSIDE = f"outside of the years {FIRST_YEAR} to {LAST_YEAR}"
SHORTEST_INTERVAL = timedelta(seconds=1)
MAX_LISTED = 100_000
"""Fire times that `between` lists at most."""

_E = TypeVar("_E", DstGap, DstOverlap)


class Schedule:
    """When a job fires. Immutable; all instants are aware datetimes in UTC.

    Args:
        text: cron, `@daily`, `every 5m`, `R/…`, `RRULE:…`, an instant, `now`, `in 90s` or `manual`.
        timezone: an IANA name; a `CRON_TZ=` or `DTSTART;TZID=` in the text counts as this.
        dst_gap: what becomes of a time that the clocks jump over: `catch_up`, `skip` or `shift`.
        dst_overlap: which of two equal times on the clock is meant: `first`, `second` or `both`.
        start_at, end_at: the window in which it fires, both ends included.
        key: seeds `H`, so that jobs with the same text spread; the scheduler uses the job's id.
        anchor_at: when the job was created: where `every …`, `in …`, `now` and a COUNT without DTSTART count from.
            Without it, intervals count from 1970, the others from the instant that is asked about.
    """

    __slots__ = (
        "_ticks",
        "dst_gap",
        "dst_overlap",
        "end_at",
        "key",
        "spec",
        "start_at",
        "text",
        "window_us",
        "zone",
    )

    @bounded_by(ACCEPTED_STEPS)
    def __init__(  # noqa: PLR0913, PLR0917 - the public signature
        self,
        text: str,
        timezone: str = "UTC",
        dst_gap: str = DstGap.CATCH_UP,
        dst_overlap: str = DstOverlap.FIRST,
        start_at: datetime | None = None,
        end_at: datetime | None = None,
        key: str = "",
        *,
        anchor_at: datetime | None = None,
    ) -> None:
        self.text = text
        self.key = key
        self.start_at = _aware("start_at", start_at)
        self.end_at = _aware("end_at", end_at)
        self.window_us = (_us(self.start_at), _us(self.end_at))
        if self.start_at and self.end_at and self.start_at >= self.end_at:
            raise InvalidSchedule("end_at", "must be later than start_at")
        bare, zone_name = split_zone(text, timezone)
        self.zone = zone(zone_name)
        self.dst_gap = _member(DstGap, "dst_gap", dst_gap)
        self.dst_overlap = _member(DstOverlap, "dst_overlap", dst_overlap)
        anchor = _us(_aware("anchor_at", anchor_at))
        setting = ParseContext(self.zone, self.dst_gap, self.dst_overlap, anchor, self.window_us[0], key)
        try:
            self.spec = parse(bare, setting)
            self._ticks = self._within(self._unbounded(self.spec))
        except OverflowError:
            raise InvalidSchedule("schedule", f"names a time {_OUTSIDE}") from None
        self._refuse_useless()

    @property
    def timezone(self) -> str:
        return self.zone.name

    @bounded
    def ticks(self, reference_us: int) -> Ticks:
        """The ticks, in microseconds. What counts from a creation that is not known counts from `reference_us`."""
        match self.spec:
            case Soon(delay_us, start_us):
                at = max(reference_us + max(delay_us, 1), FIRST_US if start_us is None else start_us)
                return self._within(ListTicks([at])) if at < END_US else NoTicks()
            case RRule(is_unanchored=True) as rule:
                wall = self.zone.wall_at(reference_us // SECOND_US)
                return self._within(self._unbounded(rule.anchored(wall + 1)))
            case _:
                return self._ticks

    def next(self, after: datetime) -> datetime | None:
        """Return the first fire time strictly after `after`, or None when there is none left."""
        after_us = _instant_us("after", after)
        found = self.ticks(after_us).next(after_us)
        return None if found is None else from_us(found)

    def upcoming(self, after: datetime, count: int) -> list[datetime]:
        """Return the first `count` fire times strictly after `after`. Each of them is a search of its own."""
        return list(islice(self._iterate(_instant_us("after", after), END_US), count))

    def upcoming_in_steps(self, after: datetime, count: int) -> Generator[None, None, list[datetime]]:
        """Do `upcoming` within one budget, a fire time in each step: the list ends early, but not empty."""
        fires: list[datetime] = []
        with at_most(LIST_STEPS):
            try:
                for at in islice(self._iterate(_instant_us("after", after), END_US), count):
                    fires.append(at)
                    grant_row()
                    yield
            except ScheduleTooCostly:
                if not fires:
                    raise
        return fires

    def between(self, start: datetime, end: datetime) -> list[datetime]:
        """Return the fire times in [start, end): the start is included, the end is not."""
        start_us, end_us = _instant_us("start", start), _instant_us("end", end)
        fires = list(islice(self._iterate(start_us - 1, end_us), MAX_LISTED + 1))
        if len(fires) > MAX_LISTED:
            raise ScheduleTooCostly("schedule", f"fires more than {MAX_LISTED} times then: count_between counts them")
        return fires

    def count_between(self, start: datetime, end: datetime) -> int:
        """Return how many fire times are in [start, end), without walking through them."""
        start_us, end_us = _instant_us("start", start), _instant_us("end", end)
        return self.ticks(start_us - 1).count(start_us, end_us)

    def shortest_interval(self) -> timedelta | None:
        """Return the smallest distance between two fire times on the clock, or None if there are never two."""
        return shortest_interval(_with_local_dates(self.spec, self.zone))

    def describe(self) -> str:
        """Say in one English sentence when it fires."""
        return describe(self.spec, self.zone, self.start_at, self.end_at)

    def lint(self, *, after: datetime | None = None, jitter: timedelta | None = None) -> list[Finding]:
        """Return what is probably not meant, the worst first."""
        ticks = self._ticks if after is None else self.ticks(_instant_us("after", after))
        parts = LintedSchedule(self.text, self.spec, self.zone, self.dst_gap, self.dst_overlap, self.window_us, ticks)
        return lint(parts, after, has_jitter=bool(jitter))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return self._identity().__hash__()

    def __repr__(self) -> str:
        return f"Schedule({self.text!r}, timezone={self.timezone!r})"

    def _identity(self) -> tuple[object, ...]:
        return self.spec, self.zone.name, self.dst_gap, self.dst_overlap, self.window_us

    def _iterate(self, after_us: int, end_us: int) -> Iterator[datetime]:
        ticks = self.ticks(after_us)
        at = ticks.next(after_us)
        while at is not None and at < end_us:
            yield from_us(at)
            at = ticks.next(at)

    def _search_from(self) -> int:
        """From where a tick is looked for: a rule with long steps may not be met for decades around antiquity."""
        return (self.spec.base - DAY_S) * SECOND_US if isinstance(self.spec, RRule) else FIRST_US

    def _unbounded(self, spec: Spec) -> Ticks:
        return ticks_of(spec, self.zone, self.dst_gap, self.dst_overlap)

    def _within(self, ticks: Ticks) -> Ticks:
        return ticks if self.window_us == (None, None) else WithinTicks(ticks, *self.window_us)

    def _refuse_useless(self) -> None:
        match self.spec:
            case Manual() | Soon():
                return
            case Once(at_us=at_us) if not FIRST_US <= at_us < END_US:
                raise InvalidSchedule("schedule", f"names a time {_OUTSIDE}")
            case Every(step_us=step) if timedelta(microseconds=step) < SHORTEST_INTERVAL:
                raise InvalidSchedule("schedule", f"the interval is shorter than {SHORTEST_INTERVAL.seconds} second")
        if self._ticks.next(self._search_from()) is None:
            outside = self.window_us != (None, None) and self._unbounded(self.spec).next(FIRST_US) is not None
            where = " between start_at and end_at" if outside else ""
            raise InvalidSchedule("schedule", f"never fires{where}: no date in fifty years matches {self.text!r}")


def _aware(field: str, at: datetime | None) -> datetime | None:
    if at is None:
        return None
    if at.tzinfo is None:
        raise InvalidSchedule(field, "needs a time zone or offset")
    try:
        return at.astimezone(UTC)
    except OverflowError:
        raise InvalidSchedule(field, f"lies {_OUTSIDE}") from None


def _us(at: datetime | None) -> int | None:
    return None if at is None else to_us(at)


def _instant_us(name: str, at: datetime) -> int:
    if at.tzinfo is None:
        raise ValueError(f"{name} needs a time zone: instants are aware datetimes")
    return to_us(at)


def _member(kind: type[_E], field: str, value: str) -> _E:
    try:
        return kind(value)
    except ValueError:
        raise InvalidSchedule(field, f"{value!r} is not one of {', '.join(kind)}") from None


def _with_local_dates(spec: Spec, zone: Zone) -> Spec:
    """The spec with the dates that were added as instants among those on the clock."""
    if not isinstance(spec, RRule) or not spec.rdates_us:
        return spec
    walls = (zone.wall_at(at // SECOND_US) for at in spec.rdates_us)
    return replace(spec, rdates=tuple(sorted({*spec.rdates, *walls})), rdates_us=())
