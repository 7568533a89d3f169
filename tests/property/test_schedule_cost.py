"""What a schedule costs is counted in steps, and no accepted one costs more than its budget, however it is written."""

import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, note, reject, settings, strategies as st, target

from bounded_work import MAX_CALLS, calls_at_most
from evertick import InvalidSchedule, Schedule, tzdb
from evertick.domain.errors import ScheduleTooCostly
from evertick.domain.job.definition import check_new
from evertick.domain.misfire import plan
from evertick.domain.policies import MissedWindow
from evertick.domain.rule import Policies, make_ticks, rule_of
from evertick.domain.schedule.budget import ACCEPTED_STEPS, PLAN_STEPS, SEARCH_STEPS, at_most, finished
from evertick.domain.schedule.instants import to_us
from evertick.domain.schedule.preview import preview
from evertick.domain.schedule.zone import Zone
from evertick.domain.schedule.zoned import MAX_LOST
from strategies import (
    FREQUENCIES,
    PATIENT,
    compact,
    gaps,
    overlaps,
    rules,
    schedules_with_instants,
    texts,
    write_rule,
    zone_names,
)

NEW_YORK = "America/New_York"
NOW = datetime(2026, 6, 1, tzinfo=UTC)
NOW_US = to_us(NOW)
HOUR = timedelta(hours=1)
IN_THE_GAP = "FREQ=YEARLY;BYMONTH=3;BYDAY=2SU;BYHOUR=2;BYMINUTE="
NO_LIMIT = 10**9


def steps_of(question: Callable[[], object]) -> int:
    with at_most(NO_LIMIT) as work:
        question()
        return work.spent


def few_calls(question: Callable[[], object]) -> None:
    """In few steps, and each step is little work."""
    assert steps_of(question) < ACCEPTED_STEPS // 2
    with calls_at_most(MAX_CALLS):
        question()


# What stopped a cluster


@pytest.mark.parametrize("minute", [0, 17, 59])
def test_a_yearly_rule_whose_every_tick_the_clocks_skip_ends_in_few_steps(minute: int) -> None:
    text = f"RRULE:{IN_THE_GAP}{minute}\nRDATE:20260602T000000"
    few_calls(lambda: Schedule(text, NEW_YORK, "skip"))
    schedule = Schedule(text, NEW_YORK, "skip")
    extra_date = datetime(2026, 6, 2, 4, tzinfo=UTC)
    few_calls(lambda: schedule.next(NOW))
    few_calls(lambda: schedule.next(extra_date))
    few_calls(lambda: schedule.ticks(0).prev(to_us(datetime(2200, 1, 1, tzinfo=UTC))))
    assert schedule.next(NOW) == extra_date
    assert schedule.next(extra_date) is None


def test_a_rule_by_the_hour_whose_every_tick_the_clocks_skip_ends_in_few_steps() -> None:
    text = "RRULE:FREQ=HOURLY;BYHOUR=2;BYMONTH=3;BYMONTHDAY=8,9,10,11,12,13,14;BYDAY=SU\nRDATE:20260602T000000"
    schedule = Schedule(text, NEW_YORK)
    few_calls(lambda: schedule.next(datetime(2026, 6, 3, tzinfo=UTC)))
    assert schedule.next(datetime(2026, 6, 3, tzinfo=UTC)) is None


@pytest.mark.parametrize("text", ["31 0 2 * 3 0#2", "0 31 2 * 3 0#2", "0-59 2 * 3 0#2"])
def test_a_cron_expression_whose_every_tick_the_clocks_skip_is_refused_in_few_steps(text: str) -> None:
    few_calls(lambda: Schedule(text, NEW_YORK, "skip"))
    schedule = Schedule(text, NEW_YORK, "skip")
    few_calls(lambda: schedule.next(NOW))
    with pytest.raises(InvalidSchedule, match="clocks of America/New_York jump over every time"):
        check_new(schedule, NOW, HOUR)


def test_what_is_lost_for_ever_is_not_reported_to_the_end_of_the_calendar() -> None:
    schedule = Schedule(f"RRULE:{IN_THE_GAP}30", NEW_YORK, "skip")
    lost = schedule.ticks(0).lost(NOW_US, to_us(datetime(9000, 1, 1, tzinfo=UTC)))
    assert len(lost) == MAX_LOST + 1


def test_all_that_is_lost_between_ticks_is_reported() -> None:
    schedule = Schedule("30 2 * * 0", NEW_YORK, "skip")
    lost = schedule.ticks(0).lost(NOW_US, to_us(datetime(2126, 6, 1, tzinfo=UTC)))
    assert len(lost) == 100


