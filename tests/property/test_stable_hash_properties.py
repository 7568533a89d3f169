from collections import Counter
from datetime import timedelta

from hypothesis import given, strategies as st

from evertick.domain.stable_hash import jitter_offset, stable_int

PARTS = st.lists(st.text() | st.integers(), max_size=4)
WINDOWS = st.timedeltas(timedelta(microseconds=1), timedelta(days=1))


@given(st.integers(1, 2**70), PARTS)
def test_a_number_lies_within_its_bound_and_never_changes(bound: int, parts: list[str | int]) -> None:
    number = stable_int(bound, *parts)
    assert 0 <= number < bound
    assert stable_int(bound, *parts) == number


@given(PARTS, PARTS)
def test_different_parts_give_different_numbers(one: list[str | int], other: list[str | int]) -> None:
    assert (stable_int(2**128, *one) == stable_int(2**128, *other)) == (one == other)


@given(st.integers(2, 60), st.text(max_size=5))
def test_numbers_fill_their_range_evenly(bound: int, salt: str) -> None:
    counts = Counter(stable_int(bound, salt, key) for key in range(bound * 100))
    assert set(counts) == set(range(bound))
    assert max(counts.values()) < 200


@given(st.integers(0, 2**63 - 1), WINDOWS)
def test_an_offset_lies_within_its_window_and_never_changes(job_id: int, window: timedelta) -> None:
    offset = jitter_offset(job_id, window)
    assert timedelta(0) <= offset < window
    assert jitter_offset(job_id, window) == offset


@given(st.integers(0, 2**55), st.timedeltas(timedelta(seconds=1), timedelta(days=1)))
def test_neighbouring_jobs_spread_evenly_over_the_window(first_job: int, window: timedelta) -> None:
    tenths = Counter(jitter_offset(first_job + number, window) * 10 // window for number in range(1000))
    assert set(tenths) == set(range(10))
    assert max(tenths.values()) < 200
