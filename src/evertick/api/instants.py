"""Instants in what is asked: those that no calendar of Python or Postgres can hold are refused here."""

import functools
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any, get_args

import msgspec
from msgspec import Meta, Struct

from evertick.domain.errors import Fault
from evertick.domain.schedule.instants import FIRST_YEAR, LAST_YEAR

YEARS = Meta(extra={"years": True})
"""Marks instants that are checked. Those that a worker reports are not: its clock may say anything."""
Instant = Annotated[datetime, Meta(tz=True, description="RFC 3339, with its zone."), YEARS]
Reported = Annotated[datetime, Meta(tz=True, description="RFC 3339, with its zone.")]


def beyond_the_calendar(found: object) -> list[Fault]:
    """The faults of all marked instants in a shape that lie outside of the years that schedules know."""
    if not isinstance(found, Struct):
        return []
    faults = []
    for path in _paths(type(found)):
        value: Any = found
        for attribute, _ in path:
            value = getattr(value, attribute) if value is not None else None
        if value is not None and not FIRST_YEAR < value.year < LAST_YEAR:
            pointer = "".join(f"/{name}" for _, name in path)
            faults.append(Fault(pointer, f"lies outside of the years {FIRST_YEAR} to {LAST_YEAR}"))
    return faults


@functools.cache
def _paths(kind: type[Struct]) -> tuple[tuple[tuple[str, str], ...], ...]:
    """Where a shape has marked instants, by the names that Python and that callers know."""
    return tuple(_search(kind))


def _search(kind: type[Struct]) -> Iterator[tuple[tuple[str, str], ...]]:
    for field in msgspec.structs.fields(kind):
        here = (field.name, field.encode_name)
        for choice in (field.type, *get_args(field.type)):
            if YEARS in getattr(choice, "__metadata__", ()):
                yield (here,)
            elif isinstance(choice, type) and issubclass(choice, Struct):
                yield from ((here, *rest) for rest in _search(choice))
