"""Cron expressions. cronsim reads the fields and matches the days; `H`, `?`, messages and the search are here."""

import calendar
import functools
import re
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime

from cronsim import CronSim, CronSimError

from evertick.domain.errors import InvalidSchedule
from evertick.domain.schedule.instants import DAY_S, LIKE_YEARS, first_day, to_day
from evertick.domain.schedule.patterns.days import DayPattern, Days, SameTimes, every_day_of, times_within
from evertick.domain.stable_hash import stable_int

NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}

DAY_OF_MONTH, DAY_OF_WEEK = 3, 5

FIELDS = (
    ("second", "0-59"),
    ("minute", "0-59"),
    ("hour", "0-23"),
    ("day-of-month", "1-31, L or LW"),
    ("month", "1-12 or JAN-DEC"),
    ("day-of-week", "0-7 or SUN-SAT, 5L or 1#1"),
)

# What `H` chooses from: every month has a 28th, and Sunday is counted once.
_HASH_RANGES = ((0, 59), (0, 59), (0, 23), (1, 28), (1, 12), (0, 6))
_HASH = re.compile(r"H(?:\((\d{1,4})-(\d{1,4})\))?(?:/(\d{1,4}))?", re.ASCII)
_SUNDAY_LAST = re.compile(r"(?<=MON|TUE|WED|THU|FRI|SAT)-SUN|(?<=[1-6])-SUN")
_ANY_TIME = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Cron:
    """What a cron expression says, with `H` resolved, in the one way of writing it.

    `elapsed`: minute or hour is `*` or `*/n`, so the job follows elapsed time through a change of the clocks.
    `both_days`: day-of-month and day-of-week must both match, not either.
    """

    fields: tuple[str, str, str, str, str, str]
    elapsed: bool
    both_days: bool

    def pattern(self) -> DayPattern:
        second, minute, hour, *days = self.fields
        return DayPattern(cron_days(*days, self.both_days), SameTimes(times_of_day(second, minute, hour)))


def parse(text: str, key: str = "") -> Cron:
    """Read five or six fields, or a nickname such as `@daily`."""
    if not text.isascii():
        raise InvalidSchedule("schedule", f"a cron expression is written in ASCII: {text!r}")
    parts = _split(text)
    starred = [_is_star(part) for part in parts]
    resolved = [_resolve(part, number, key) for number, part in enumerate(parts)]
    both_days = starred[DAY_OF_MONTH] or starred[DAY_OF_WEEK]
    sim = _read(resolved)
    sets: tuple[Iterable[int | tuple[int, int]], ...] = (
        sim.seconds,
        sim.minutes,
        sim.hours,
        sim.days,
        sim.months,
        sim.weekdays,
    )
    second, minute, hour, dom, month, dow = (_canonical(number, items) for number, items in enumerate(sets))
    if not both_days and "*" in {dom, dow}:
        # Either matches, and one of them names all its days without a star: every day, in the one way of writing it.
        dom, dow, both_days = "*", "*", True
    fields = (second, minute, hour, dom, month, dow)
    return Cron(fields, elapsed=starred[1] or starred[2], both_days=both_days)


def _split(text: str) -> list[str]:
    text = text.strip()
    if text.startswith("@"):
        nickname = NICKNAMES.get(text.lower())
        if nickname is None:
            raise InvalidSchedule("schedule", f"{text!r} is not one of {', '.join(NICKNAMES)}")
        text = nickname
    parts = text.upper().split()
    if len(parts) == 5:
        return ["0", *parts]
    if len(parts) != 6:
        raise InvalidSchedule("schedule", f"a cron expression has 5 or 6 fields, this has {len(parts)}: {text!r}")
    return parts


def _is_star(part: str) -> bool:
    """Whether the field is `*` or `*/n`, or their relatives `?` and `H/n`."""
    return part.startswith(("*", "?", "H/"))


def _resolve(part: str, number: int, key: str) -> str:
    """Rewrite what cronsim does not know: `?`, `H`, and Sunday as the end of a range of names."""
    if part == "?":
        if number in {DAY_OF_MONTH, DAY_OF_WEEK}:
            return "*"
        raise _bad_field(number, part, "`?` stands only for a day-of-month or day-of-week")
    if number == DAY_OF_WEEK:
        part = _SUNDAY_LAST.sub("-7", part)
    # Only a term that begins with H is one: THU and MARCH have theirs inside.
    return ",".join(_hash(term, number, key) if term.startswith("H") else term for term in part.split(","))


