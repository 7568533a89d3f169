"""Numbers and durations as people read them."""

from datetime import UTC, datetime, timedelta

import pytest

from evertick.dashboard import formatting

NOW = datetime(2026, 6, 9, 13, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.25, "0.25"),
        (9870, "9,870"),
        (12_345, "12.3k"),
        (4_100_000, "4.1M"),
        (1e9, "1B"),
        (None, formatting.NONE),
    ],
)
def test_numbers_are_short(value: float | None, text: str) -> None:
    assert formatting.number(value) == text


@pytest.mark.parametrize(("value", "text"), [(0.42, "0.4s"), (61, "1m 1s"), (3600, "1h"), (100_000, "1d 3h")])
def test_durations_have_their_two_largest_units(value: float, text: str) -> None:
    assert formatting.seconds(value) == text


def test_instants_are_relative_to_now() -> None:
    assert formatting.relative(NOW + timedelta(minutes=5), NOW) == "in 5m"
    assert formatting.relative(NOW - timedelta(seconds=90), NOW) == "1m 30s ago"
    assert formatting.relative(NOW, NOW) == "now"
