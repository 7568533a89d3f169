"""Fixed and calendar intervals: `every 5m`, `@every 1h30m`, and ISO 8601's `R5/2026-01-01T00:00:00Z/P1M`.

Also what they share with one-offs: lengths of time and instants. A length is written as people do (`5m`, `1h30m`,
`2 days`) or as ISO 8601 does (`PT1H`, `P1M`). An ISO 8601 instant with an offset is one, without it is a wall time in
the job's zone.
"""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction

from evertick.domain.errors import InvalidSchedule
from evertick.domain.policies import DstGap, DstOverlap
from evertick.domain.schedule.instants import DAY_S, FIRST_YEAR, LAST_YEAR, SECOND_US, from_wall, to_us, to_wall
from evertick.domain.schedule.patterns.wall import ListPattern, StepPattern
from evertick.domain.schedule.ticks import FIRST_US, EveryTick
from evertick.domain.schedule.zone import Zone
from evertick.domain.schedule.zoned import ZonedTicks

_UNITS = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}
_TERM = re.compile(
    r"\s*(\d{1,15}(?:\.\d{1,9})?)\s*(ms|w|weeks?|d|days?|h|hrs?|hours?|m|mins?|minutes?|s|secs?|seconds?)(?![a-z])",
    re.IGNORECASE | re.ASCII,
)
_ISO = re.compile(
    r"P(?:(?P<years>\d{1,9})Y)?(?:(?P<months>\d{1,9})M)?(?:(?P<w>\d{1,9})W)?(?:(?P<d>\d{1,9})D)?"
    r"(?:T(?:(?P<h>\d{1,12})H)?(?:(?P<m>\d{1,12})M)?(?:(?P<s>\d{1,12}(?:[.,]\d{1,6})?)S)?)?",
    re.IGNORECASE | re.ASCII,
)
MAX_US = 100 * 366 * 86_400 * SECOND_US
"""A hundred years: longer than any schedule should wait."""
_EVERY = re.compile(r"@?every\s+(.+)", re.IGNORECASE | re.DOTALL)
_REPEAT = re.compile(r"R(?P<total>-1|\d{0,9})/(?P<start>[^/]+)/(?P<step>[^/]+)", re.IGNORECASE | re.ASCII)
_MONTH_S = 28 * DAY_S, 31 * DAY_S
"""The shortest and the longest month."""


@dataclass(frozen=True, slots=True)
class Span:
    """Calendar months, whose length depends on where they start, and a fixed length beside them."""

    months: int
    fixed_us: int


def parse_words(text: str) -> int | None:
    """`1h30m`, `90s`, `2 days`, `hour` as microseconds; None if it is not a length of time."""
    text = text.strip()
    if re.fullmatch(r"(second|minute|hour|day|week)", text, re.IGNORECASE):
        text = f"1 {text}"
    position, total = 0, Fraction(0)
    while position < len(text):
        match = _TERM.match(text, position)
        if not match:
            return None
        unit = match[2].lower()
        total += Fraction(match[1]) * (Fraction(1, 1000) if unit == "ms" else _UNITS[unit[0]])
        position = match.end()
    return round(total * SECOND_US) if text else None


def parse_iso(text: str) -> Span | None:
    """An ISO 8601 duration; None if it is not one."""
    match = _ISO.fullmatch(text)
    if not match or not any(match.groups()) or text.upper().endswith("T"):
        return None
    months = int(match["years"] or 0) * 12 + int(match["months"] or 0)
    seconds = sum(Fraction((match[unit] or "0").replace(",", ".")) * size for unit, size in _UNITS.items())
    return Span(months, round(seconds * SECOND_US))


def read_instant(text: str) -> datetime | None:
    """The date and time that the text says, None if it says none. A date alone says no time."""
    body = text.strip().upper()
    try:
        return datetime.fromisoformat(body) if "T" in body or " " in body else None
    except ValueError:
        return None


def instant_us(at: datetime, zone: Zone, gap: DstGap, overlap: DstOverlap) -> int:
    """The instant in microseconds. Once means once: of a time that comes twice, `both` is the first."""
    if not FIRST_YEAR <= at.year <= LAST_YEAR:
        raise InvalidSchedule("schedule", f"{at.isoformat()} is outside of the years {FIRST_YEAR} to {LAST_YEAR}")
    if at.tzinfo is not None:
        return to_us(at)
    overlap = DstOverlap.SECOND if overlap is DstOverlap.SECOND else DstOverlap.FIRST
    found = ZonedTicks(ListPattern([to_wall(at)]), zone, gap, overlap).next(FIRST_US)
    if found is None:
        reason = f"never fires: {at.isoformat()} does not exist in {zone.name}, the clocks jump over it"
        raise InvalidSchedule("schedule", reason)
    return found + at.microsecond


