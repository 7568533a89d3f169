import tracemalloc

import pytest

from bounded_work import calls_at_most
from evertick.domain.wheel import BATCH, SLOTS, STEP, Wheel

TICK_US = 1_000
NOON_US = 1_772_539_200_000_000  # 2026-03-03 12:00:00 UTC
HOUR_US = 3_600_000_000
YEAR_US = 365 * 24 * HOUR_US


def wheel_with(*dues_us: int, now_us: int = NOON_US) -> Wheel:
    """A wheel whose keys 0, 1, 2 … are due at these times."""
    wheel = Wheel(now_us, TICK_US)
    wheel.add_many(enumerate(dues_us))
    return wheel


def keys_due(wheel: Wheel, now_us: int) -> list[int]:
    return [key for _, key in wheel.advance(now_us)]


@pytest.mark.parametrize("ahead_us", [1, 1_500, 77_777, 5_000_001, HOUR_US + 3, 7 * YEAR_US + 11, 10**40 + 1])
def test_an_entry_leaves_at_its_microsecond_and_not_before(ahead_us: int) -> None:
    due_us = NOON_US + ahead_us
    wheel = wheel_with(due_us)
    assert wheel.advance(due_us - 1) == []
    assert wheel.advance(due_us) == [(due_us, 0)]
    assert wheel.advance(due_us) == []


