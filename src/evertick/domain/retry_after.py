"""Reads the HTTP header `Retry-After` (RFC 9110, 10.2.3): seconds, or one of the three forms of HTTP-date."""

import re
from datetime import UTC, datetime, timedelta

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_MONTH = rf"(?P<month>{'|'.join(_MONTHS)})"
_TIME = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
# Not strptime: its names of days and months follow the process's locale.
_FORMS = tuple(
    re.compile(form, re.ASCII)
    for form in (
        rf"{_DAY}, (?P<day>\d\d) {_MONTH} (?P<year>\d{{4}}) {_TIME} GMT",  # the one form in use
        rf"[A-Z][a-z]+day, (?P<day>\d\d)-{_MONTH}-(?P<year>\d\d) {_TIME} GMT",  # RFC 850
        rf"{_DAY} {_MONTH} (?P<day>[ \d]\d) {_TIME} (?P<year>\d{{4}})",  # asctime
    )
)
_SECONDS = re.compile(r"\d+", re.ASCII)
_SECONDS_MAX_DIGITS = 12  # still fits a timedelta; whoever sends more means "very long"


def parse_retry_after(value: str, now: datetime) -> timedelta | None:
    """How long to wait from `now`, zero for a past date; None for a value that says nothing usable."""
    text = value.strip(" \t")
    if _SECONDS.fullmatch(text):
        digits = text.lstrip("0") or "0"
        return timedelta(seconds=int(digits)) if len(digits) <= _SECONDS_MAX_DIGITS else timedelta.max
    for form in _FORMS:
        if found := form.fullmatch(text):
            until = _instant(found.groupdict(), now)
            return None if until is None else max(until - now, timedelta(0))
    return None


def _instant(fields: dict[str, str], now: datetime) -> datetime | None:
    try:
        return datetime(
            _full_year(fields["year"], now),
            _MONTHS.index(fields["month"]) + 1,
            int(fields["day"]),
            int(fields["hour"]),
            int(fields["minute"]),
            int(fields["second"]) - (fields["second"] == "60"),  # a leap second, which datetime lacks
            tzinfo=UTC,
        )
    except ValueError:
        return None


def _full_year(digits: str, now: datetime) -> int:
    if len(digits) == 4:
        return int(digits)
    # RFC 9110: two digits that seem more than 50 years ahead mean the past century.
    year = now.year // 100 * 100 + int(digits)
    return year - 100 if year > now.year + 50 else year
