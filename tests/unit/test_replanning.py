"""Where timers, gaps and finished jobs belong after the clock was set back: the decisions alone."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, strategies as st

from evertick.domain.policies import MissedWindow
from evertick.domain.rule import Policies, from_canonical, rule_of
from evertick.domain.schedule.instants import from_us, to_us
from evertick.domain.schedule.schedule import Schedule
from evertick.roles.janitor.replanning import Correction, moves_of, reopened, trims_of
from evertick.store.maintenance.replan import AheadGap, AheadTimer, FinishedAhead

NOW = datetime(2026, 6, 9, 12, tzinfo=UTC)
AHEAD = NOW + timedelta(days=100)
MINUTE = timedelta(minutes=1)
CORRECTED = Correction(NOW, NOW)


def rule(schedule: str, **policies: object) -> str:
    return rule_of(Schedule(schedule, anchor_at=NOW), Policies(**policies)).canonical()  # type: ignore[arg-type]


def spec(schedule: str) -> str:
    return json.dumps({"name": "job", "schedule": schedule, "target": {"type": "worker", "handler": "noop"}})


def moved(
    timer: AheadTimer, schedule: str = "* * * * *", spec_ahead: str | None = None, to: Correction = CORRECTED
) -> tuple[datetime, datetime] | None:
    specs = {} if spec_ahead is None else {timer.job_id: spec_ahead}
    moves = list(moves_of([timer], {1: rule(schedule)}, specs, to))
    return (moves[0].fire_at, moves[0].due_at) if moves else None


def tick(fire_at: datetime) -> AheadTimer:
    return AheadTimer(7, "tick", fire_at, 1, None, None)


def test_a_tick_beyond_the_next_one_returns_to_it() -> None:
    assert moved(tick(AHEAD)) == (NOW + MINUTE, NOW + MINUTE)
    assert moved(tick(NOW + 2 * MINUTE)) == (NOW + MINUTE, NOW + MINUTE)


def test_a_tick_at_the_next_one_or_before_stays() -> None:
    assert moved(tick(NOW + MINUTE)) is None
    assert moved(tick(NOW)) is None


def test_ticks_that_had_their_time_before_a_mere_step_back_are_not_returned_to() -> None:
    set_back = Correction(NOW, NOW + 10 * MINUTE)
    assert moved(tick(NOW + 11 * MINUTE), to=set_back) is None
    assert moved(tick(AHEAD), to=set_back) == (NOW + 11 * MINUTE, NOW + 11 * MINUTE)


@given(st.sampled_from(["* * * * *", "0 3 * * MON", "every 7m", "0 0 29 2 *"]), st.integers(0, 10**12))
def test_a_tick_never_moves_later_nor_before_now(schedule: str, after: int) -> None:
    fire_at = from_us(to_us(NOW) + after)
    at = moved(tick(fire_at), schedule)
    assert at is None or NOW < at[0] < fire_at


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [("in 90s", NOW + timedelta(seconds=90)), ("now", NOW), ("2026-08-01T00:00:00Z", None)],
)
def test_a_one_off_that_was_asked_for_ahead_counts_its_delay_from_now(schedule: str, expected: datetime | None) -> None:
    fire_at = datetime(2026, 8, 1, tzinfo=UTC) if expected is None else AHEAD
    at = moved(tick(fire_at), "2026-08-01T00:00:00Z", spec(schedule))
    assert at == (None if expected is None else (expected, expected))


def test_a_one_off_that_was_asked_for_before_stays() -> None:
    assert moved(tick(AHEAD), "2026-08-01T00:00:00Z") is None


@pytest.mark.parametrize("kind", ["manual", "replay", "retry", "queued"])
def test_a_run_that_began_to_wait_ahead_waits_as_long_from_now(kind: str) -> None:
    timer = AheadTimer(7, kind, AHEAD, 1, AHEAD + MINUTE, AHEAD)
    assert moved(timer) == (AHEAD, NOW + MINUTE)


@pytest.mark.parametrize("kind", ["manual", "retry"])
def test_a_run_that_waited_before_the_step_is_due_when_it_was(kind: str) -> None:
    assert moved(AheadTimer(7, kind, NOW, 1, NOW + timedelta(hours=3), NOW - MINUTE)) is None


def test_a_queued_run_is_due_at_once() -> None:
    assert moved(AheadTimer(7, "queued", AHEAD, 1, AHEAD, None)) == (AHEAD, NOW)


def test_a_timer_whose_rule_is_gone_stops_nobody_else() -> None:
    timers = [tick(AHEAD), AheadTimer(8, "tick", AHEAD, 2, None, None)]
    assert [move.timer.job_id for move in moves_of(timers, {2: rule("* * * * *")}, {}, CORRECTED)] == [8]


def test_of_a_gap_the_ticks_up_to_now_are_left() -> None:
    canonical = rule("* * * * *")
    begun = AheadGap(7, NOW - 3 * MINUTE, AHEAD, "missed", canonical)
    future = AheadGap(8, NOW + MINUTE, AHEAD, "missed", canonical)
    trims = list(trims_of([begun, future], NOW))
    assert [(trim.last_at, trim.ticks) for trim in trims] == [(NOW, 4), (None, 0)]


@given(st.integers(0, 10**11), st.integers(0, 10**13))
def test_what_is_left_of_a_gap_and_what_comes_are_all_of_its_ticks(before: int, after: int) -> None:
    canonical = rule("*/7 * * * *")
    ticks = from_canonical(canonical).ticks()
    first_us = ticks.next(to_us(NOW) - before)
    assert first_us is not None
    last_us = ticks.prev(to_us(NOW) + after + 1)
    if last_us is None or last_us < first_us or first_us > to_us(NOW):
        return
    gap = AheadGap(7, from_us(first_us), from_us(last_us), "missed", canonical)
    [trim] = trims_of([gap], NOW)
    to_come = ticks.count(to_us(NOW) + 1, last_us + 1)
    assert trim.ticks + to_come == ticks.count(first_us, last_us + 1)


def finished(schedule: str, *, has_run: bool) -> FinishedAhead:
    canonical = rule(schedule, missed_window=MissedWindow.SKIP)
    return FinishedAhead(7, AHEAD, NOW - MINUTE, canonical, spec(schedule), has_run)


@pytest.mark.parametrize(
    ("schedule", "has_run", "expected"),
    [
        ("RRULE:FREQ=DAILY;UNTIL=20260701T000000Z;BYHOUR=15", True, datetime(2026, 6, 9, 15, tzinfo=UTC)),
        ("RRULE:FREQ=DAILY;UNTIL=20260601T000000Z", True, None),
        ("2026-08-01T00:00:00Z", False, datetime(2026, 8, 1, tzinfo=UTC)),
        ("2026-08-01T00:00:00Z", True, None),
    ],
)
def test_a_job_that_has_ticks_to_come_goes_on(schedule: str, *, has_run: bool, expected: datetime | None) -> None:
    healings = list(reopened([finished(schedule, has_run=has_run)], CORRECTED))
    assert [healing.fire_at for healing in healings] == ([] if expected is None else [expected])
