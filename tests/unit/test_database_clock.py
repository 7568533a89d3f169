"""The estimate of the database's clock: what a slow answer does to it, and what proves that the clock was set."""

import logging
from datetime import UTC, datetime, timedelta

import pytest

from evertick.domain.schedule.instants import from_us, to_us
from evertick.runtime.clock import DatabaseClock, monotonic_us

START_AT = datetime(2026, 6, 9, 12, tzinfo=UTC)
SECOND_US = 1_000_000
HOUR = timedelta(hours=1)


class Link:
    """A database whose clock can be set, and a monotonic clock; each answer takes the time that it is given."""

    def __init__(self) -> None:
        self.monotonic_us = 77 * SECOND_US
        self.offset_us = to_us(START_AT) - self.monotonic_us
        self.clock = DatabaseClock(lambda: self.monotonic_us)
        self.told: list[timedelta] = []
        self.clock.listeners.append(self.told.append)

    def set_by(self, span: timedelta) -> None:
        self.offset_us += span // timedelta(microseconds=1)

    def look(self, *, there: float = 0.001, back: float = 0.001, is_timed: bool = True) -> None:
        asked_us = self.monotonic_us
        self.monotonic_us += round(there * SECOND_US)
        now_at = from_us(self.monotonic_us + self.offset_us)
        self.monotonic_us += round(back * SECOND_US)
        self.clock.observe(now_at, asked_us if is_timed else None)

    @property
    def error(self) -> float:
        return (self.clock.now_us() - self.monotonic_us - self.offset_us) / SECOND_US


@pytest.fixture
def link() -> Link:
    return Link()


@pytest.mark.parametrize("step", [HOUR, -HOUR, timedelta(days=100), timedelta(days=-100), timedelta(seconds=2)])
def test_a_step_is_told_once_with_its_size(link: Link, step: timedelta, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(20):
        link.look()
    link.set_by(step)
    with caplog.at_level(logging.WARNING, "evertick"):
        for _ in range(5):
            link.look()
    assert [round(told.total_seconds()) for told in link.told] == [round(step.total_seconds())]
    assert link.clock.steps == 1
    assert len(caplog.records) == 1
    assert abs(link.error) < 0.01


def test_slow_answers_are_no_steps(link: Link) -> None:
    for delay in (0.001, 30.0, 0.001, 2.0, 5.0, 0.001):
        link.look(there=delay)
        link.look(back=delay)
        link.look(there=delay, back=delay)
        assert -0.01 < link.error <= 0
    assert link.told == []


def test_a_first_answer_that_took_long_is_no_step_when_the_next_are_quick(link: Link) -> None:
    link.look(back=30.0)
    link.look()
    assert link.told == []
    assert abs(link.error) < 0.01


def test_a_process_that_was_stopped_between_question_and_answer_sees_no_step(link: Link) -> None:
    link.look()
    link.look(back=600.0)
    link.look()
    assert link.told == []


def test_a_late_answer_without_a_known_round_trip_does_not_change_the_estimate(link: Link) -> None:
    link.look()
    link.look(back=20.0, is_timed=False)
    assert abs(link.error) < 0.01
    assert link.told == []


def test_a_jump_ahead_is_seen_by_any_answer(link: Link) -> None:
    link.look()
    link.set_by(HOUR)
    link.look(is_timed=False)
    assert len(link.told) == 1


def test_a_clock_that_was_set_back_is_followed_even_if_no_round_trip_is_known(link: Link) -> None:
    link.look(is_timed=False)
    link.set_by(-HOUR)
    link.look(is_timed=False)
    assert abs(link.error) < 0.01


def test_a_step_within_the_round_trip_cannot_be_told_from_a_slow_answer(link: Link) -> None:
    link.look()
    link.set_by(-timedelta(seconds=3))
    link.look(there=2.0, back=2.0)
    assert link.told == []
    link.look()
    assert [round(told.total_seconds()) for told in link.told] == [-3]


@pytest.mark.parametrize("off", [-HOUR, timedelta(0), HOUR])
def test_the_skew_of_this_machine_is_what_a_round_trip_does_not_explain(off: timedelta) -> None:
    clock = DatabaseClock()
    asked_us = monotonic_us() - SECOND_US  # a slow line
    clock.observe(datetime.now(UTC) + off, asked_us)
    if off:
        assert HOUR / 2 < timedelta(microseconds=clock.skew_us) < HOUR
    else:
        assert clock.skew_us == 0