# The budget

TOO_COSTLY = "DTSTART:00040101T000000\nRRULE:FREQ=HOURLY;INTERVAL=7;BYHOUR=9;COUNT=100000"


def test_a_search_over_its_budget_is_refused_with_the_reason() -> None:
    with pytest.raises(ScheduleTooCostly, match=r"too long to compute.*COUNT") as refused:
        Schedule(TOO_COSTLY).next(NOW)
    assert refused.value.field == "schedule"


@settings(PATIENT, max_examples=60)
@given(schedules_with_instants())
@example((Schedule(f"RRULE:{IN_THE_GAP}41\nRDATE:20260602T000000", "Europe/Lisbon", "skip"), NOW))
@example((Schedule("DTSTART:20200101T000041\nRRULE:FREQ=WEEKLY;INTERVAL=3;BYDAY=MO,FR;BYSETPOS=-1;COUNT=500"), NOW))
@example((Schedule("DTSTART:20200101T000041\nRRULE:FREQ=HOURLY;INTERVAL=7;BYHOUR=3,4;COUNT=5000"), NOW))
def test_the_steps_do_not_depend_on_what_was_asked_before(drawn: tuple[Schedule, datetime]) -> None:
    schedule, after = drawn
    window = to_us(after), to_us(after + timedelta(days=400))
    for question in (
        lambda: schedule.next(after),
        lambda: schedule.ticks(window[0]).prev(window[0]),
        lambda: schedule.ticks(window[0]).count(*window),
        lambda: schedule.ticks(window[0]).lost(*window),
    ):
        assert steps_of(question) == steps_of(question)


def test_a_schedule_that_would_get_too_costly_in_the_life_of_a_job_is_refused_at_once() -> None:
    schedule = Schedule("DTSTART:20200101T000000\nRRULE:FREQ=WEEKLY;INTERVAL=2;BYDAY=MO;COUNT=100000")
    assert schedule.next(NOW)
    with pytest.raises(ScheduleTooCostly, match="COUNT"):
        schedule.next(NOW + timedelta(days=600 * 366))
    check_new(schedule, NOW, HOUR)
    old = Schedule("DTSTART:19700101T000000\nRRULE:FREQ=WEEKLY;INTERVAL=2;BYDAY=MO;COUNT=100000")
    assert old.next(NOW)
    with pytest.raises(ScheduleTooCostly, match="COUNT"):
        check_new(old, NOW, HOUR)


SPARSE = "DTSTART:20220222T123100\nRRULE:FREQ=SECONDLY;INTERVAL=89338;BYHOUR=11,22;BYMINUTE=38,48;BYSECOND=19,21,46,56"
"""Its ticks are years apart, and some of them decades."""


def _removed(fires: list[datetime], *, as_instants: bool) -> str:
    zone = UTC if as_instants else ZoneInfo(NEW_YORK)
    return ",".join(f"{compact(fire.astimezone(zone))}{'Z' * as_instants}" for fire in fires)


@pytest.mark.parametrize("as_instants", [False, True])
def test_an_accepted_schedule_stays_within_its_budget_over_its_longest_pauses(*, as_instants: bool) -> None:
    fires = Schedule(SPARSE, NEW_YORK).upcoming(NOW, 12)
    for removed in (fires[:0], fires[1:2]):
        dates = f"\nEXDATE:{_removed(removed, as_instants=as_instants)}" if removed else ""
        schedule = Schedule(SPARSE + dates, NEW_YORK)
        check_new(schedule, NOW, HOUR)
        most = max(steps_of(partial(schedule.next, fire)) for fire in fires)
        assert ACCEPTED_STEPS < most < SEARCH_STEPS


@pytest.mark.parametrize("as_instants", [False, True])
def test_a_schedule_of_which_fifty_years_are_removed_has_ended(*, as_instants: bool) -> None:
    fires = Schedule(SPARSE, NEW_YORK).upcoming(NOW, 12)
    with at_most(NO_LIMIT):  # as one that was accepted before
        schedule = Schedule(f"{SPARSE}\nEXDATE:{_removed(fires[1:], as_instants=as_instants)}", NEW_YORK)
    assert schedule.next(NOW) == fires[0]
    assert schedule.next(fires[0]) is None
    assert schedule.ticks(0).prev(to_us(fires[-1])) is None
    assert steps_of(lambda: schedule.next(fires[0])) < SEARCH_STEPS


