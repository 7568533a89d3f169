"""The fuse: it never blows for what planning does, whatever the schedule, the policy and the outage."""

from datetime import UTC, datetime, timedelta

from hypothesis import assume, given, strategies as st

from evertick import Schedule
from evertick.domain.fuse import FrequentJobs, find_breach
from evertick.domain.policies import DstGap, DstOverlap, MissedWindow
from evertick.domain.rule import Policies, Rule, rule_of
from evertick.domain.schedule.instants import SECOND_US, to_us
from planning import planned_until_caught_up

TEXTS = [
    "* * * * *",
    "*/7 * * * *",
    "0,1,30 * * * *",
    "every 90s",
    "15 2 * * *",
    "0,30 0-4 * * *",
    "H H(0-5) * * *",
    "R200/2026-03-07T00:00:00Z/PT10M",
    "DTSTART:20260306T000000\nRRULE:FREQ=MINUTELY;INTERVAL=13;COUNT=300",
]
ZONES = ["UTC", "America/New_York", "Australia/Lord_Howe"]
FROM = to_us(datetime(2026, 3, 7, tzinfo=UTC))
SPAN = 3 * 86_400 * SECOND_US

rules = st.builds(
    rule_of,
    st.builds(
        Schedule,
        st.sampled_from(TEXTS),
        st.sampled_from(ZONES),
        st.sampled_from(DstGap),
        st.sampled_from(DstOverlap),
        end_at=st.none() | st.just(datetime(2026, 3, 9, 3, tzinfo=UTC)),
    ),
    st.builds(
        Policies,
        missed_window=st.sampled_from(MissedWindow),
        max_missed=st.integers(1, 50),
        misfire_grace=st.none() | st.integers(0, 7200).map(lambda seconds: timedelta(seconds=seconds)),
    ),
)
outages = st.lists(st.integers(0, SPAN // 6), min_size=1, max_size=8)


def fired_by(rule: Rule, start: int, delays: list[int]) -> list[int]:
    """The fire times of the runs that plans lead to, if the scheduler comes so long after each due time."""
    fired: list[int] = []
    next_us = rule.ticks().next(FROM + start)
    for delay in delays:
        if next_us is None:
            break
        plans = planned_until_caught_up(rule, next_us, next_us + delay)
        fired += [each.fire.fire_us for each in plans if each.fire is not None]
        next_us = plans[-1].next_us
    return fired


@given(rules, st.integers(0, SPAN), outages, st.integers(1, 100))
def test_it_never_blows_for_what_planning_does(rule: Rule, start: int, delays: list[int], newest: int) -> None:
    fired = fired_by(rule, start, delays)
    assert find_breach(rule.ticks(), dict.fromkeys(fired, 1)) is None
    # Nor if only the newest runs are looked at.
    assert find_breach(rule.ticks(), dict.fromkeys(fired[-newest:], 1)) is None


@given(rules, st.integers(0, SPAN), outages, st.data())
def test_it_blows_if_a_tick_has_two_runs(rule: Rule, start: int, delays: list[int], data: st.DataObject) -> None:
    fired = dict.fromkeys(fired_by(rule, start, delays), 1)
    assume(fired)
    again = data.draw(st.sampled_from(sorted(fired)))
    breach = find_breach(rule.ticks(), {**fired, again: 2})
    assert breach is not None
    assert (breach.runs, breach.repeated) == (len(fired) + 1, 1)


@given(rules, st.integers(0, SPAN), st.integers(3, 60), st.lists(st.integers(0, SPAN), unique=True, max_size=30))
def test_it_blows_exactly_if_more_than_one_run_stands_beside_all_ticks(
    rule: Rule, start: int, ticks: int, others: list[int]
) -> None:
    """Against a walk through every tick."""
    walked = [at] if (at := rule.ticks().next(FROM + start)) is not None else []
    while walked and len(walked) < ticks and (at := rule.ticks().next(walked[-1])) is not None:
        walked.append(at)
    assume(walked)
    inside = {walked[0] + other % (walked[-1] - walked[0] + 1) for other in others}
    foreign = inside - set(walked)
    breach = find_breach(rule.ticks(), dict.fromkeys([*walked, *foreign], 1))
    assert (breach is not None) == (len(foreign) > 1)
    if breach is not None:
        assert breach.runs == len(walked) + len(foreign)
        assert (breach.ticks, breach.first_us, breach.last_us) == (len(walked), walked[0], walked[-1])


def test_a_one_off_may_run_once() -> None:
    rule = rule_of(Schedule("2026-03-07T12:00:00Z"), Policies())
    assert find_breach(rule.ticks(), {FROM: 1}) is None
    assert find_breach(rule.ticks(), {FROM: 2}) is not None
    assert find_breach(rule.ticks(), {FROM: 1, FROM + 1: 1}) is not None


def test_the_evidence_names_the_runs_and_the_ticks() -> None:
    rule = rule_of(Schedule("* * * * *"), Policies())
    fired = {FROM + second * SECOND_US: 1 for second in range(0, 121, 10)}
    assert str(find_breach(rule.ticks(), fired)) == (
        "runaway: it fired 13 runs from 2026-03-07T00:00:00Z to 2026-03-07T00:02:00Z, where the number of ticks is 3"
    )
    assert str(find_breach(rule.ticks(), {FROM: 4})) == (
        "runaway: it fired 4 runs, 3 of them for a tick that had its run, from 2026-03-07T00:00:00Z"
        " to 2026-03-07T00:00:00Z, where the number of ticks is 1"
    )


@given(st.lists(st.integers(1, 10_000), max_size=2000), st.integers(0, 9))
def test_a_job_that_fires_most_often_is_found_in_little_memory(others: list[int], phase: int) -> None:
    counted = FrequentJobs(max_counted=100)
    for place, other in enumerate(others):
        counted.add([other, 0] if place % 10 == phase else [other])
        assert len(counted) <= 100
    if len(others) >= 100 and others.count(max(others, key=others.count)) < len(others) // 20:
        assert 0 in counted.take(10)[0]


def test_what_was_taken_is_counted_anew() -> None:
    counted = FrequentJobs()
    counted.add([1, 1, 2, 3, 3, 3])
    assert counted.take(1) == ([3], [1, 2])
    counted.add([1, 1, 1, 2, 2])
    assert counted.take(1, later={1}) == ([2], [1])
    counted.add([1, 1, 1, 2, 2])
    assert counted.take(2, later={1}) == ([2, 1], [])
    assert counted.take(10) == ([], [])
    counted.add([4, 5, 5])
    assert counted.take(10) == ([5], [4])
