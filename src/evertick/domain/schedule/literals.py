"""Reads the parts of a schedule's text that several forms share: lengths of time and instants.

A length is written as people do (`5m`, `1h30m`, `2 days`) or as ISO 8601 does (`PT1H`, `P1M`). An ISO 8601 instant with
an offset is one, without it is a wall time in the job's zone.
"""

import re
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction

from evertick.domain.errors import InvalidSchedule
from evertick.domain.policies import DstGap, DstOverlap
from evertick.domain.schedule.instants import FIRST_YEAR, LAST_YEAR, SECOND_US, to_us, to_wall
from evertick.domain.schedule.patterns.wall import ListPattern
from evertick.domain.schedule.ticks import FIRST_US
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
