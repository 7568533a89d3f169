"""Rests between pieces of a flood: as long as others are delayed by it, and no longer."""

import pytest

from evertick.domain.resting import (
    ALLOWED,
    FORGOTTEN_SECONDS,
    LONGEST_SECONDS,
    MOST,
    PERIOD_SECONDS,
    RISE,
    TRIAL_SECONDS,
    Resting,
)

USUAL = 0.02
LATER = FORGOTTEN_SECONDS + 1


LONG_ENOUGH = int(2 * MOST / RISE)
"""Periods until rests are certainly as long as they may be."""


def accustomed() -> Resting:
    resting = Resting()
    for each in range(2000):
        resting.note_alone(USUAL, LATER + each)
    return resting


def beside(resting: Resting, delay: float, periods: int, start: float = 10_000.0) -> float:
    """Delays beside a flood, for so many periods; when that ended."""
    for period in range(periods):
        resting.note_beside(delay, start + period * PERIOD_SECONDS)
    return start + periods * PERIOD_SECONDS


def test_without_delays_there_is_no_rest() -> None:
    resting = accustomed()
    now = beside(resting, USUAL, 50)
    assert resting.after(0.01, now) == 0


def test_while_others_are_delayed_rests_grow_up_to_their_limit() -> None:
    resting = accustomed()
    rests = []
    for period in range(LONG_ENOUGH):
        now = beside(resting, 2 * ALLOWED * USUAL, 1, start=10_000.0 + period * PERIOD_SECONDS)
        rests.append(resting.after(0.01, now))
    assert rests == sorted(rests)
    assert rests[0] > 0
    assert rests[-1] == pytest.approx(MOST * 0.01)


def test_rests_end_when_nobody_is_delayed_any_more() -> None:
    resting = accustomed()
    now = beside(resting, 1.0, 10)
    assert resting.after(0.01, beside(resting, USUAL, 200, start=now)) == 0


def test_rests_end_when_there_is_nobody_else() -> None:
    resting = accustomed()
    now = beside(resting, 1.0, 10)
    assert resting.after(0.01, now) > 0
    assert resting.after(0.01, now + LATER) == 0


def test_work_that_waited_for_long_is_not_followed_by_a_long_rest() -> None:
    resting = accustomed()
    assert resting.after(5.0, beside(resting, 1.0, 10)) == LONGEST_SECONDS


def test_delays_beside_a_flood_and_just_after_it_do_not_become_usual() -> None:
    resting = accustomed()
    now = beside(resting, 1.0, 20)
    for _ in range(1000):
        resting.note_alone(1.0, now)
    beside(resting, 2 * ALLOWED * USUAL, LONG_ENOUGH, start=now + 1)
    assert resting.factor == MOST


def test_rests_that_do_not_help_end() -> None:
    resting = accustomed()
    periods = LONG_ENOUGH + int(2 * TRIAL_SECONDS / PERIOD_SECONDS)
    now = beside(resting, 1.0, periods)
    assert resting.after(0.01, now) == 0


def test_rests_that_help_go_on() -> None:
    resting = accustomed()
    now = beside(resting, 1.0, 5)
    for _ in range(3):
        now = beside(resting, 0.1, int(TRIAL_SECONDS / PERIOD_SECONDS), start=now)
        assert resting.factor == MOST