def test_a_list_that_gets_too_costly_ends_early_and_says_so() -> None:
    rare = Schedule("RRULE:FREQ=MINUTELY;INTERVAL=1439;BYHOUR=2;BYMINUTE=30")
    ahead = preview(rare, NOW, 1000)
    assert 2 < len(ahead.rows) < 1000
    assert "list_cut_short" in {finding.code for finding in ahead.findings}
    assert [row.fire_at for row in ahead.rows] == rare.upcoming(NOW, len(ahead.rows))


def test_a_long_list_of_frequent_ticks_is_complete() -> None:
    assert len(preview(Schedule("* * * * *", NEW_YORK), NOW, 1000).rows) == 1000
    assert len(preview(Schedule("0 0 29 2 *", NEW_YORK), NOW, 1000).rows) == 1000


def test_a_list_without_an_end_is_refused() -> None:
    with pytest.raises(ScheduleTooCostly, match="count_between"):
        Schedule("* * * * * *").between(NOW, NOW + timedelta(days=2))


FAR_BUT_LEGAL = {
    "0 0 29 2 */7": "2032-02-29",
    "0 0 */30 * 1": "2026-08-31",
    "0 0 * 2 1#5": "2044-02-29",
    "RRULE:FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29;BYDAY=MO": "2044-02-29",
    "RRULE:FREQ=MONTHLY;BYMONTHDAY=13;BYDAY=FR": "2026-11-13",
    "DTSTART:20260101T000000\nRRULE:FREQ=YEARLY;INTERVAL=100": "2126-01-01",
    "DTSTART:20260101T000000\nRRULE:FREQ=YEARLY;BYWEEKNO=53;BYDAY=SU": "2027-01-03",
}


@pytest.mark.parametrize(("text", "day"), FAR_BUT_LEGAL.items())
def test_rare_but_possible_rules_are_found(text: str, day: str) -> None:
    found = Schedule(text).next(NOW)
    assert found is not None
    assert f"{found:%Y-%m-%d}" == day


def test_too_many_dates_are_refused() -> None:
    dates = ",".join(f"{20000101 + day}" for day in range(28)) + ","
    text = f"RRULE:FREQ=DAILY\nEXDATE:{(dates * 25).rstrip(',')}"
    with pytest.raises(InvalidSchedule, match="at most 500 dates"):
        Schedule(text)


def test_a_recurrence_does_not_load_hundreds_of_zones() -> None:
    dates = "\n".join(f"RDATE;TZID={name}:20270101" for name in sorted(tzdb.names())[:60])
    with pytest.raises(InvalidSchedule, match="at most 10 different TZID"):
        Schedule(f"RRULE:FREQ=DAILY\n{dates}")


def test_hundreds_of_listed_weekdays_are_refused() -> None:
    days = ",".join(f"{nth}{day}" for nth in range(1, 53) for day in ("MO", "TU", "WE", "TH", "FR", "SA", "SU"))
    with pytest.raises(ScheduleTooCostly, match="weekdays that BYDAY lists"):
        Schedule(f"RRULE:FREQ=YEARLY;BYDAY={days}")


def test_a_huge_text_is_refused_before_it_is_read() -> None:
    with pytest.raises(InvalidSchedule, match="at most 8192 characters"):
        Schedule("0 0 * * *" + " " * 100_000)


# Memory and far years


def test_schedules_with_tens_of_thousands_of_times_a_day_keep_none_of_them() -> None:
    tracemalloc.start()
    try:
        kept = [Schedule(f"0-58 0-{minute} 0-22 * * *") for minute in range(20, 58)]
        kept += [Schedule(f"RRULE:FREQ=DAILY;BYHOUR={FIVE_HOURS};BYMINUTE=1,{n};BYSECOND={MAX_SECONDS}") for n in KINDS]
        kept += [Schedule(f"RRULE:FREQ=SECONDLY;BYMINUTE=1,{n};BYSECOND={MAX_SECONDS}") for n in KINDS]
        assert all(schedule.next(NOW) for schedule in kept)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < 20_000 * len(kept)


KINDS = range(2, 40)
FIVE_HOURS = "0,1,2,3,5"
MAX_SECONDS = ",".join(map(str, range(59)))


