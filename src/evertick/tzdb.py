"""The one time zone database: the `tzdata` package, never the machine's own, so that all nodes agree."""

import functools
from importlib import resources
from zoneinfo import ZoneInfo

import tzdata

VERSION: str = tzdata.IANA_VERSION


@functools.cache
def names() -> frozenset[str]:
    """Every zone name and alias that the database knows."""
    return frozenset((resources.files("tzdata") / "zones").read_text(encoding="ascii").split())


@functools.cache
def load(name: str) -> ZoneInfo:
    """Return the zone called `name`; KeyError when there is none."""
    if name not in names():
        raise KeyError(name)
    with resources.files("tzdata.zoneinfo").joinpath(*name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)
