from datetime import UTC, datetime, timedelta

import pytest

from evertick.domain.errors import InvalidInput
from evertick.domain.stable_hash import due_at, jitter_offset, stable_int


def test_the_numbers_never_change_between_releases() -> None:
    # A change here would move the jitter and the `H` of every existing job.
    assert [stable_int(1_000_000, "jitter", 1), stable_int(60, "minute", 42), stable_int(2**64, "é")] == [
        763287,
        28,
        2385377812354329959,
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [(("a", "bc"), ("ab", "c")), ((1,), ("1",)), ((1, 2), (12,)), (("a",), ("a", "")), (("s1:a",), ("a",))],
)
def test_parts_are_told_apart_by_where_they_end_and_by_kind(
    one: tuple[str | int, ...], other: tuple[str | int, ...]
) -> None:
    assert stable_int(2**64, *one) != stable_int(2**64, *other)


def test_a_bound_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        stable_int(0, "x")


def test_a_lone_surrogate_hashes_like_any_text() -> None:
    assert 0 <= stable_int(10, "\ud800") < 10


def test_a_job_keeps_its_offset_between_releases() -> None:
    assert jitter_offset(1, timedelta(seconds=1)) == timedelta(microseconds=763_287)


def test_without_a_window_a_job_is_due_at_its_fire_time() -> None:
    assert jitter_offset(7, timedelta(0)) == timedelta(0)


def test_the_due_time_is_the_fire_time_moved_by_the_offset() -> None:
    fire_at = datetime(2026, 6, 9, 13, 0, tzinfo=UTC)
    assert due_at(fire_at, timedelta(seconds=9)) == datetime(2026, 6, 9, 13, 0, 9, tzinfo=UTC)


def test_a_negative_window_is_refused() -> None:
    with pytest.raises(InvalidInput, match="jitter_seconds"):
        jitter_offset(7, timedelta(seconds=-1))
