"""Reads the HTTP header `Retry-After` (RFC 9110, 10.2.3): seconds, or a date."""

import re
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

_SECONDS = re.compile(r"\d+", re.ASCII)
_SECONDS_MAX_DIGITS = 12  # still fits a timedelta; more digits mean "very long"
_DATE_MAX_LENGTH = 40


def parse_retry_after(value: str, now: datetime) -> timedelta | None:
    """How long to wait from `now`, zero for a past date; None for a value that says nothing usable."""
    text = value.strip(" \t")
    if _SECONDS.fullmatch(text):
        digits = text.lstrip("0") or "0"
        return timedelta(seconds=int(digits)) if len(digits) <= _SECONDS_MAX_DIGITS else timedelta.max
    if len(text) > _DATE_MAX_LENGTH or not text.isascii():
        return None
    try:
        until = parsedate_to_datetime(text)
        return max((until if until.tzinfo else until.replace(tzinfo=UTC)) - now, timedelta(0))
    except (ValueError, OverflowError, TypeError, IndexError):
        return None
