"""The forecast against a walk through every tick, as the schedule itself lists them."""

from collections.abc import Iterable
from datetime import datetime, timedelta

import pytest
from hypothesis import assume, strategies as st

from evertick import InvalidSchedule, Schedule
from evertick.domain.errors import ScheduleTooCostly
from evertick.domain.forecast.counting import Counter
from evertick.domain.forecast.horizon import Horizon, Pending, RuleLoad, horizon_of
from evertick.domain.forecast.peaks import firings_in, hottest
from evertick.domain.rule import OneOff, Policies, Rule, rule_of
from evertick.domain.schedule.instants import SECOND_US, from_us, to_us
from strategies import AtLength, schedules_with_instants

AT_LENGTH = AtLength()
holds = AT_LENGTH.holds

MINUTE = timedelta(minutes=1)
SPANS = st.sampled_from(
    [(timedelta(hours=24), MINUTE), (timedelta(days=9), timedelta(hours=1)), (timedelta(hours=3), 5 * MINUTE)]
)
WINDOWS = st.none() | st.tuples(st.integers(-40, 40), st.integers(1, 60))
AHEAD = st.just(timedelta()) | st.timedeltas(min_value=timedelta(), max_value=timedelta(hours=30))
HORIZONS = st.tuples(SPANS, st.integers(0, 119), AHEAD)
"""Its length and that of its buckets; how many seconds now is before an instant; how long after now it begins."""
JITTERS = st.lists(st.tuples(st.integers(0, 7200), st.integers(1, 9)), min_size=1, max_size=5, unique_by=lambda p: p[0])


def within(schedule: Schedule, hours: tuple[int, int] | None, now: datetime) -> Schedule:
    """The schedule with a window around now."""
    if hours is None:
        return schedule
    start_at = now + timedelta(hours=hours[0])
    try:
        return Schedule(
            schedule.text,
            schedule.timezone,
            schedule.dst_gap,
            schedule.dst_overlap,
            start_at,
            start_at + timedelta(hours=hours[1]),
            anchor_at=now,
        )
    except InvalidSchedule:
        assume(False)
        raise


def rule_from(schedule: Schedule, now: datetime) -> Rule:
    """The rule of a job that was created now."""
    try:
        anchored = Schedule(
            schedule.text,
            schedule.timezone,
            schedule.dst_gap,
            schedule.dst_overlap,
            schedule.start_at,
            schedule.end_at,
            anchor_at=now,
        )
        return rule_of(anchored, Policies())
    except (InvalidSchedule, ScheduleTooCostly):
        assume(False)
        raise


def load_of(rule: Rule, now_us: int, jobs: Iterable[tuple[int, int]]) -> RuleLoad:
    """Jobs whose timers stand at the first tick that is due after now, as the scheduler leaves them."""
    pending = []
    for offset_s, count in sorted(jobs):
        fire_us = rule.ticks().next(now_us - offset_s * SECOND_US - 1)
        if fire_us is not None:
            pending.append(Pending(fire_us, offset_s, count))
    return RuleLoad(rule, tuple(pending))


def walked(load: RuleLoad, horizon: Horizon) -> list[int]:
    counts = [0] * horizon.buckets
    assume(load.rule.ticks().count(min(horizon.from_us, horizon.now_us), horizon.to_us) * len(load.pending) < 3_000)
    for fire_us, offset_s, jobs in load.pending:
        at_us: int | None = fire_us
        while at_us is not None and at_us + offset_s * SECOND_US < horizon.to_us:
            if (due_us := at_us + offset_s * SECOND_US) >= horizon.from_us:
                counts[(due_us - horizon.from_us) // horizon.bucket_us] += jobs
            at_us = load.rule.ticks().next(at_us)
    return counts


@holds(schedules_with_instants(), HORIZONS, WINDOWS, JITTERS, examples=80)
def test_the_forecast_of_a_rule_is_what_a_walk_through_its_ticks_counts(
    drawn: tuple[Schedule, datetime],
    when: tuple[tuple[timedelta, timedelta], int, timedelta],
    hours: tuple[int, int] | None,
    jobs: list[tuple[int, int]],
) -> None:
    (schedule, at), (span, seconds_before, ahead) = drawn, when
    now = at - timedelta(seconds=seconds_before) - span[0] / 3
    try:
        rule = rule_from(within(schedule, hours, now), now)
        now_us = to_us(now)
        from_at = now + ahead
        bucket_us = int(span[1].total_seconds()) * SECOND_US
        horizon = horizon_of(to_us(from_at), to_us(from_at + span[0]), bucket_us, now_us)
        load = load_of(rule, now_us, jobs)
        expected = walked(load, horizon)
        counter = Counter(horizon, max_work=10**9)
        counter.add(load)
        counts = counter.counts
    except ScheduleTooCostly:
        assume(False)
        raise
    assert counts == expected
    assert not counter.is_estimate
    for place in hottest(counts, 3):
        assert firings_in(load, horizon, place) == counts[place]


@holds(schedules_with_instants(), st.integers(1, 40))
def test_without_jitter_it_is_what_the_schedule_lists_between_two_instants(
    drawn: tuple[Schedule, datetime], hours: int
) -> None:
    schedule, at = drawn
    now = at - timedelta(hours=12)
    try:
        rule = rule_from(schedule, now)
        assume(not isinstance(rule.spec, OneOff))  # its only tick is in its timer
        anchored = Schedule(schedule.text, schedule.timezone, schedule.dst_gap, schedule.dst_overlap, anchor_at=now)
        until = from_us(to_us(now) // (60 * SECOND_US) * 60 * SECOND_US) + timedelta(hours=hours)
        horizon = horizon_of(to_us(now), to_us(until), 60 * SECOND_US, to_us(now))
        end = from_us(horizon.to_us)
        assume(anchored.count_between(now, end) < 5_000)
        listed = anchored.between(now, end)
    except (InvalidSchedule, ScheduleTooCostly):
        assume(False)
        raise
    counter = Counter(horizon)
    counter.add(load_of(rule, to_us(now), [(0, 1)]))
    expected = [0] * horizon.buckets
    for fire_us in map(to_us, listed):
        if fire_us >= horizon.from_us:  # which is in 1970 at the earliest
            expected[(fire_us - horizon.from_us) // horizon.bucket_us] += 1
    assert counter.counts == expected


@pytest.mark.campaign
@pytest.mark.parametrize("name", AT_LENGTH.properties)
def test_at_length(name: str) -> None:
    AT_LENGTH.properties[name]()
