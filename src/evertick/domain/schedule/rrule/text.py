"""Reads RFC 5545 recurrence text into parts, and says which part is wrong."""

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import IntEnum

from evertick.domain.errors import InvalidSchedule
from evertick.domain.limits import RRULE_MAX_CHARACTERS
from evertick.domain.schedule.instants import DAY_S, FIRST_YEAR, LAST_YEAR, to_us, to_wall
from evertick.domain.schedule.zone import Zone, zone as load_zone

MAX_ZONES = 10
MAX_DATES = 500
"""RDATE and EXDATE together: each is looked up when the rule is read and may be passed over by every search."""
MAX_COUNT = 100_000


class Freq(IntEnum):
    """From the longest period to the shortest, so that comparing says which is finer."""

    YEARLY = 0
    MONTHLY = 1
    WEEKLY = 2
    DAILY = 3
    HOURLY = 4
    MINUTELY = 5
    SECONDLY = 6


PERIOD_S = {
    Freq.YEARLY: 366 * DAY_S,
    Freq.MONTHLY: 31 * DAY_S,
    Freq.WEEKLY: 7 * DAY_S,
    Freq.DAILY: DAY_S,
    Freq.HOURLY: 3600,
    Freq.MINUTELY: 60,
    Freq.SECONDLY: 1,
}
MAX_PERIOD_S = 100 * 366 * DAY_S

WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")

# Part, lowest and highest number, and whether counting from the end by negative numbers is meant.
_NUMBERS = {
    "BYSECOND": (0, 59, False),
    "BYMINUTE": (0, 59, False),
    "BYHOUR": (0, 23, False),
    "BYMONTHDAY": (1, 31, True),
    "BYYEARDAY": (1, 366, True),
    "BYWEEKNO": (1, 53, True),
    "BYMONTH": (1, 12, False),
    "BYSETPOS": (1, 366, True),
}
_PARTS = {"FREQ", "INTERVAL", "COUNT", "UNTIL", "WKST", "BYDAY", *_NUMBERS}
_LINE = re.compile(r"(RRULE|DTSTART|RDATE|EXDATE)((?:;[^:]*)?):(.*)", re.IGNORECASE)
_BYDAY = re.compile(r"([+-]?\d{1,2})?(MO|TU|WE|TH|FR|SA|SU)", re.ASCII)
_DATE = re.compile(r"(\d{8})(?:T(\d{6})(Z?))?", re.ASCII)


@dataclass(slots=True)
class Parts:
    """The parts of a recurrence, checked one by one. Times are walls in the schedule's zone."""

    freq: Freq
    interval: int = 1
    count: int | None = None
    until_wall: int | None = None  # UNTIL without a zone
    until_us: int | None = None  # UNTIL in UTC
    wkst: int = 0
    byday: tuple[tuple[int, int], ...] = ()  # (nth or 0, weekday from Monday 0)
    numbers: dict[str, tuple[int, ...]] = field(default_factory=dict)
    dtstart: int | None = None
    rdates: tuple[int, ...] = ()
    exdates: tuple[int, ...] = ()
    rdates_us: tuple[int, ...] = ()  # written in UTC or another zone, so instants rather than walls
    exdates_us: tuple[int, ...] = ()


def unfold(text: str) -> str:
    """Join the lines that the standard lets long ones be broken into."""
    return re.sub(r"\r?\n[ \t]", "", text)


def zone_in(text: str) -> str | None:
    """The TZID of the DTSTART line, if it has one."""
    match = re.search(r"^DTSTART;(?:[^:\n]*;)?TZID=([^:;\n]+)", unfold(text), re.IGNORECASE | re.MULTILINE)
    return match[1].strip(' "') if match else None


