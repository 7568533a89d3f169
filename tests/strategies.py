"""What the schedule tests draw from: texts of every form, every zone, and instants near changes of the clocks.

The changes come from the compiled zone files, read by the standard library's own parser, so that they can judge
what the product finds by probing.
"""

import functools
import importlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib import resources
from typing import Any, NamedTuple

from hypothesis import HealthCheck, given, note, reject, settings, strategies as st

from evertick import InvalidSchedule, Schedule, tzdb
from evertick.domain.errors import ScheduleTooCostly
from evertick.domain.policies import DstGap, DstOverlap

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
"""Zones are read and years probed while the first examples run, and many drawn rules never fire."""


class AtLength:
    """Properties of a test module, which every run checks on some examples and the campaign on many."""

    def __init__(self) -> None:
        self.properties: dict[str, Callable[[], None]] = {}

    def holds(
        self, *drawn: st.SearchStrategy[Any], examples: int = 60, at_length: int = 15_000
    ) -> Callable[[Callable[..., None]], Callable[..., None]]:
        def define(prop: Callable[..., None]) -> Callable[..., None]:
            self.properties[prop.__name__] = settings(PATIENT, max_examples=at_length)(given(*drawn)(prop))
            return settings(PATIENT, max_examples=examples)(given(*drawn)(prop))

        return define


