from datetime import UTC, datetime, timedelta

import pytest

from evertick.domain.deadline import check_timeout, deadline_at, remaining, stop_at
from evertick.domain.errors import InvalidInput

START = datetime(2026, 6, 9, 13, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def test_the_deadline_counts_from_the_start() -> None:
    assert deadline_at(START, 5 * MINUTE) == datetime(2026, 6, 9, 13, 5, tzinfo=UTC)


def test_a_worker_stops_at_its_deadline_or_where_its_lease_ends() -> None:
    assert stop_at(START + 5 * MINUTE, START + MINUTE) == START + MINUTE
    assert stop_at(START + MINUTE, START + 5 * MINUTE) == START + MINUTE


def test_the_time_left_never_falls_below_zero() -> None:
    assert remaining(START + MINUTE, START) == MINUTE
    assert remaining(START, START + MINUTE) == timedelta(0)


@pytest.mark.parametrize("seconds", [1, 86_400])
def test_a_timeout_from_a_second_to_a_day_is_taken(seconds: int) -> None:
    assert check_timeout(timedelta(seconds=seconds)) == timedelta(seconds=seconds)


@pytest.mark.parametrize("seconds", [-1, 0, 0.999, 86_400.001])
def test_any_other_timeout_is_refused(seconds: float) -> None:
    with pytest.raises(InvalidInput, match="timeout_seconds"):
        check_timeout(timedelta(seconds=seconds))