@dataclass(frozen=True, slots=True)
class Every:
    """A fixed step from an anchor. `from_anchor`: the anchor is the first tick, not just one among all."""

    step_us: int
    anchor_us: int
    total: int | None = None
    from_anchor: bool = False

    def ticks(self) -> EveryTick:
        return EveryTick(self.anchor_us, self.step_us, self.total, from_anchor=self.from_anchor)


@dataclass(frozen=True, slots=True)
class EveryMonths:
    """Calendar steps from a wall time: n steps on is always reckoned from the start, so the 31st stays the 31st."""

    months: int
    fixed_s: int
    start_wall: int
    total: int | None = None

    @property
    def elapsed(self) -> bool:
        """A step of months keeps its time of day, so it is a fixed time to the clock's changes."""
        return False

    def pattern(self) -> StepPattern:
        shortest, longest = (self.months * month_s + self.fixed_s for month_s in _MONTH_S)
        return StepPattern(self._wall_of, range(shortest, longest + 1), self.total)

    def _wall_of(self, number: int) -> int | None:
        start = from_wall(self.start_wall)
        months = start.year * 12 + start.month - 1 + number * self.months
        year, month = divmod(months, 12)
        if year > LAST_YEAR:
            return None
        wall = start.replace(year=year, month=month + 1, day=1)
        last = (wall + timedelta(days=31)).replace(day=1) - timedelta(days=1)
        wall = wall.replace(day=min(start.day, last.day))
        moved = to_wall(wall) + number * self.fixed_s
        return moved if moved < to_wall(datetime(LAST_YEAR, 1, 1)) else None  # noqa: DTZ001 - a wall time


def is_every(text: str) -> bool:
    return _EVERY.match(text) is not None


def parse_every(text: str, anchor_us: int) -> Every:
    match = _EVERY.fullmatch(text.strip())
    step = parse_words(match[1]) if match else None
    if step is None:
        raise InvalidSchedule("schedule", f"{text!r}: write an interval as `every 5m`, `every 90s` or `every 1h30m`")
    return Every(_checked(text, step), anchor_us)


def is_repeating(text: str) -> bool:
    return re.match(r"R-?\d*/", text, re.IGNORECASE | re.ASCII) is not None


def parse_repeating(text: str, zone: Zone, gap: DstGap, overlap: DstOverlap) -> Every | EveryMonths:
    """`R[n]/start/step` or `R[n]/start/end`: n ticks, the first at the start; without n for ever."""
    match = _REPEAT.fullmatch(text.strip())
    start = read_instant(match["start"]) if match else None
    if not match or start is None:
        raise InvalidSchedule("schedule", f"{text!r}: write `R/2026-01-01T00:00:00Z/PT1H`, or `R5/…` for five ticks")
    total = None if match["total"] in {"", "-1"} else int(match["total"])
    if total == 0:
        raise InvalidSchedule("schedule", f"{text!r} never fires: it repeats zero times")
    step = parse_iso(match["step"])
    if step and step.months:
        return _by_months(text, start, step, total, zone)
    start_us = instant_us(start, zone, gap, overlap)
    if step is None:
        end = read_instant(match["step"])
        if end is None:
            raise InvalidSchedule("schedule", f"{match['step']!r} is neither an ISO 8601 duration nor an instant")
        step = Span(0, instant_us(end, zone, gap, overlap) - start_us)
    return Every(_checked(text, step.fixed_us), start_us, total, from_anchor=True)


def _by_months(text: str, start: datetime, step: Span, total: int | None, zone: Zone) -> EveryMonths:
    if step.months > 1200 or (step.fixed_us % SECOND_US or start.microsecond) or step.fixed_us > MAX_US:
        raise InvalidSchedule("schedule", f"{text!r}: a calendar step goes by whole seconds, and by at most 100 years")
    wall = start if start.tzinfo is None else start.astimezone(zone.info).replace(tzinfo=None)
    return EveryMonths(step.months, step.fixed_us // SECOND_US, to_wall(wall), total)


def _checked(text: str, step_us: int) -> int:
    if step_us <= 0:
        raise InvalidSchedule("schedule", f"{text!r}: the interval must be longer than zero")
    if step_us > MAX_US:
        raise InvalidSchedule("schedule", f"{text!r}: the interval is longer than 100 years")
    return step_us
