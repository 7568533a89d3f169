"""What holds for every schedule in every zone under every policy, near changes of the clocks above all."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, time, timedelta
from itertools import pairwise, product

import pytest
from cronsim import CronSim
from hypothesis import assume, strategies as st

from evertick import InvalidSchedule, Schedule, tzdb
from evertick.domain.policies import DstGap, DstOverlap
from evertick.domain.schedule.cron import Cron
from evertick.domain.schedule.instants import from_seconds, from_wall, to_us
from evertick.domain.schedule.rrule.spec import RRule
from evertick.domain.schedule.zoned import ZonedTicks
from strategies import (
    AtLength,
    build,
    compact,
    cron_texts,
    gaps,
    instants,
    overlaps,
    recurring_texts,
    rules,
    schedules_with_instants,
    texts,
    walls,
    write_rule,
    zone_names,
)

AT_LENGTH = AtLength()
holds = AT_LENGTH.holds


# The order of fire times

MICROSECOND = timedelta(microseconds=1)
MAX_LISTED = 2_000


@holds(schedules_with_instants())
def test_next_is_later_than_the_instant_asked_about(drawn: tuple[Schedule, datetime]) -> None:
    schedule, after = drawn
    found = schedule.next(after)
    assert found is None or (found > after and found.tzinfo is UTC)


@holds(schedules_with_instants())
def test_fire_times_ascend_strictly_and_are_each_others_next(drawn: tuple[Schedule, datetime]) -> None:
    schedule, after = drawn
    fires = schedule.upcoming(after, 20)
    assert all(earlier < later for earlier, later in pairwise([after, *fires]))
    assert all(schedule.next(earlier) == later for earlier, later in pairwise(fires))


@holds(schedules_with_instants(recurring_texts), st.floats(0, 1))
def test_any_instant_before_the_next_fire_time_has_the_same_next(drawn: tuple[Schedule, datetime], part: float) -> None:
    schedule, after = drawn
    found = schedule.next(after)
    assume(found is not None)
    assert found is not None
    between = after + (found - after) * part
    assert schedule.next(min(between, found - MICROSECOND)) == found
    assert schedule.next(found - MICROSECOND) == found


@holds(schedules_with_instants(recurring_texts), st.timedeltas(timedelta(0), timedelta(days=3)))
def test_fire_times_do_not_depend_on_where_iteration_started(
    drawn: tuple[Schedule, datetime], earlier: timedelta
) -> None:
    schedule, after = drawn
    fires = schedule.upcoming(after, 10)
    assume(fires and schedule.count_between(after - earlier, fires[-1]) < MAX_LISTED)
    walked = schedule.between(after - earlier, fires[-1] + MICROSECOND)
    assert [at for at in walked if at > after] == fires


@holds(schedules_with_instants())
def test_prev_is_the_way_back_of_next(drawn: tuple[Schedule, datetime]) -> None:
    schedule, after = drawn
    after_us = to_us(after)
    ticks = schedule.ticks(after_us)
    ahead = ticks.next(after_us)
    behind = ticks.prev(after_us + 1)
    assert behind is None or behind <= after_us
    if ahead is not None:
        assert ticks.prev(ahead + 1) == ahead
        assert ticks.prev(ahead) == behind
    if behind is not None:
        assert ticks.next(behind - 1) == behind
        assert ticks.next(behind) == ahead


# Counting

spans = st.one_of(
    st.timedeltas(timedelta(0), timedelta(days=3)),
    st.timedeltas(timedelta(0), timedelta(days=60)),
    st.timedeltas(timedelta(0), timedelta(days=2000)),
)


@holds(schedules_with_instants(), spans)
def test_counting_agrees_with_listing(drawn: tuple[Schedule, datetime], span: timedelta) -> None:
    schedule, start = drawn
    end = start + span
    if schedule.count_between(start, end) > MAX_LISTED:
        end = schedule.upcoming(start, 200)[-1] + span / 1000
    assume(schedule.count_between(start, end) < 20 * MAX_LISTED)
    assert schedule.count_between(start, end) == len(schedule.between(start, end))


@holds(schedules_with_instants(), spans, spans)
def test_counts_of_neighbouring_windows_add_up(
    drawn: tuple[Schedule, datetime], first: timedelta, second: timedelta
) -> None:
    schedule, start = drawn
    assume(not schedule.text.startswith(("in ", "now")))
    middle, end = start + first, start + first + second
    whole = schedule.count_between(start, end)
    assert schedule.count_between(start, middle) + schedule.count_between(middle, end) == whole


@holds(schedules_with_instants(recurring_texts), spans)
def test_a_window_keeps_the_fire_times_from_start_to_end_both_included(
    drawn: tuple[Schedule, datetime], span: timedelta
) -> None:
    schedule, start = drawn
    assume(not isinstance(schedule.spec, RRule) and "every" not in schedule.text)  # these count from the window
    first = schedule.next(start)
    assume(first is not None)
    assert first is not None
    last = schedule.upcoming(first - MICROSECOND, 5)[-1]
    assume(first < last)
    gap, overlap, zone = schedule.dst_gap, schedule.dst_overlap, schedule.timezone
    bounded = Schedule(schedule.text, zone, gap, overlap, start_at=first, end_at=last, key="a job")
    assert bounded.upcoming(start, 9) == schedule.between(first, last + MICROSECOND)
    assert bounded.count_between(start, last + span + MICROSECOND) == len(bounded.upcoming(start, 9))
    assert bounded.ticks(0).prev(to_us(last) + 1) == to_us(last)
    assert bounded.ticks(0).prev(to_us(first)) is None


# The clock on the wall: an oracle that goes by PEP 495, wall time by wall time

CORRECTION = timedelta(hours=3)
_ANY_TIME = datetime(2000, 1, 1, tzinfo=UTC)


def cron_walls(text: str, first: datetime, end: datetime) -> Iterator[datetime]:
    """The readings of the clock in [first, end) that an expression names."""
    sim = CronSim(text, _ANY_TIME)
    times = [time(*hms) for hms in product(sorted(sim.hours), sorted(sim.minutes), sorted(sim.seconds))]
    for days in range((end - first).days + 2):
        day = first.date() + timedelta(days=days)
        if day.month in sim.months and sim.match_day(day):
            listed = (datetime.combine(day, at) for at in times)
            yield from (wall for wall in listed if first <= wall < end)


def offsets(wall: datetime, zone: str) -> tuple[timedelta, timedelta]:
    """The offset by which a wall time is read with fold 0 and with fold 1."""
    read = [wall.replace(tzinfo=tzdb.load(zone), fold=fold).utcoffset() for fold in (0, 1)]
    assert read[0] is not None
    assert read[1] is not None
    return read[0], read[1]


def end_of_gap(wall: datetime, zone: str) -> datetime:
    """The first instant after the jump that swallowed `wall`."""
    before, after = offsets(wall, zone)
    low, high = (int((wall - offset).replace(tzinfo=UTC).timestamp()) for offset in (after, before))
    info = tzdb.load(zone)
    changed = bisect_left(range(low, high), True, key=lambda at: from_seconds(at).astimezone(info).utcoffset() == after)
    return from_seconds(low + changed)


def is_swallowed(wall: datetime, zone: str) -> bool:
    before, after = offsets(wall, zone)
    return before < after


def fire_times(wall: datetime, zone: str, gap: DstGap, overlap: DstOverlap) -> list[datetime]:
    """The instants that one wall time means."""
    early, late = offsets(wall, zone)
    first, second = ((wall - offset).replace(tzinfo=UTC) for offset in (early, late))
    if early == late:
        return [first]
    if early > late:
        return {DstOverlap.FIRST: [first], DstOverlap.SECOND: [second], DstOverlap.BOTH: [first, second]}[overlap]
    if late - early >= CORRECTION:
        return []
    return {DstGap.CATCH_UP: [end_of_gap(wall, zone)], DstGap.SHIFT: [first], DstGap.SKIP: []}[gap]


def expected(named: Iterable[datetime], schedule: Schedule, start: datetime, end: datetime) -> list[datetime]:
    gap, overlap = schedule.dst_gap, schedule.dst_overlap
    if isinstance(schedule.spec, Cron | RRule) and schedule.spec.elapsed:
        gap, overlap = DstGap.SKIP, DstOverlap.BOTH
    meant = {at for wall in named for at in fire_times(wall, schedule.timezone, gap, overlap)}
    return sorted(at for at in meant if start <= at < end)


MARGIN = timedelta(days=2)


@holds(cron_texts(hashed=False), zone_names, gaps, overlaps, st.data(), examples=100, at_length=25_000)
def test_a_cron_expression_fires_where_pep_495_and_its_policies_say(
    text: str, zone: str, gap: DstGap, overlap: DstOverlap, data: st.DataObject
) -> None:
    schedule = build(text, zone, gap, overlap)
    start = data.draw(instants(zone)) - timedelta(days=1)
    end = start + timedelta(days=2)
    around = start.replace(tzinfo=None) - MARGIN, end.replace(tzinfo=None) + MARGIN
    named = list(cron_walls(text, *around))
    assume(len(named) < 2 * MAX_LISTED)
    assert schedule.between(start, end) == expected(named, schedule, start, end)
    assert schedule.count_between(start, end) == len(expected(named, schedule, start, end))


@holds(rules(), walls, zone_names, gaps, overlaps, st.data(), examples=80, at_length=20_000)
def test_a_zone_changes_nothing_about_a_recurrence_but_what_its_clocks_do(  # noqa: PLR0917 - one for each draw
    rule: dict[str, str], first: datetime, zone: str, gap: DstGap, overlap: DstOverlap, data: st.DataObject
) -> None:
    text = f"DTSTART:{compact(first)}\n{write_rule(rule)}"
    schedule, in_utc = build(text, zone, gap, overlap), build(text, "UTC")
    start = data.draw(instants(zone)) - timedelta(days=1)
    assume(in_utc.count_between(start - MARGIN, start + timedelta(days=2) + MARGIN) < 2 * MAX_LISTED)
    end = start + timedelta(days=2)
    named = [at.replace(tzinfo=None) for at in in_utc.between(start - MARGIN, end + MARGIN)]
    assert schedule.between(start, end) == expected(named, schedule, start, end)


@holds(cron_texts(hashed=False), zone_names, gaps, overlaps, st.data())
def test_every_fire_time_is_a_reading_of_the_clock_or_a_labelled_catch_up(
    text: str, zone: str, gap: DstGap, overlap: DstOverlap, data: st.DataObject
) -> None:
    schedule = build(text, zone, gap, overlap)
    ticks = schedule.ticks(0)
    assert isinstance(ticks, ZonedTicks)
    sim = CronSim(text, _ANY_TIME)
    for at in schedule.upcoming(data.draw(instants(zone)) - timedelta(hours=12), 40):
        stands_for = ticks.made_up_for(to_us(at) // 1_000_000)
        wall = at.astimezone(tzdb.load(zone)).replace(tzinfo=None) if stands_for is None else from_wall(stands_for)
        assert wall.second in sim.seconds
        assert wall.minute in sim.minutes
        assert wall.hour in sim.hours
        assert wall.month in sim.months
        assert sim.match_day(wall.date())
        assert is_swallowed(wall, zone) == (stands_for is not None)


@holds(cron_texts(hashed=False), zone_names, gaps, overlaps, st.data())
def test_the_ticks_reported_lost_are_those_that_a_jump_swallowed_for_good(
    text: str, zone: str, gap: DstGap, overlap: DstOverlap, data: st.DataObject
) -> None:
    schedule = build(text, zone, gap, overlap)
    assume(isinstance(schedule.spec, Cron) and not schedule.spec.elapsed)
    start = data.draw(instants(zone)) - timedelta(days=1)
    end = start + timedelta(days=2)
    around = start.replace(tzinfo=None) - MARGIN, end.replace(tzinfo=None) + MARGIN
    swallowed = [
        wall
        for wall in cron_walls(text, *around)
        if is_swallowed(wall, zone)
        and start <= end_of_gap(wall, zone) < end
        and not fire_times(wall, zone, gap, overlap)
    ]
    lost = schedule.ticks(0).lost(to_us(start), to_us(end))
    assert sum(item.ticks for item in lost) == len(swallowed)
    assert [from_wall(item.first_wall) for item in lost[:1]] == swallowed[:1]
    assert [from_wall(item.last_wall) for item in lost[-1:]] == swallowed[-1:]


@holds(cron_texts(), zone_names, gaps, overlaps, st.data())
def test_a_jump_loses_no_tick_of_a_job_that_follows_elapsed_time(
    text: str, zone: str, gap: DstGap, overlap: DstOverlap, data: st.DataObject
) -> None:
    minute, hour, *_ = text.split()[-5:]
    assume(minute.startswith("*") or hour.startswith("*"))
    schedule, default = build(text, zone, gap, overlap), build(text, zone)
    start = data.draw(instants(zone)) - timedelta(hours=12)
    assert schedule.upcoming(start, 20) == default.upcoming(start, 20)
    assert schedule.ticks(0).lost(to_us(start), to_us(start + timedelta(days=400))) == []


# Identity and refusal


@holds(schedules_with_instants(), examples=40, at_length=8_000)
def test_equal_schedules_fire_alike_and_hash_alike(drawn: tuple[Schedule, datetime]) -> None:
    schedule, after = drawn
    gap, overlap, zone = schedule.dst_gap, schedule.dst_overlap, schedule.timezone
    again = Schedule(f"  {schedule.text} ", zone, gap, overlap, key="a job")
    assert again == schedule
    assert hash(again) == hash(schedule)
    assert again.upcoming(after, 3) == schedule.upcoming(after, 3)


@st.composite
def nearly_right_texts(draw: st.DrawFn) -> str:
    """A good text with a few characters gone, doubled or out of place."""
    text = draw(texts)
    for _ in range(draw(st.integers(1, 4))):
        place, length = draw(st.integers(0, len(text))), draw(st.integers(0, 4))
        noise = draw(st.sampled_from(["", "0", "9", "99", "-", ",", "/", "*", "#", "L", "Z", ";", ":", "=", "\n", " "]))
        text = text[:place] + noise + text[place + length :]
    return text


@holds(nearly_right_texts() | st.text(max_size=40), zone_names | st.text(max_size=12), examples=150, at_length=40_000)
def test_any_text_is_either_a_schedule_or_refused_with_a_reason(text: str, zone: str) -> None:
    with suppress(InvalidSchedule):
        Schedule(text, zone).next(datetime(2026, 1, 1, tzinfo=UTC))


@pytest.mark.campaign
@pytest.mark.parametrize("name", AT_LENGTH.properties)
def test_at_length(name: str) -> None:
    AT_LENGTH.properties[name]()