@settings(PATIENT, max_examples=60)
@given(st.sampled_from(sorted(tzdb.names())), st.data())
def test_a_zone_shows_in_far_years_what_zoneinfo_shows(name: str, data: st.DataObject) -> None:
    first, last = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) for year in (4, 9990))
    zone = Zone(name)
    for at in data.draw(st.lists(st.integers(first, last), min_size=10, max_size=40)):
        stretch = zone.stretch_at(at)
        assert stretch.start <= at < stretch.end
        for inside in (at, stretch.start, stretch.end - 1):
            assert zone.offset(inside) == stretch.offset
        assert zone.offset(stretch.since - 1) == stretch.before
        assert zone.offset(stretch.until) == stretch.after


# The costliest that is accepted


def _many(low: int, high: int) -> st.SearchStrategy[str]:
    whole = st.builds(lambda step: range(low, high + 1, step), st.integers(1, 7))
    return (whole | st.lists(st.integers(low, high), min_size=1, max_size=60, unique=True)).map(
        lambda numbers: ",".join(map(str, numbers))
    )


_LONG_INTERVALS = {
    "YEARLY": 100,
    "MONTHLY": 1180,
    "WEEKLY": 5200,
    "DAILY": 36_000,
    "HOURLY": 870_000,
    "MINUTELY": 1_000_000,
    "SECONDLY": 90_000,
}


@st.composite
def _hostile_recurrences(draw: st.DrawFn) -> str:
    """Long and odd intervals, long lists, old starts, many dates."""
    freq = draw(st.sampled_from(FREQUENCIES))
    rule = draw(rules(freq))
    if draw(st.booleans()):
        rule["INTERVAL"] = str(draw(st.integers(1, _LONG_INTERVALS[freq])))
    for name, low, high in (("BYHOUR", 0, 23), ("BYMINUTE", 0, 59), ("BYSECOND", 0, 59)):
        if draw(st.integers(0, 2)) == 0:
            rule[name] = draw(_many(low, high))
    if draw(st.booleans()):
        rule["COUNT"] = str(draw(st.integers(1, 100_000)))
    start = draw(st.datetimes(datetime(1900, 1, 1), datetime(2027, 1, 1)))  # noqa: DTZ001 - a wall time
    lines = [f"DTSTART:{compact(start)}", write_rule(rule)]
    for name in ("RDATE", "EXDATE"):
        if draw(st.integers(0, 3)) == 0:
            first, step = draw(st.integers(0, 400)), draw(st.integers(1, 30))
            dates = (start + timedelta(days=first + step * number) for number in range(draw(st.integers(1, 200))))
            lines.append(f"{name}:{','.join(map(compact, dates))}")
    return "\n".join(lines)


@st.composite
def _hostile_crons(draw: st.DrawFn) -> str:
    """Around the hours that clocks skip and on days that are rare."""
    fields = [draw(_many(0, 59)), draw(_many(0, 59)), draw(st.sampled_from(["2", "1,2", "0-3", "0,23"]))]
    days = draw(st.sampled_from(["*", "*/2", "*/13", "*/29", "29", "L", "LW", "8-14"]))
    months = draw(st.sampled_from(["*", "2", "3", "10", "3,11", "2,4,6"]))
    weekdays = draw(st.sampled_from(["*", "0", "0#2", "0L", "1#5", "*/7", "0#5,6L"]))
    return " ".join([*fields, days, months, weekdays])


@st.composite
def _swallowed_recurrences(draw: st.DrawFn) -> str:
    """Nearly all ticks fall into the hour that clocks skip, and a few listed dates are all that fires."""
    start = draw(st.datetimes(datetime(1900, 1, 1), datetime(2027, 1, 1)))  # noqa: DTZ001 - a wall time
    freq = draw(st.sampled_from(["YEARLY;BYMONTH=3;BYDAY=", "YEARLY;BYMONTH=10,3;BYDAY=", "MONTHLY;BYDAY="]))
    rule = f"RRULE:FREQ={freq}{draw(st.sampled_from(['2SU', '-1SU', '1SU,2SU', 'SU']))}"
    rule += f";BYHOUR={draw(st.sampled_from(['2', '1', '0,1,2,3']))};BYMINUTE={draw(_many(0, 59))}"
    if draw(st.booleans()):
        rule += f";INTERVAL={draw(st.integers(1, 20))}"
    if draw(st.booleans()):
        rule += f";COUNT={draw(st.integers(1, 100_000))}"
    dates = (NOW + timedelta(days=draw(st.integers(1, 20_000))) for _ in range(draw(st.integers(1, 5))))
    lines = [f"DTSTART:{compact(start)}"] if draw(st.booleans()) else []
    return "\n".join([*lines, rule, f"RDATE:{','.join(compact(each.replace(tzinfo=None)) for each in dates)}"])


