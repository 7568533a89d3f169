"""Late and missed ticks, to the letter of the semantics. Ticks are minutely unless a test says otherwise."""

from datetime import UTC, datetime, timedelta

import pytest

from evertick import Schedule
from evertick.domain.misfire import Fire, Plan, TickGap, apply_missed_window, plan, wait_us
from evertick.domain.policies import MissedWindow
from evertick.domain.rule import Policies, Rule, rule_of
from evertick.domain.schedule.instants import from_us, to_us
from evertick.domain.states import GapReason, RunReason
from planning import planned_until_caught_up

NINE = to_us(datetime(2026, 6, 1, 9, tzinfo=UTC))
SECOND, MINUTE, HOUR = 1_000_000, 60_000_000, 3_600_000_000


def minutely(policy: str, *, max_missed: int = 100, grace: timedelta | None = None, text: str = "* * * * *") -> Rule:
    choices = Policies(missed_window=MissedWindow(policy), max_missed=max_missed, misfire_grace=grace)
    return rule_of(Schedule(text), choices)


def test_a_tick_fires_on_time_and_the_timer_moves_to_the_next() -> None:
    assert plan(minutely("SKIP"), NINE, NINE + 10_000) == Plan(Fire(NINE, RunReason.TICK), (), NINE + MINUTE)


def test_a_timer_that_is_not_due_stays_where_it_is() -> None:
    assert plan(minutely("RUN_ALL"), NINE, NINE - 1) == Plan(None, (), NINE)


@pytest.mark.parametrize("policy", list(MissedWindow))
def test_a_tick_late_within_its_grace_runs_late_under_every_policy(policy: MissedWindow) -> None:
    assert plan(minutely(policy), NINE, NINE + 30 * SECOND) == Plan(Fire(NINE, RunReason.LATE), (), NINE + MINUTE)


def test_lateness_of_the_machine_is_on_time_even_without_any_grace() -> None:
    rule = minutely("SKIP", grace=timedelta(0))
    assert plan(rule, NINE, NINE + SECOND).fire == Fire(NINE, RunReason.TICK)
    assert plan(rule, NINE, NINE + SECOND + 1).fire is None


def test_skip_turns_a_three_hour_outage_into_one_gap_and_runs_what_is_within_grace() -> None:
    now = NINE + 3 * HOUR + 30 * SECOND
    assert plan(minutely("SKIP"), NINE, now) == Plan(
        Fire(NINE + 180 * MINUTE, RunReason.LATE),
        (TickGap(NINE, NINE + 179 * MINUTE, 180, GapReason.MISSED),),
        NINE + 181 * MINUTE,
    )


def test_run_once_runs_the_newest_missed_tick_and_the_others_are_one_gap() -> None:
    now = NINE + 3 * HOUR + 30 * SECOND
    caught_up = plan(minutely("RUN_ONCE"), NINE, now)
    assert caught_up == Plan(
        Fire(NINE + 179 * MINUTE, RunReason.CATCH_UP),
        (TickGap(NINE, NINE + 178 * MINUTE, 179, GapReason.MISSED),),
        NINE + 180 * MINUTE,
    )
    late = plan(minutely("RUN_ONCE"), NINE + 180 * MINUTE, now)
    assert late == Plan(Fire(NINE + 180 * MINUTE, RunReason.LATE), (), NINE + 181 * MINUTE)


def test_run_once_has_no_gap_when_one_tick_was_missed() -> None:
    rule = minutely("RUN_ONCE", text="0 * * * *", grace=timedelta(minutes=5))
    assert plan(rule, NINE, NINE + 20 * MINUTE) == Plan(Fire(NINE, RunReason.CATCH_UP), (), NINE + HOUR)


def test_run_all_runs_the_newest_ticks_oldest_first_and_the_older_ones_are_one_gap() -> None:
    plans = planned_until_caught_up(minutely("RUN_ALL", max_missed=3), NINE, NINE + 10 * MINUTE + 30 * SECOND)
    assert [(from_us(each.fire.fire_us).minute, each.fire.reason.value) for each in plans if each.fire] == [
        (7, "catch_up"),
        (8, "catch_up"),
        (9, "catch_up"),
        (10, "late"),
    ]
    assert [each.gaps for each in plans] == [(TickGap(NINE, NINE + 6 * MINUTE, 7, GapReason.MISSED),), (), (), ()]


def test_run_all_leaves_no_gap_when_all_fit() -> None:
    plans = planned_until_caught_up(minutely("RUN_ALL"), NINE, NINE + 10 * MINUTE + 30 * SECOND)
    assert [each.fire.fire_us for each in plans if each.fire] == [NINE + n * MINUTE for n in range(11)]
    assert not any(each.gaps for each in plans)


def test_a_plan_leaves_the_timer_at_the_first_tick_that_it_does_not_handle() -> None:
    assert plan(minutely("RUN_ALL"), NINE, NINE + 10 * MINUTE + 30 * SECOND).next_us == NINE + MINUTE


