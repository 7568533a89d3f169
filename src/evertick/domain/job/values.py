"""Readers of single values: numbers, choices, texts and instants."""

import re
from datetime import UTC, datetime
from enum import StrEnum
from math import isfinite

from evertick.domain.job.faults import Faults, Reader, kind_of
from evertick.domain.schedule.instants import FIRST_YEAR, LAST_YEAR

NAME_MAX_LENGTH = 255

UNSTORABLE = re.compile("[\0\ud800-\udfff]")
"""What PostgreSQL's text and jsonb cannot hold: NUL, and surrogates that are no half of a pair."""

WHY_UNSTORABLE = "contains a NUL character (\\u0000) or a lone surrogate, which PostgreSQL cannot store"

_CONTROL = re.compile("[\0-\x1f\x7f-\x9f]")
_INSTANT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d{1,9})?(Z|[+-]\d\d:\d\d)?", re.ASCII | re.IGNORECASE)


def one_of(kind: type[StrEnum]) -> Reader:
    members = {str(member): member for member in kind}
    words = ", ".join(members)

    def read(value: object, at: str, faults: Faults) -> StrEnum | None:
        member = members.get(value) if isinstance(value, str) else None
        if member is None:
            faults.add(at, f"must be one of {words}")
        return member

    return read


def whole_number(least: int, most: int) -> Reader:
    def read(value: object, at: str, faults: Faults) -> int | None:
        number = _number(value, at, faults)
        if isinstance(number, float):
            faults.add(at, "must be a whole number")
        elif number is not None and _is_within(number, least, most, at, faults):
            return number
        return None

    return read


def seconds(most: int) -> Reader:
    """A length of time, which may have a fraction."""

    def read(value: object, at: str, faults: Faults) -> float | None:
        number = _number(value, at, faults)
        return number if number is not None and _is_within(number, 0, most, at, faults) else None

    return read


def _number(value: object, at: str, faults: Faults) -> int | float | None:
    """The number; 120.0 is the whole number 120, as JSON does not tell them apart."""
    if type(value) is int:
        return value
    if type(value) is float:
        if isfinite(value):
            return int(value) if value.is_integer() else value
        faults.add(at, "must be finite")
        return None
    faults.add(at, f"must be a number, not {kind_of(value)}")
    return None


def _is_within(number: float, least: int, most: int, at: str, faults: Faults) -> bool:
    if least <= number <= most:
        return True
    faults.add(at, f"must be from {least} to {most}")
    return False


def text(most: int) -> Reader:
    """A text that can be stored; what it means is for others to judge."""

    def read(value: object, at: str, faults: Faults) -> str | None:
        if not isinstance(value, str):
            faults.add(at, f"must be a string, not {kind_of(value)}")
        elif len(value) > most:
            faults.add(at, f"has at most {most} characters, not {len(value)}")
        elif UNSTORABLE.search(value):
            faults.add(at, WHY_UNSTORABLE)
        else:
            return value
        return None

    return read


def read_name(value: object, at: str, faults: Faults) -> str | None:
    name: str | None = _any_text(value, at, faults)
    if name is None:
        return None
    if _CONTROL.search(name):
        faults.add(at, "must not contain line breaks or other control characters")
    elif not name.strip():
        faults.add(at, "must not be blank")
    elif name != name.strip():
        faults.add(at, "must not begin or end with white space")
    return name


_any_text = text(NAME_MAX_LENGTH)


def read_instant(value: object, at: str, faults: Faults) -> datetime | None:
    """An RFC 3339 instant, which has a zone; kept in UTC."""
    if not isinstance(value, str):
        faults.add(at, f"must be a string, not {kind_of(value)}")
        return None
    match = _INSTANT.fullmatch(value)
    if match is None:
        faults.add(at, "must be an instant as RFC 3339 writes it, such as 2026-06-09T13:00:00Z")
    elif match[1] is None:
        faults.add(at, "needs a time zone: Z, or an offset such as +02:00")
    else:
        return _instant(value.upper(), at, faults)
    return None


def _instant(text: str, at: str, faults: Faults) -> datetime | None:
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        faults.add(at, "names a date or time that does not exist")
        return None
    if not FIRST_YEAR < instant.year < LAST_YEAR:
        faults.add(at, f"lies outside of the years {FIRST_YEAR + 1} to {LAST_YEAR - 1}")
        return None
    return instant.astimezone(UTC)


def write_instant(at: datetime | None) -> str | None:
    return None if at is None else at.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"