@st.composite
def _sparse_recurrences(draw: st.DrawFn) -> str:
    """Steps that meet a few times of the day only every so many years, and some of these are removed."""
    start = draw(st.datetimes(datetime(1990, 1, 1), datetime(2027, 1, 1)))  # noqa: DTZ001 - a wall time
    interval = draw(st.integers(80_000, 90_000) | st.integers(1, 100_000))
    few = partial(st.lists, min_size=1, max_size=4, unique=True)
    times = ((name, draw(few(st.integers(0, high)))) for name, high in (("HOUR", 23), ("MINUTE", 59), ("SECOND", 59)))
    limits = "".join(f";BY{name}={','.join(map(str, numbers))}" for name, numbers in times)
    rule = f"DTSTART:{compact(start)}\nRRULE:FREQ=SECONDLY;INTERVAL={interval}{limits}"
    first, count = draw(st.integers(0, 10)), draw(st.integers(0, 10))
    try:
        removed = finished(Schedule(rule).upcoming_in_steps(NOW, first + count))[first:] if count else []
    except InvalidSchedule:
        reject()
    return f"{rule}\nEXDATE:{','.join(map(compact, removed))}" if removed else rule


class Asked(NamedTuple):
    """When a timer is planned, how long after its tick, and what is to be done with the ticks missed until then."""

    at: datetime
    outage: timedelta
    policies: Policies


def questions(schedule: Schedule, asked: Asked) -> dict[str, tuple[int, Callable[[], object]]]:
    """All that is asked about a job in its life, each with its budget."""
    ticks = schedule.ticks(NOW_US)
    at_us, from_us = to_us(asked.at), to_us(asked.at - asked.outage)
    rule = rule_of(schedule, asked.policies)
    fire_us = ticks.next(from_us - 1)
    tick_us = ticks.next(at_us) or at_us
    return {
        "next from a tick": (SEARCH_STEPS, lambda: ticks.next(tick_us)),
        "previous to a tick": (SEARCH_STEPS, lambda: ticks.prev(tick_us)),
        "make": (SEARCH_STEPS, lambda: make_ticks(rule)),
        "next": (SEARCH_STEPS, lambda: ticks.next(at_us)),
        "prev": (SEARCH_STEPS, lambda: ticks.prev(at_us)),
        "count": (SEARCH_STEPS, lambda: ticks.count(from_us, at_us)),
        "lost": (SEARCH_STEPS, lambda: ticks.lost(at_us, (ticks.next(at_us) or at_us) + 1)),
        "shortest": (SEARCH_STEPS, schedule.shortest_interval),
        "plan": (PLAN_STEPS, lambda: None if fire_us is None else plan(rule, fire_us, at_us)),
    }


def costliest(text: str, zone: str, gap: str, overlap: str, asked: Asked) -> None:
    try:
        schedule = Schedule(text, zone, gap, overlap, key="a job", anchor_at=NOW)
        check_new(schedule, NOW, HOUR)
    except InvalidSchedule:
        reject()
    for name, (budget, question) in questions(schedule, asked).items():
        steps = steps_of(question)
        note(f"{name}: {steps} of {budget} steps")
        assert steps <= budget, name
        target(steps, label=name)
    assert finished(schedule.upcoming_in_steps(NOW, 20)), "it may end early, but not before the first"


ANY_TEXT = st.one_of(_hostile_recurrences(), _hostile_crons(), _swallowed_recurrences(), _sparse_recurrences(), texts)
ASKED = st.builds(
    Asked,
    st.datetimes(datetime(2026, 6, 1), datetime(2076, 6, 1), timezones=st.just(UTC)),  # noqa: DTZ001
    st.timedeltas(timedelta(0), timedelta(days=366)),
    st.builds(
        Policies,
        missed_window=st.sampled_from(MissedWindow),
        misfire_grace=st.sampled_from([timedelta(0), HOUR, timedelta(days=40)]),
        max_missed=st.sampled_from([1, 2, 100, 10_000]),
    ),
)
drawn = given(ANY_TEXT, zone_names, gaps, overlaps, ASKED)

test_the_costliest_schedule_that_is_accepted_stays_within_its_budget = settings(PATIENT, max_examples=60)(
    drawn(costliest)
)
test_the_costliest_schedule_at_length = pytest.mark.campaign(settings(PATIENT, max_examples=20_000)(drawn(costliest)))