@pytest.mark.parametrize("policy", ["RUN_ONCE", "RUN_ALL"])
def test_a_one_off_that_is_late_beyond_grace_still_runs_once(policy: str) -> None:
    rule = minutely(policy, text="2026-06-01T09:00:00Z")
    assert plan(rule, NINE, NINE + 48 * HOUR) == Plan(Fire(NINE, RunReason.CATCH_UP), (), None)


def test_a_one_off_that_is_late_beyond_grace_is_a_gap_under_skip() -> None:
    rule = minutely("SKIP", text="2026-06-01T09:00:00Z")
    assert plan(rule, NINE, NINE + 48 * HOUR) == Plan(None, (TickGap(NINE, NINE, 1, GapReason.MISSED),), None)


def test_jitter_makes_nothing_late() -> None:
    rule = minutely("SKIP", grace=timedelta(0))
    jitter = 45 * SECOND
    assert plan(rule, NINE, NINE + jitter - 1, jitter_us=jitter).fire is None
    assert plan(rule, NINE, NINE + jitter, jitter_us=jitter).fire == Fire(NINE, RunReason.TICK)


def test_a_year_of_outage_of_a_job_by_the_second_is_counted_not_walked() -> None:
    rule = minutely("RUN_ONCE", text="* * * * * *", grace=timedelta(seconds=1))
    now = NINE + 365 * 24 * HOUR
    (gap,) = plan(rule, NINE, now).gaps
    assert gap.count == 365 * 86_400 - 2


def test_a_tick_swallowed_by_a_clock_change_is_a_gap_of_its_own() -> None:
    schedule = Schedule("30 2 * * *", "America/New_York", dst_gap="skip")
    before = to_us(datetime(2026, 3, 7, 7, 30, tzinfo=UTC))
    planned = plan(rule_of(schedule, Policies()), before, before)
    change = to_us(datetime(2026, 3, 8, 7, tzinfo=UTC))
    assert planned.gaps == (TickGap(change, change, 1, GapReason.DST),)
    assert planned.next_us == to_us(datetime(2026, 3, 9, 6, 30, tzinfo=UTC))


def test_a_last_tick_swallowed_by_a_clock_change_does_not_vanish() -> None:
    ends = datetime(2026, 3, 9, tzinfo=UTC)
    schedule = Schedule("30 2 * * *", "America/New_York", dst_gap="skip", end_at=ends)
    before = to_us(datetime(2026, 3, 7, 7, 30, tzinfo=UTC))
    planned = plan(rule_of(schedule, Policies()), before, before)
    assert planned.next_us is None
    assert [(gap.reason, gap.count) for gap in planned.gaps] == [(GapReason.DST, 1)]


def test_the_last_tick_of_a_count_swallowed_by_a_clock_change_does_not_vanish() -> None:
    text = "DTSTART:20260306T023000\nRRULE:FREQ=DAILY;COUNT=3"
    rule = rule_of(Schedule(text, "America/New_York", dst_gap="skip"), Policies())
    before = to_us(datetime(2026, 3, 7, 7, 30, tzinfo=UTC))
    planned = plan(rule, before, before)
    assert planned.next_us is None
    assert [(gap.reason, gap.count) for gap in planned.gaps] == [(GapReason.DST, 1)]


def test_a_timer_whose_tick_left_the_schedule_still_accounts_for_it() -> None:
    # The zone's rules changed after the timer was written: 09:00:30 is no tick any more.
    planned = plan(minutely("SKIP", grace=timedelta(0)), NINE + 30 * SECOND, NINE + 5 * MINUTE + 30 * SECOND)
    assert planned.gaps == (TickGap(NINE + 30 * SECOND, NINE + 5 * MINUTE, 6, GapReason.MISSED),)


def test_what_resume_asks_for_decides_over_the_ticks_of_a_pause() -> None:
    ticks = minutely("SKIP").ticks()
    end = NINE + 5 * MINUTE
    skipped = apply_missed_window(ticks, NINE, end, MissedWindow.SKIP, max_missed=100, reason=GapReason.PAUSED)
    assert skipped.gaps == (TickGap(NINE, NINE + 4 * MINUTE, 5, GapReason.PAUSED),)
    once = apply_missed_window(ticks, NINE, end, MissedWindow.RUN_ONCE, max_missed=100, reason=GapReason.PAUSED)
    assert once.fires == (Fire(NINE + 4 * MINUTE, RunReason.CATCH_UP),)


@pytest.mark.parametrize(("interval", "wait"), [(SECOND, SECOND // 4), (2 * SECOND, SECOND // 2), (HOUR, SECOND)])
def test_a_tick_that_finds_no_room_waits_for_less_than_its_interval(interval: int, wait: int) -> None:
    assert wait_us(NINE, NINE + interval) == wait


def test_a_last_tick_that_finds_no_room_waits_for_a_second() -> None:
    assert wait_us(NINE, None) == SECOND
