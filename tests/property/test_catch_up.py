"""The budget of a catch-up: whatever else fires, and whenever it is asked."""

from math import exp

import pytest
from hypothesis import given, strategies as st

from evertick.domain.catch_up import AVERAGE_SECONDS, BURST_SECONDS, CatchUpBudget
from evertick.domain.schedule.instants import SECOND_US

factors = st.floats(1.1, 10)
floors = st.floats(0.01, 1_000)
# Milliseconds since the last call, others that fire, and how much of what is allowed is used.
events = st.lists(st.tuples(st.integers(-50, 5_000), st.integers(0, 3_000), st.floats(0, 1)), max_size=60)
steady = st.lists(st.integers(1, 1_000), min_size=1, max_size=60)


def normal(history: list[tuple[float, int]], now: float, floor: float) -> float:
    """By its definition, from all that ever fired: seconds and counts."""
    return max(floor, sum(count * exp((at - now) / AVERAGE_SECONDS) for at, count in history) / AVERAGE_SECONDS)


@given(factors, floors, events)
def test_it_is_a_bucket_that_fills_at_a_factor_of_the_normal_rate(
    factor: float, floor: float, events: list[tuple[int, int, float]]
) -> None:
    budget = CatchUpBudget(factor, 0)
    history: list[tuple[float, int]] = []
    now_us, elapsed, tokens = 0, 0.0, 0.0
    for milliseconds, others, used in events:
        now_us += milliseconds * 1_000
        rate = factor * normal(history, elapsed, floor)  # since the last call
        seconds = max(0, milliseconds) / 1_000  # a clock that is set back gives nothing and takes nothing
        elapsed += seconds
        burst = max(1, rate * BURST_SECONDS)
        tokens = min(max(tokens, -burst) + rate * seconds, burst)
        allowed = budget.allowed(now_us, floor)
        assert allowed == pytest.approx(max(0, int(tokens)), abs=1, rel=1e-6)
        assert budget.rate(floor) == pytest.approx(factor * normal(history, elapsed, floor), rel=1e-6)
        caught_up = int(allowed * used)
        budget.spend(others, caught_up)
        tokens -= others + caught_up
        history.append((elapsed, others))


@given(factors, floors, steady, st.floats(0, 1))
def test_catch_up_and_the_rest_stay_within_the_rate_and_catch_up_uses_what_is_left(
    factor: float, floor: float, milliseconds: list[int], part: float
) -> None:
    """While others fire at most at the normal rate."""
    budget = CatchUpBudget(factor, 0)
    now_us, caught_up, fired, owed = 0, 0, 0, 0.0
    for each in milliseconds:
        now_us += each * 1_000
        owed += part * floor * each / 1_000
        others, owed = int(owed), owed - int(owed)
        allowed = budget.allowed(now_us, floor)
        budget.spend(others, allowed)
        caught_up += allowed
        fired += others + allowed
        most = factor * floor * (now_us / SECOND_US + 2 * BURST_SECONDS) + 3
        assert fired <= most
        assert caught_up <= most
    assert fired >= factor * floor * (now_us / SECOND_US - BURST_SECONDS) - 2


@given(factors, st.floats(0.001, 10))
def test_however_low_the_rate_is_all_of_it_fires(factor: float, floor: float) -> None:
    budget = CatchUpBudget(factor, 0)
    between_us = int(SECOND_US / (factor * floor)) // 10  # ten times as often as one may fire
    fired = 0
    for number in range(1, 1_001):
        fired += (allowed := budget.allowed(number * between_us, floor))
        budget.spend(0, allowed)
    assert 85 <= fired <= 101  # a part of a token that comes while the bucket is full is lost


@given(factors, floors, steady, st.integers(0, 5))
def test_retries_of_caught_up_runs_do_not_make_a_catch_up_faster(
    factor: float, floor: float, milliseconds: list[int], retries: int
) -> None:
    budget = CatchUpBudget(factor, 0)
    now_us = 0
    for each in milliseconds:
        now_us += each * 1_000
        allowed = budget.allowed(now_us, floor)
        budget.spend(0, allowed, retries * allowed)
        assert budget.rate(floor) == pytest.approx(factor * floor)