def read(text: str, zone: Zone) -> Parts:
    if len(text) > RRULE_MAX_CHARACTERS:
        raise _bad(f"a recurrence has at most {RRULE_MAX_CHARACTERS} characters")
    lines = [line.strip() for line in unfold(text).splitlines() if line.strip()]
    matches = [_LINE.fullmatch(line) or _refuse_line(line) for line in lines]
    rules = [match[3] for match in matches if match[1].upper() == "RRULE"]
    if len(rules) != 1:
        raise _bad(f"exactly one RRULE line is needed, this has {len(rules)}")
    zones = {match[2].upper() for match in matches if match[2]}
    if len(zones) > MAX_ZONES:  # before any is loaded
        raise _bad(f"a recurrence has at most {MAX_ZONES} different TZID or VALUE, not {len(zones)}")
    parts = _read_rule(rules[0])
    for match in matches:
        name = match[1].upper()
        if name == "RRULE":
            continue
        if name == "DTSTART":
            if parts.dtstart is not None or "," in match[3]:
                raise _bad("DTSTART is one instant")
            parts.dtstart = _read_wall(name, match[2], match[3], zone)
        else:
            _add_dates(parts, name, match[2], match[3], zone)
    dates = len(parts.rdates) + len(parts.rdates_us) + len(parts.exdates) + len(parts.exdates_us)
    if dates > MAX_DATES:
        raise _bad(f"RDATE and EXDATE name at most {MAX_DATES} dates, not {dates}")
    return parts


def _add_dates(parts: Parts, name: str, params: str, values: str, zone: Zone) -> None:
    for value in values.split(","):
        at, is_utc = _read_date(name, value)
        there = load_zone("UTC") if is_utc else _zone_of(params, zone)
        match name, there is zone:
            case "RDATE", True:
                parts.rdates += (to_wall(at),)
            case "RDATE", False:
                parts.rdates_us += (to_us(at.replace(tzinfo=there.info)),)
            case _, True:
                parts.exdates += (to_wall(at),)
            case _:
                parts.exdates_us += (to_us(at.replace(tzinfo=there.info)),)


def _refuse_line(line: str) -> re.Match[str]:
    raise _bad(f"line {line[:60]!r} is not RRULE, DTSTART, RDATE or EXDATE")


def _read_rule(rule: str) -> Parts:
    values: dict[str, str] = {}
    for item in rule.strip().rstrip(";").upper().split(";"):
        name, equals, value = item.partition("=")
        if name not in _PARTS:
            raise _bad(f"RRULE part {name!r} is not known")
        if not equals or not value or name in values:
            raise _bad(f"RRULE part {name} needs one value, given once")
        values[name] = value
    if values.get("FREQ") not in Freq.__members__:
        raise _bad(f"RRULE part FREQ is one of {', '.join(Freq.__members__)}")
    parts = Parts(Freq[values.pop("FREQ")])
    for name, value in values.items():
        _set(parts, name, value)
    _refuse_what_the_standard_forbids(parts)
    return parts


def _set(parts: Parts, name: str, value: str) -> None:
    match name:
        case "INTERVAL":
            parts.interval = _number(name, value, 1, 1_000_000_000)
        case "COUNT":
            parts.count = _number(name, value, 1, MAX_COUNT)
        case "UNTIL":
            wall, is_utc = _read_date(name, value)
            if is_utc:
                parts.until_us = to_us(wall.replace(tzinfo=UTC))
            else:
                parts.until_wall = to_wall(wall)
        case "WKST" if value in WEEKDAYS:
            parts.wkst = WEEKDAYS.index(value)
        case "WKST":
            raise _bad(f"RRULE part WKST is one of {', '.join(WEEKDAYS)}")
        case "BYDAY":
            parts.byday = tuple(sorted({_read_day(day) for day in value.split(",")}))
        case _:
            low, high, negative = _NUMBERS[name]
            numbers = {_number(name, item, low, high, negative=negative) for item in value.split(",")}
            parts.numbers[name] = tuple(sorted(numbers))


def _number(name: str, text: str, low: int, high: int, *, negative: bool = False) -> int:
    if re.fullmatch(r"[+-]?\d{1,10}", text, re.ASCII):
        value = int(text)
        if low <= (abs(value) if negative else value) <= high:
            return value
    either = f" or -{high} to -{low}" if negative else ""
    raise _bad(f"RRULE part {name} is a number from {low} to {high}{either}, not {text!r}")


