from datetime import UTC, datetime, timedelta

import pytest

from evertick.domain.errors import InvalidInput
from evertick.domain.stable_hash import due_at, jitter_offset


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