FIRST_AT, LAST_AT = datetime(1970, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
_FIRST_S, _LAST_S = int(FIRST_AT.timestamp()), int(LAST_AT.timestamp())

UNUSUAL_ZONES = (
    "America/New_York",
    "Europe/Berlin",
    "Australia/Lord_Howe",  # changes by 30 minutes
    "Pacific/Chatham",  # is 45 minutes past the hour
    "Antarctica/Troll",  # changes by two hours
    "Pacific/Apia",  # has no 30 December 2011
    "Africa/Casablanca",  # winds back for Ramadan
    "Asia/Beirut",  # changes at midnight
    "America/Havana",  # changes at midnight
    "Antarctica/Casey",  # moves by three hours, both ways
    "America/Danmarkshavn",  # moved by three hours at the turn of a year
    "Asia/Singapore",  # moved by half an hour in the last hour of a year
)

zone_names = st.sampled_from(UNUSUAL_ZONES) | st.sampled_from(sorted(tzdb.names()))
gaps = st.sampled_from(list(DstGap))
overlaps = st.sampled_from(list(DstOverlap))


class Change(NamedTuple):
    """An instant in seconds from which another offset holds."""

    at: int
    before: int
    after: int


@functools.cache
def changes(name: str) -> tuple[Change, ...]:
    """Every change of a zone's offset from 1970 to 2100, as its compiled file says."""
    with resources.files("tzdata.zoneinfo").joinpath(*name.split("/")).open("rb") as file:
        compiled: Any = importlib.import_module("zoneinfo._zoneinfo").ZoneInfo.from_file(file, key=name)
    listed = [(at, _seconds(info)) for at, info in zip(compiled._trans_utc, compiled._ttinfos, strict=True)]
    last_listed = max((at for at, _ in listed), default=-(2**40))
    if hasattr(compiled._tz_after, "transitions"):
        rule = compiled._tz_after
        for year in range(1970, 2101):
            start, end = rule.transitions(year)
            ruled = [(start - _seconds(rule.std), _seconds(rule.dst)), (end - _seconds(rule.dst), _seconds(rule.std))]
            listed += [(at, offset) for at, offset in ruled if at > last_listed]
    found, before = [], _seconds(compiled._tti_before or compiled._tz_after)
    for at, after in sorted(listed):
        if after != before and _FIRST_S <= at < _LAST_S:
            found.append(Change(at, before, after))
        before = after
    return tuple(found)


def _seconds(info: Any) -> int:
    return int(info.utcoff.total_seconds())


@st.composite
def instants(draw: st.DrawFn, zone: str = "UTC") -> datetime:
    """Instants from 1970 to 2100, most of them within a day of a change of the zone's clocks."""
    known = changes(zone)
    if draw(st.integers(0, 3)) and known:
        at = draw(st.sampled_from(known)).at + draw(st.integers(-86_400, 86_400) | st.integers(-2, 2))
        at = at // 900 * 900 if draw(st.booleans()) else at
    else:
        at = draw(st.integers(_FIRST_S, _LAST_S - 1))
    fraction = draw(st.sampled_from([0, 0, 0, 1, 500_000, 999_999]))
    return datetime.fromtimestamp(at, UTC) + timedelta(microseconds=fraction)


# Cron

_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")


@st.composite
def _cron_terms(draw: st.DrawFn, low: int, high: int, names: tuple[str, ...] = ()) -> str:
    first, last = sorted(draw(st.tuples(st.integers(low, high), st.integers(low, high))))
    step = draw(st.integers(1, high + 2))
    if draw(st.booleans()) and names:
        return draw(st.sampled_from([names[first - low], f"{names[first - low]}-{names[last - low]}"]))
    return draw(st.sampled_from([f"{first}", f"{first}-{last}", f"{first}-{last}/{step}", f"{first}/{step}"]))


@st.composite
def _cron_fields(
    draw: st.DrawFn, low: int, high: int, names: tuple[str, ...] = (), special: tuple[str, ...] = (), *, hashed: bool
) -> str:
    kind = draw(st.integers(0, 9))
    if kind < 3:
        return "*"
    if kind == 3:
        return f"*/{draw(st.integers(1, high + 2))}"
    if kind == 4 and hashed:
        first, last = sorted(draw(st.tuples(st.integers(low, min(high, 28)), st.integers(low, min(high, 28)))))
        step = draw(st.integers(1, high))
        return draw(st.sampled_from(["H", f"H/{step}", f"H({first}-{last})", f"H({first}-{last})/{step}"]))
    if kind == 5 and special:
        return draw(st.sampled_from(special))
    return ",".join(draw(st.lists(_cron_terms(low, high, names), min_size=1, max_size=3)))


def _dow_fields(*, hashed: bool) -> st.SearchStrategy[str]:
    days = st.integers(0, 7)
    nth = st.builds("{}#{}".format, days | st.sampled_from(_DAYS), st.integers(1, 5))
    last = st.builds("{}L".format, days)
    to_sunday = st.sampled_from(
        ["FRI-7", "SUN-TUE", "0-7", "7", "SUN-SUN", *(["MON-SUN", "SAT-SUN"] if hashed else [])]
    )
    return st.one_of(
        _cron_fields(0, 6, _DAYS, ("?",), hashed=hashed),
        _cron_fields(0, 6, _DAYS, ("?",), hashed=hashed),
        nth,
        last,
        to_sunday,
        st.builds("{},{}".format, nth, last),
    )


@st.composite
def cron_texts(draw: st.DrawFn, *, fields: int | None = None, hashed: bool = True) -> str:
    """Five or six fields; `hashed` lets in what only Evertick reads: `H`, `?` and `MON-SUN`."""
    parts = [
        draw(_cron_fields(0, 59, hashed=hashed)),
        draw(_cron_fields(0, 23, hashed=hashed)),
        draw(_cron_fields(1, 31, special=("L", "LW", "?", "1,L") if hashed else ("L", "LW", "1,L"), hashed=hashed)),
        draw(_cron_fields(1, 12, _MONTHS, hashed=hashed)),
        draw(_dow_fields(hashed=hashed)),
    ]
    if not hashed:
        parts = ["*" if part == "?" else part for part in parts]
    if (fields or draw(st.sampled_from([5, 5, 5, 6]))) == 6:
        parts.insert(0, draw(st.sampled_from(["0", "30", "15,45", "*/20", "59", "10-12"])))
    return " ".join(parts)


# RRULE

_WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
FREQUENCIES = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY")
_LIKELY_INTERVALS = {"YEARLY": 5, "MONTHLY": 20, "WEEKLY": 10, "DAILY": 40, "HOURLY": 50, "MINUTELY": 200}


@st.composite
def _numbers(draw: st.DrawFn, low: int, high: int, *, negative: bool = False, most: int = 4) -> str:
    one = st.integers(low, high)
    if negative:
        one |= st.integers(-high, -low)
    return ",".join(map(str, draw(st.lists(one, min_size=1, max_size=most, unique=True))))


@st.composite
def _counted_days(draw: st.DrawFn, most: int) -> str:
    nth = st.integers(1, most) | st.integers(-most, -1)
    days = st.builds("{}{}".format, nth, st.sampled_from(_WEEKDAYS))
    return ",".join(draw(st.lists(days, min_size=1, max_size=3, unique=True)))


@st.composite
def rules(draw: st.DrawFn, freq: str | None = None) -> dict[str, str]:
    """The parts of an RRULE without its end, in combinations that RFC 5545 allows."""
    freq = freq or draw(st.sampled_from(FREQUENCIES))
    parts = {"FREQ": freq}

    def sometimes(name: str, values: st.SearchStrategy[str], odds: int = 4) -> None:
        if draw(st.integers(1, odds)) == 1:
            parts[name] = draw(values)

    sometimes("INTERVAL", st.integers(1, _LIKELY_INTERVALS.get(freq, 5000)).map(str), 2)
    sometimes("WKST", st.sampled_from(_WEEKDAYS))
    sometimes("BYMONTH", _numbers(1, 12))
    if freq == "YEARLY":
        sometimes("BYWEEKNO", _numbers(1, 53, negative=True), 6)
    if freq in {"YEARLY", "HOURLY", "MINUTELY", "SECONDLY"}:
        sometimes("BYYEARDAY", _numbers(1, 366, negative=True), 6)
    if freq != "WEEKLY":
        sometimes("BYMONTHDAY", _numbers(1, 31, negative=True))
    if freq in {"YEARLY", "MONTHLY"} and "BYWEEKNO" not in parts and draw(st.booleans()):
        sometimes("BYDAY", _counted_days(5 if freq == "MONTHLY" else 53), 2)
    else:
        weekdays = st.lists(st.sampled_from(_WEEKDAYS), min_size=1, max_size=5, unique=True).map(",".join)
        sometimes("BYDAY", weekdays, 2)
    sometimes("BYHOUR", _numbers(0, 23))
    sometimes("BYMINUTE", _numbers(0, 59))
    sometimes("BYSECOND", _numbers(0, 59), 6)
    if any(name.startswith("BY") for name in parts):
        sometimes("BYSETPOS", _numbers(1, 5, negative=True, most=3), 6)
    return parts


def write_rule(parts: dict[str, str]) -> str:
    return "RRULE:" + ";".join(f"{name}={value}" for name, value in parts.items())


walls = st.datetimes(datetime(1990, 1, 1), datetime(2040, 1, 1)).map(lambda wall: wall.replace(microsecond=0, fold=0))  # noqa: DTZ001 - wall times


def compact(wall: datetime) -> str:
    return wall.strftime("%Y%m%dT%H%M%S")


@st.composite
def rrule_texts(draw: st.DrawFn) -> str:
    """A rule with any of DTSTART, COUNT or UNTIL, EXDATE and RDATE."""
    parts = draw(rules())
    start = draw(walls)
    end = draw(st.sampled_from(["", "", "COUNT", "UNTIL", "UNTIL Z"]))
    until = start + timedelta(days=draw(st.integers(1, 4000)), seconds=draw(st.integers(0, 86_399)))
    if end == "COUNT":
        parts["COUNT"] = str(draw(st.integers(1, 400)))
    elif end:
        parts["UNTIL"] = compact(until) + "Z" * end.endswith("Z")
    lines = [write_rule(parts)]
    # A COUNT without DTSTART counts from whatever instant is asked about.
    if "COUNT" in parts or draw(st.booleans()):
        lines.insert(0, f"DTSTART:{compact(start)}")
    for name in ("EXDATE", "RDATE"):
        if draw(st.integers(0, 3)) == 0:
            near = st.integers(0, 400).map(lambda days: start + timedelta(days=days))
            dates = draw(st.lists(near, min_size=1, max_size=4))
            lines.append(f"{name}:{','.join(map(compact, dates))}")
    return "\n".join(lines)


# Intervals and once


@st.composite
def interval_texts(draw: st.DrawFn) -> str:
    amount = draw(st.integers(1, 90))
    unit = draw(st.sampled_from(["s", "m", "h", "d", "w"]))
    start = draw(walls).isoformat() + draw(st.sampled_from(["Z", "", "+05:45", "-03:30"]))
    total = draw(st.sampled_from(["", "1", "5", "100"]))
    step = draw(
        st.sampled_from(
            [f"PT{amount}S", f"PT{amount}M", f"PT{amount}H", f"P{amount}D", "P1M", f"P{amount}M", "P1Y", "P1M2DT3H"]
        )
    )
    return draw(st.sampled_from([f"every {amount}{unit}", f"@every {amount}{unit}", f"R{total}/{start}/{step}"]))


once_texts = st.builds("{}{}".format, walls.map(datetime.isoformat), st.sampled_from(["Z", "", "+02:00"]))

recurring_texts = st.one_of(cron_texts(), rrule_texts(), interval_texts())
texts = st.one_of(cron_texts(), rrule_texts(), interval_texts(), once_texts)


def build(text: str, zone: str, gap: str = DstGap.CATCH_UP, overlap: str = DstOverlap.FIRST) -> Schedule:
    """The schedule; a text that never fires, or is refused for what it costs, is not an example of anything."""
    try:
        return Schedule(text, zone, gap, overlap, key="a job")
    except ScheduleTooCostly:
        reject()
    except InvalidSchedule as refusal:
        assert "never fires" in refusal.reason  # noqa: PT017 - every other refusal is a failure of the drawn text
        reject()


@st.composite
def schedules(draw: st.DrawFn, drawn_texts: st.SearchStrategy[str] = texts) -> Schedule:
    text, zone, gap, overlap = draw(drawn_texts), draw(zone_names), draw(gaps), draw(overlaps)
    note(f"{text!r} in {zone}, gap {gap}, overlap {overlap}")
    return build(text, zone, gap, overlap)


@st.composite
def schedules_with_instants(draw: st.DrawFn, drawn_texts: st.SearchStrategy[str] = texts) -> tuple[Schedule, datetime]:
    """A schedule and an instant to ask about, near a change of its own zone's clocks."""
    schedule = draw(schedules(drawn_texts))
    return schedule, draw(instants(schedule.timezone))