def _read_day(text: str) -> tuple[int, int]:
    match = _BYDAY.fullmatch(text)
    nth = int(match[1] or 0) if match else 0
    if not match or abs(nth) > 53 or match[1] in {"0", "+0", "-0", "00"}:
        raise _bad(f"RRULE part BYDAY is written MO, 1MO or -1FR, not {text!r}")
    return nth, WEEKDAYS.index(match[2])


def _read_date(name: str, text: str) -> tuple[datetime, bool]:
    """A date and time, and whether it ends in `Z` for UTC; a bare date is its midnight."""
    match = _DATE.fullmatch(text.strip().upper())
    try:
        at = datetime.strptime(match[1] + (match[2] or "000000"), "%Y%m%d%H%M%S") if match else None  # noqa: DTZ007
    except ValueError:
        at = None
    if match is None or at is None:
        raise _bad(f"{name} is written 20260131T090000 or 20260131T090000Z, not {text[:40]!r}")
    if not FIRST_YEAR < at.year < LAST_YEAR:  # a day short on either side: zones move it
        raise _bad(f"{name} {text[:40]!r} is outside of the years {FIRST_YEAR} to {LAST_YEAR}")
    return at, bool(match[3])


def _read_wall(name: str, params: str, text: str, zone: Zone) -> int:
    """A wall time in `zone`, converted if it is written in UTC or with a TZID of its own."""
    wall, is_utc = _read_date(name, text)
    there = load_zone("UTC") if is_utc else _zone_of(params, zone)
    if there is not zone:
        wall = wall.replace(tzinfo=there.info).astimezone(zone.info).replace(tzinfo=None)
    return to_wall(wall)


def _zone_of(params: str, zone: Zone) -> Zone:
    for param in params.strip(";").split(";"):
        name, _, value = param.partition("=")
        if name.upper() == "TZID":
            return load_zone(value.strip(' "'))
    return zone


def _refuse_what_the_standard_forbids(parts: Parts) -> None:
    if parts.count is not None and (parts.until_wall, parts.until_us) != (None, None):
        raise _bad("RRULE has COUNT and UNTIL; only one of them may end it")
    if "BYWEEKNO" in parts.numbers and parts.freq is not Freq.YEARLY:
        raise _bad("RRULE part BYWEEKNO goes only with FREQ=YEARLY")
    if any(nth for nth, _ in parts.byday) and (parts.freq > Freq.MONTHLY or "BYWEEKNO" in parts.numbers):
        raise _bad("RRULE part BYDAY may count weekdays (1MO) only with FREQ=MONTHLY or YEARLY, without BYWEEKNO")
    by_month = parts.freq is Freq.MONTHLY or "BYMONTH" in parts.numbers
    if by_month and any(abs(nth) > 5 for nth, _ in parts.byday):
        raise _bad("RRULE part BYDAY never fires where it counts beyond the five of a weekday that a month has")
    if "BYYEARDAY" in parts.numbers and parts.freq in {Freq.MONTHLY, Freq.WEEKLY, Freq.DAILY}:
        raise _bad("RRULE part BYYEARDAY goes only with FREQ=YEARLY, HOURLY, MINUTELY or SECONDLY")
    if "BYMONTHDAY" in parts.numbers and parts.freq is Freq.WEEKLY:
        raise _bad("RRULE part BYMONTHDAY does not go with FREQ=WEEKLY")
    if "BYSETPOS" in parts.numbers and not (parts.byday or len(parts.numbers) > 1):
        raise _bad("RRULE part BYSETPOS needs another BY… part to choose from")
    if parts.interval * PERIOD_S[parts.freq] > MAX_PERIOD_S:
        raise _bad("RRULE part INTERVAL is longer than 100 years")


def _bad(reason: str) -> InvalidSchedule:
    return InvalidSchedule("schedule", reason)
