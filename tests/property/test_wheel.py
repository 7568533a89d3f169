"""The wheel against a model that is a plain dict, under any sequence of calls."""

import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from evertick.domain.wheel import SLOTS, STEP, Wheel

KEYS = st.integers(0, 30) | st.integers(-(2**63), 2**63 - 1)
WAKES_PER_ENTRY = 10  # the levels that these distances reach with ticks of 1 µs, and the due time


@st.composite
def distances(draw: st.DrawFn) -> int:
    """Microseconds of every magnitude, often within a hair of the edge of a tick, a slot or a level."""
    edge_ticks = draw(st.sampled_from([0, 1, SLOTS, 1 << STEP]) | st.integers(0, 2 * SLOTS))
    depth = draw(st.integers(0, 4))
    near_by = draw(st.integers(-3, 3) | st.integers(-5_000, 5_000))
    return (edge_ticks << depth * STEP) * draw(st.sampled_from([1, 7, 1_000])) + near_by


class WheelMachine(RuleBasedStateMachine):
    @initialize(now_us=st.sampled_from([0, -1_234, 1_772_539_200_000_000]), tick_us=st.sampled_from([1, 7, 1_000]))
    def start(self, now_us: int, tick_us: int) -> None:
        self.wheel = Wheel(now_us, tick_us)
        self.now_us = now_us
        self.dues: dict[int, int] = {}

    @rule(key=KEYS, ahead_us=distances())
    def add(self, key: int, ahead_us: int) -> None:
        self.wheel.add(key, self.now_us + ahead_us)
        self.dues[key] = self.now_us + ahead_us

    @rule(entries=st.lists(st.tuples(KEYS, distances()), max_size=20))
    def add_many(self, entries: list[tuple[int, int]]) -> None:
        self.wheel.add_many([(key, self.now_us + ahead_us) for key, ahead_us in entries])
        self.dues |= {key: self.now_us + ahead_us for key, ahead_us in entries}

    @rule(key=KEYS)
    def cancel(self, key: int) -> None:
        assert self.wheel.cancel(key) == (self.dues.pop(key, None) is not None)

    @rule(data=st.data())
    def cancel_one_that_waits(self, data: st.DataObject) -> None:
        if self.dues:
            self.cancel(data.draw(st.sampled_from(sorted(self.dues))))

    @rule(step_us=distances())
    def advance(self, step_us: int) -> None:
        self.advance_to(self.now_us + step_us)

    @rule(step_us=distances())
    def step_back(self, step_us: int) -> None:
        self.advance_to(self.now_us - step_us)

    @rule(step_us=distances() | st.just(0), most=st.integers(1, 5))
    def advance_a_little_at_a_time(self, step_us: int, most: int) -> None:
        self.now_us += step_us
        due = self.wheel.advance(self.now_us, most)
        waiting = {key: due_us for key, due_us in self.dues.items() if due_us <= self.now_us}
        assert len(due) == min(most, len(waiting))
        assert all(waiting.pop(key) == due_us for due_us, key in due)
        for _, key in due:
            del self.dues[key]

    @rule(data=st.data(), near_by=st.integers(-1, 1))
    def advance_close_to_an_entry(self, data: st.DataObject, near_by: int) -> None:
        if self.dues:
            self.advance_to(data.draw(st.sampled_from(sorted(self.dues.values()))) + near_by)

    @rule()
    def drain_by_next_due(self) -> None:
        for _ in range(WAKES_PER_ENTRY * len(self.dues) + 1):
            if (wake_us := self.wheel.next_due()) is not None:
                self.advance_to(wake_us)
        assert not self.dues

    @invariant()
    def next_due_never_oversleeps(self) -> None:
        wake_us = self.wheel.next_due()
        if self.dues:
            assert wake_us is not None
            assert wake_us <= min(self.dues.values())
        else:
            assert wake_us is None

    @invariant()
    def holds_as_many_as_the_model(self) -> None:
        assert len(self.wheel) == len(self.dues)

    def advance_to(self, now_us: int) -> None:
        expected = sorted((due_us, key) for key, due_us in self.dues.items() if due_us <= now_us)
        assert self.wheel.advance(now_us) == expected
        for _, key in expected:
            del self.dues[key]
        self.now_us = now_us


TestWheelMachine = WheelMachine.TestCase
TestWheelMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.campaign
def test_the_wheel_at_length() -> None:
    run_state_machine_as_test(
        WheelMachine, settings=settings(max_examples=6_000, stateful_step_count=40, deadline=None)
    )


@given(ahead=st.lists(distances(), min_size=1, max_size=50), tick_us=st.sampled_from([1, 7, 1_000]))
def test_a_caller_that_sleeps_until_next_due_meets_each_entry_on_time(ahead: list[int], tick_us: int) -> None:
    wheel = Wheel(0, tick_us)
    wheel.add_many(enumerate(ahead))
    now_us = 0
    met = wheel.advance(now_us)
    for _ in range(WAKES_PER_ENTRY * len(ahead)):
        if (wake_us := wheel.next_due()) is None:
            break
        assert wake_us > now_us
        now_us = wake_us
        due = wheel.advance(now_us)
        assert all(due_us == now_us for due_us, _ in due)
        met += due
    assert met == sorted((due_us, key) for key, due_us in enumerate(ahead))
