from datetime import UTC, datetime, timedelta

import pytest

from evertick.domain.retry import parse_retry_after

NOW = datetime(2026, 6, 9, 13, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120),
        (" 0 \t", 0),
        ("00000000000000000007", 7),
        ("Tue, 09 Jun 2026 13:02:00 GMT", 120),
        ("Tuesday, 09-Jun-26 13:02:00 GMT", 120),
        ("Tue Jun  9 13:02:00 2026", 120),
        ("Tue, 09 Jun 2026 12:00:00 GMT", 0),  # already past
        ("Sunday, 06-Nov-94 08:49:37 GMT", 0),  # 1994, not 2094
    ],
)
def test_seconds_and_all_three_forms_of_date_are_read(value: str, seconds: int) -> None:
    assert parse_retry_after(value, NOW) == timedelta(seconds=seconds)


def test_more_seconds_than_a_duration_holds_mean_the_longest() -> None:
    assert parse_retry_after("9" * 5000, NOW) == timedelta.max


@pytest.mark.parametrize(
    "value",
    [
        "",
        "soon",
        "-5",
        "+5",
        "1.5",
        "1e3",
        "١٢",  # digits, but not ASCII's
        "12 13",
        "Tue, ٠٩ Jun 2026 13:02:00 GMT",
        "Tue, 31 Jun 2026 13:02:00 GMT",
        "Tue, 09 Jun 2026 24:02:00 GMT",
        "Tue, 09 Jun 2026 13:02:61 GMT",
        "2026-06-09T13:02:00Z",
        "120\r\nX-Evil: 1",
    ],
)
def test_a_value_that_says_nothing_usable_is_none(value: str) -> None:
    assert parse_retry_after(value, NOW) is None
