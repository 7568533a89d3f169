from datetime import UTC, datetime, timedelta

from hypothesis import given, strategies as st

from evertick.domain.retry import parse_retry_after

INSTANTS = st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC))  # noqa: DTZ001  (given its zone by the strategy)
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


@given(st.text(), INSTANTS)
def test_no_text_breaks_it_or_asks_for_the_past(value: str, now: datetime) -> None:
    wait = parse_retry_after(value, now)
    assert wait is None or wait >= timedelta(0)


@given(INSTANTS, INSTANTS)
def test_every_http_date_is_read_back(until: datetime, now: datetime) -> None:
    until = until.replace(microsecond=0)
    text = f"{DAYS[until.weekday()]}, {until:%d} {MONTHS[until.month - 1]} {until.year:04} {until:%H:%M:%S} GMT"
    assert parse_retry_after(text, now) == max(until - now, timedelta(0))


@given(st.integers(0, 10**12 - 1), INSTANTS)
def test_every_number_of_seconds_is_read_back(seconds: int, now: datetime) -> None:
    assert parse_retry_after(str(seconds), now) == timedelta(seconds=seconds)