def _hash(term: str, number: int, key: str) -> str:
    match = _HASH.fullmatch(term)
    if not match:
        raise _bad_field(number, term, "`H` is written H, H/15, H(0-29) or H(0-29)/10")
    low, high = _HASH_RANGES[number]
    if match[1]:
        low, high = max(low, int(match[1])), min(high, int(match[2]))
    if low > high:
        raise _bad_field(number, term, "the range is empty")
    step = int(match[3]) if match[3] else None
    if step == 0:
        raise _bad_field(number, term, "the step is zero")
    if step is None:
        return str(low + stable_int(high - low + 1, "H", key, number))
    first = low + stable_int(min(step, high - low + 1), "H", key, number)
    return ",".join(map(str, range(first, high + 1, step)))


def _read(parts: list[str]) -> CronSim:
    for number, part in enumerate(parts):
        alone = ["*"] * 6
        alone[number] = part
        try:
            CronSim(" ".join(alone), _ANY_TIME)
        except CronSimError:
            raise _bad_field(number, part, f"expected {FIELDS[number][1]}") from None
    try:
        return CronSim(" ".join(parts), _ANY_TIME)
    except CronSimError:
        reason = f"never fires: day {parts[DAY_OF_MONTH]} does not occur in month {parts[4]}"
        raise InvalidSchedule("schedule", reason) from None


def _bad_field(number: int, part: str, reason: str) -> InvalidSchedule:
    return InvalidSchedule("schedule", f"cron field {FIELDS[number][0]} {part!r}: {reason}")


def _canonical(number: int, items: Iterable[int | tuple[int, int]]) -> str:
    """One text for one set: `MON-WED,3` and `1,2,3` are both `1,2,3`."""
    if number == DAY_OF_WEEK:
        items = {(item[0] % 7, item[1]) if isinstance(item, tuple) else item % 7 for item in items}
    plain = sorted(item for item in items if isinstance(item, int) and item >= 0)
    if len(plain) == (60, 60, 24, 31, 12, 7)[number]:
        return "*"
    words = [str(item) for item in plain]
    words += ["L"] * (CronSim.LAST in items) + ["LW"] * (CronSim.LAST_WEEKDAY in items)
    pairs = sorted(item for item in items if isinstance(item, tuple))
    words += [f"{day}L" if nth == CronSim.LAST else f"{day}#{nth}" for day, nth in pairs]
    return ",".join(words)


@functools.lru_cache(maxsize=2048)
def times_of_day(second: str, minute: str, hour: str) -> Sequence[int]:
    """The seconds of a day that three canonical fields name; a range where they are evenly spaced."""
    if (second, minute, hour) == ("*", "*", "*"):
        return range(DAY_S)
    sim = CronSim(f"{second} {minute} {hour} * * *", _ANY_TIME)
    return times_within(sorted(sim.hours), sorted(sim.minutes), sorted(sim.seconds))


@functools.lru_cache(maxsize=1024)
def cron_days(dom: str, month: str, dow: str, both_days: bool) -> Days:  # noqa: FBT001 - a cache key
    """The matching days of a year, found once for all expressions that share the day fields."""
    sim = CronSim(f"0 0 0 {dom} {month} {dow}", _ANY_TIME)
    sim.day_and = both_days
    if (dom, month, dow) == ("*", "*", "*"):
        return every_day_of
    # Where both fields must match, only days that the first names need a look; L and LW are among the last six.
    named = {*sim.days, *range(26, 32)} if min(sim.days) < 0 else sim.days
    candidates = sorted(day for day in named if day > 0) if both_days else range(1, 32)

    @functools.cache  # a few years stand for all
    def find(year: int) -> Sequence[int]:
        dates = (
            date(year, month, day)
            for month in sorted(sim.months)
            for day in candidates
            if day <= calendar.monthrange(year, month)[1]
        )
        return array("h", (to_day(day) - first_day(year) for day in dates if sim.match_day(day)))

    return lambda year: find(LIKE_YEARS[year % 400])