@pytest.mark.parametrize("depth", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("offset", [-1, 0, 1])
@pytest.mark.parametrize("start_tick", [0, 1, SLOTS - 1, (1 << STEP) - 1, NOON_US // TICK_US])
def test_an_entry_on_the_edge_of_a_level_is_neither_early_nor_lost(depth: int, offset: int, start_tick: int) -> None:
    edge = SLOTS << depth * STEP
    due_us = (start_tick + edge + offset) * TICK_US
    wheel = wheel_with(due_us, now_us=start_tick * TICK_US)
    assert wheel.advance(due_us - 1) == []
    assert wheel.advance(due_us) == [(due_us, 0)]


def test_entries_leave_in_order_of_due_time_then_key() -> None:
    wheel = Wheel(NOON_US, TICK_US)
    entries = [(9, 2_000), (4, 2_000), (7, 1_999), (1, HOUR_US), (8, -5), (3, 600), (2, 400)]
    wheel.add_many((key, NOON_US + ahead_us) for key, ahead_us in entries)
    assert keys_due(wheel, NOON_US + HOUR_US) == [8, 2, 3, 7, 4, 9, 1]


def test_entries_of_the_current_tick_leave_in_order_too() -> None:
    wheel = wheel_with(NOON_US + 30, NOON_US + 10, NOON_US + 20, NOON_US + 40)
    assert keys_due(wheel, NOON_US + 30) == [1, 2, 0]
    assert keys_due(wheel, NOON_US + 40) == [3]


def test_an_overdue_entry_leaves_on_the_next_advance() -> None:
    wheel = wheel_with(NOON_US - YEAR_US, 0, -1)
    assert wheel.next_due() == -1
    assert keys_due(wheel, NOON_US) == [2, 1, 0]


def test_a_jump_over_years_brings_all_that_was_due_meanwhile() -> None:
    dues_us = [NOON_US + (1 << exponent) for exponent in range(56)]
    wheel = wheel_with(*dues_us)
    assert wheel.advance(NOON_US + (1 << 55)) == [(due_us, key) for key, due_us in enumerate(dues_us)]
    assert len(wheel) == 0


def test_adding_a_key_again_moves_it() -> None:
    wheel = wheel_with(NOON_US + 10_000)
    wheel.add(0, NOON_US + HOUR_US)
    wheel.add(0, NOON_US + 20_000)
    assert len(wheel) == 1
    assert wheel.advance(NOON_US + 19_999) == []
    assert wheel.advance(NOON_US + HOUR_US) == [(NOON_US + 20_000, 0)]


def test_of_a_key_that_comes_twice_in_one_batch_the_last_due_time_counts() -> None:
    wheel = Wheel(NOON_US, TICK_US)
    wheel.add_many([(1, NOON_US + 5_000), (1, NOON_US + 2_000), (1, NOON_US + 9_000)])
    assert wheel.advance(NOON_US + 8_999) == []
    assert wheel.advance(NOON_US + 9_000) == [(NOON_US + 9_000, 1)]


def test_a_key_cancelled_and_added_again_at_the_same_near_time_leaves_once() -> None:
    wheel = wheel_with(NOON_US + 500)
    wheel.cancel(0)
    wheel.add(0, NOON_US + 500)
    assert keys_due(wheel, NOON_US + 500) == [0]
    wheel.add(0, NOON_US + 600)
    assert keys_due(wheel, NOON_US + 700) == [0]


@pytest.mark.parametrize("ahead_us", [-1, 0, 999, 1_000, 400_000, HOUR_US, YEAR_US])
def test_a_cancelled_key_never_leaves(ahead_us: int) -> None:
    wheel = wheel_with(NOON_US + ahead_us)
    assert wheel.cancel(0)
    assert not wheel.cancel(0)
    assert len(wheel) == 0
    assert wheel.next_due() is None
    assert wheel.advance(NOON_US + 2 * YEAR_US) == []


def test_a_key_can_be_cancelled_wherever_it_has_cascaded_to() -> None:
    due_us = NOON_US + HOUR_US + 123_456
    for lead_us in (HOUR_US, 600_000_000, 524_288_000, 300_000_000, 1_024_000, 700_000, 2_000, 1_000, 10):
        wheel = wheel_with(due_us, due_us)
        wheel.advance(due_us - lead_us)
        assert wheel.cancel(0)
        assert keys_due(wheel, due_us) == [1]


def test_time_that_steps_back_neither_hurries_nor_loses_an_entry() -> None:
    wheel = wheel_with(NOON_US + 5_000, NOON_US + 50_000)
    assert keys_due(wheel, NOON_US + 10_000) == [0]
    wheel.add(2, NOON_US + 7_000)
    assert wheel.advance(NOON_US) == []
    assert wheel.next_due() == NOON_US + 7_000
    assert wheel.advance(NOON_US + 6_999) == []
    assert keys_due(wheel, NOON_US + 7_000) == [2]
    assert keys_due(wheel, NOON_US + 50_000) == [1]


def test_an_empty_wheel_has_nothing_to_wake_for() -> None:
    wheel = Wheel(NOON_US)
    assert wheel.next_due() is None
    assert wheel.advance(NOON_US + YEAR_US) == []


def test_next_due_is_exact_within_the_current_tick_and_skips_what_was_cancelled() -> None:
    wheel = wheel_with(NOON_US + 300, NOON_US + 700)
    assert wheel.next_due() == NOON_US + 300
    wheel.cancel(0)
    assert wheel.next_due() == NOON_US + 700


def test_next_due_is_the_start_of_a_later_tick() -> None:
    wheel = wheel_with(NOON_US + 3_700, NOON_US + 900_000)
    assert wheel.next_due() == NOON_US + 3_000
    wheel.cancel(0)
    assert wheel.next_due() == NOON_US + 900_000


def test_next_due_sees_a_wide_slot_that_begins_before_a_narrow_one() -> None:
    wheel = wheel_with(NOON_US + 1_100_000)  # too far for level 0
    wheel.advance(NOON_US + 400_000)
    wheel.add(1, NOON_US + 1_200_000)  # on level 0
    wake_us = wheel.next_due()
    assert wake_us is not None
    assert wake_us <= NOON_US + 1_100_000


def test_a_caller_wakes_once_per_level_for_an_entry_a_year_ahead() -> None:
    due_us = NOON_US + YEAR_US + 1
    wheel = wheel_with(due_us)
    wakes_us: list[int] = []
    while due_us not in wakes_us and len(wakes_us) <= 4:
        wakes_us.append(wheel.next_due() or 0)
        wheel.advance(wakes_us[-1])
    assert wakes_us == sorted(set(wakes_us))
    assert wakes_us[-1] == due_us
    assert len(wheel) == 0


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_full_wide_slot_is_emptied_ahead_of_time_in_batches(depth: int) -> None:
    width_us = TICK_US << depth * STEP
    start_us = NOON_US - NOON_US % width_us
    slot_us = start_us + 3 * width_us
    dues_us = [slot_us + number * width_us // (16 * BATCH) for number in range(1, 16 * BATCH + 1)]
    wheel = wheel_with(*dues_us, now_us=start_us)
    for tick in range(16):
        with calls_at_most(8 * BATCH):
            assert wheel.advance(start_us + 2 * width_us + tick * TICK_US) == []
    with calls_at_most(BATCH):
        assert wheel.advance(slot_us) == []
    assert len(wheel.advance(slot_us + width_us)) == 16 * BATCH


@pytest.mark.parametrize("others", [0, 3, 4 * BATCH])
@pytest.mark.parametrize("depth", [1, 2])
def test_what_is_due_at_one_instant_cascades_as_one_and_nobody_is_lost(depth: int, others: int) -> None:
    """With few or many in the narrower slot already."""
    width_us = TICK_US << depth * STEP
    slot_us = NOON_US - NOON_US % width_us + 600 * width_us
    due_us = slot_us + width_us // 2
    wheel = wheel_with(*[due_us] * (3 * BATCH))
    assert wheel.advance(slot_us - width_us // 4) == []  # from here on it is near enough for a narrower slot
    wheel.add_many((3 * BATCH + key, due_us) for key in range(others))
    with calls_at_most(BATCH):
        assert wheel.advance(slot_us) == []
    assert wheel.cancel(7)
    assert wheel.advance(due_us - 1) == []
    assert keys_due(wheel, due_us) == [key for key in range(3 * BATCH + others) if key != 7]
    assert (len(wheel), wheel.next_due()) == (0, None)


def test_the_wheel_knows_how_much_it_holds() -> None:
    wheel = wheel_with(NOON_US + 1, NOON_US + HOUR_US)
    assert len(wheel) == 2
    wheel.advance(NOON_US + HOUR_US)
    assert len(wheel) == 0


def test_a_tick_has_a_length() -> None:
    with pytest.raises(ValueError, match="tick_us must be at least 1, not 0"):
        Wheel(NOON_US, tick_us=0)


def traced_bytes() -> int:
    return tracemalloc.get_traced_memory()[0]


def test_a_hundred_thousand_entries_take_less_than_200_bytes_each() -> None:
    tracemalloc.start()
    try:
        before = traced_bytes()
        wheel = Wheel(NOON_US)
        for number in range(100_000):
            wheel.add((number << 8) + 1_000, NOON_US + number * 6_007)
        assert traced_bytes() - before < 200 * len(wheel)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("ahead_us", [-1, 30_000, HOUR_US, YEAR_US])
def test_adding_and_cancelling_without_end_leaves_nothing_behind(ahead_us: int) -> None:
    wheel = Wheel(NOON_US)
    wheel.add(0, NOON_US + ahead_us)
    tracemalloc.start()
    try:
        before = traced_bytes()
        for number in range(1, 50_001):
            wheel.add(number, NOON_US + ahead_us + number % 7)
            wheel.cancel(number)
        assert traced_bytes() - before < 400_000
    finally:
        tracemalloc.stop()


def test_what_was_cancelled_gives_its_memory_back() -> None:
    tracemalloc.start()
    try:
        before = traced_bytes()
        wheel = Wheel(NOON_US)
        wheel.add_many((key, NOON_US + HOUR_US) for key in range(50_000))
        slots = traced_bytes() - before
        for key in range(50_000):
            wheel.cancel(key)
        # What stays is the table of the one dict that knows all keys; its next growth shrinks it.
        assert traced_bytes() - before < slots / 3
    finally:
        tracemalloc.stop()
