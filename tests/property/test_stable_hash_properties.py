from collections import Counter

from hypothesis import given, strategies as st

from evertick.domain.stable_hash import stable_int

PARTS = st.lists(st.text() | st.integers(), max_size=4)


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
