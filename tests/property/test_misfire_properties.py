"""Misfire planning against a model that walks through every tick."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import strategies as st

from evertick import Schedule
from evertick.domain.misfire import ON_TIME_US, TickGap, plan
from evertick.domain.policies import DstGap, MissedWindow
from evertick.domain.rule import Policies, Rule, rule_of
from evertick.domain.schedule.instants import to_us
from evertick.domain.states import GapReason, RunReason
from planning import planned_until_caught_up
from strategies import AtLength

AT_LENGTH = AtLength()
holds = AT_LENGTH.holds

TEXTS = [
    "* * * * *",
    "*/7 * * * *",
    "0,1,30 * * * *",
    "every 90s",
    "15 2 * * *",
    "0,30 0-4 * * *",
    "R200/2026-03-07T00:00:00Z/PT10M",
    "DTSTART:20260306T000000\nRRULE:FREQ=MINUTELY;INTERVAL=13;COUNT=300",
]
ZONES = ["UTC", "America/New_York", "Australia/Lord_Howe"]
FROM = to_us(datetime(2026, 3, 7, tzinfo=UTC))
SPAN = 3 * 86_400_000_000

schedules = st.builds(
    Schedule,
    st.sampled_from(TEXTS),
    st.sampled_from(ZONES),
    st.sampled_from(DstGap),
    end_at=st.none() | st.integers(1, 5).map(lambda days: datetime(2026, 3, 7, 3, tzinfo=UTC) + timedelta(days=days)),
)
policies = st.builds(
    Policies,
    missed_window=st.sampled_from(MissedWindow),
    max_missed=st.integers(1, 50),
    misfire_grace=st.none() | st.integers(0, 7200).map(lambda s: timedelta(seconds=s)),
)


def walked(rule: Rule, fire_us: int, now_us: int) -> dict[int, str]:
    """The fate of each tick from `fire_us` to `now_us`, one by one."""
    ticks = [fire_us]
    while (at := rule.ticks().next(ticks[-1])) is not None and at <= now_us:
        ticks.append(at)
    grace = max(rule.grace_us, ON_TIME_US)
    missed = [at for at in ticks if now_us - at > grace]
    keep = {MissedWindow.SKIP: 0, MissedWindow.RUN_ONCE: 1, MissedWindow.RUN_ALL: rule.max_missed}[rule.missed_window]
    fate = {at: "late" if now_us - at > ON_TIME_US else "tick" for at in ticks}
    fate |= dict.fromkeys(missed, "missed") | dict.fromkeys(missed[-keep:] if keep else [], "catch_up")
    return fate


@holds(schedules, policies, st.integers(0, SPAN), st.integers(0, SPAN), examples=150)
def test_every_due_tick_gets_exactly_the_fate_that_walking_gives_it(
    schedule: Schedule, chosen: Policies, start: int, outage: int
) -> None:
    rule = rule_of(schedule, chosen)
    fire_us = rule.ticks().next(FROM + start)
    if fire_us is None:
        return
    now_us = fire_us + outage
    plans = planned_until_caught_up(rule, fire_us, now_us)
    fate = walked(rule, fire_us, now_us)
    assert {each.fire.fire_us: each.fire.reason.value for each in plans if each.fire} == {
        at: kind for at, kind in fate.items() if kind != "missed"
    }
    missed = sorted(at for at, kind in fate.items() if kind == "missed")
    gaps = [gap for each in plans for gap in each.gaps if gap.reason is GapReason.MISSED]
    assert gaps == ([TickGap(missed[0], missed[-1], len(missed), GapReason.MISSED)] if missed else [])
    assert plans[-1].next_us == rule.ticks().next(now_us)


@holds(schedules, st.integers(0, SPAN))
def test_times_that_the_clocks_swallow_are_each_in_one_gap_of_the_plans_along_the_way(
    schedule: Schedule, start: int
) -> None:
    rule = rule_of(schedule, Policies())
    first_us = rule.ticks().next(FROM + start)
    swallowed, next_us = 0, first_us
    while next_us is not None and next_us < FROM + SPAN:
        planned = plan(rule, next_us, next_us)
        swallowed += sum(gap.count for gap in planned.gaps if gap.reason is GapReason.DST)
        next_us = planned.next_us
    if first_us is not None:
        end_us = FROM + 2 * SPAN if next_us is None else next_us
        assert swallowed == sum(lost.ticks for lost in rule.ticks().lost(first_us + 1, end_us + 1))


@holds(schedules, policies, st.integers(0, SPAN), st.integers(0, SPAN), examples=100)
def test_fires_are_in_order_and_catch_up_comes_before_what_is_within_grace(
    schedule: Schedule, chosen: Policies, start: int, outage: int
) -> None:
    rule = rule_of(schedule, chosen)
    fire_us = rule.ticks().next(FROM + start)
    if fire_us is None:
        return
    fires = [each.fire for each in planned_until_caught_up(rule, fire_us, fire_us + outage) if each.fire]
    assert all(a.fire_us < b.fire_us for a, b in pairwise(fires))
    order = [RunReason.CATCH_UP, RunReason.LATE, RunReason.TICK]
    assert [order.index(f.reason) for f in fires] == sorted(order.index(f.reason) for f in fires)


@pytest.mark.campaign
@pytest.mark.parametrize("name", AT_LENGTH.properties)
def test_at_length(name: str) -> None:
    AT_LENGTH.properties[name]()
