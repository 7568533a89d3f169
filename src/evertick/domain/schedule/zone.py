"""A time zone as stretches of constant offset, exact to the second.

`zoneinfo` answers "what is the offset at this instant" but does not tell when it changes, and everything that
daylight saving does to a schedule happens at a change. So a year is probed week by week and each change is found by
bisection, once per zone and year. No zone has two changes that cancel out within a probe step; a test compares
every zone's stretches with the transitions in its compiled file. Before the first change of any zone there is one
stretch, and after the last that a file lists the years with the same calendar are alike: neither is probed.
"""

import functools
import itertools
from bisect import bisect_right
from datetime import datetime
from typing import NamedTuple

from evertick import tzdb
from evertick.domain.errors import InvalidSchedule
from evertick.domain.schedule.instants import (
    DAY_S,
    END_S,
    FIRST_S,
    LIKE_YEARS,
    SETTLED_YEAR,
    first_day,
    from_day,
)

PROBE_S = 7 * DAY_S
UNCHANGED_UNTIL_S = first_day(1800) * DAY_S
"""The first change of any zone is in 1844."""


class Stretch(NamedTuple):
    """Instants [start, end) in seconds, during which the wall clock is `offset` seconds ahead of UTC.

    Years cut stretches without a change of the clocks, so the changes themselves are named apart.
    """

    start: int
    end: int
    offset: int
    since: int  # the change that began this offset, at or before `start`
    before: int  # the offset just before `since`
    until: int  # the change that ends this offset, at or after `end`
    after: int  # the offset from `until` on


class Zone:
    """A named zone, whose years are looked at when first asked for."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.info = tzdb.load(name)
        offset = self.offset(FIRST_S)
        self._antiquity = Stretch(FIRST_S, UNCHANGED_UNTIL_S, offset, FIRST_S, offset, UNCHANGED_UNTIL_S, offset)

    def offset(self, at: int) -> int:
        offset = datetime.fromtimestamp(at, self.info).utcoffset()
        assert offset is not None
        return offset.days * DAY_S + offset.seconds

    def stretch_at(self, at: int) -> Stretch:
        at = min(max(at, FIRST_S), END_S - 1)
        year = from_day(at // DAY_S).year
        if year < SETTLED_YEAR:
            if at < UNCHANGED_UNTIL_S:
                return self._antiquity
            starts, stretches = _table(self, year)
            return stretches[bisect_right(starts, at) - 1]
        like = LIKE_YEARS[year % 400]
        moved = (first_day(year) - first_day(like)) * DAY_S
        starts, stretches = _table(self, like)
        start, end, offset, since, before, until, after = stretches[bisect_right(starts, at - moved) - 1]
        return Stretch(start + moved, end + moved, offset, since + moved, before, until + moved, after)

    def wall_at(self, at: int) -> int:
        """What the clock on the wall shows, in wall seconds."""
        return at + self.stretch_at(at).offset

    @property
    def is_utc(self) -> bool:
        """Whether the zone is UTC under one of its names: nothing about daylight saving can matter in it."""
        return self.name in UTC_NAMES

    def year(self, year: int) -> list[Stretch]:
        """The stretches of one year, probed."""
        start, end = first_day(year) * DAY_S, first_day(year + 1) * DAY_S
        # A change in the last hours of a year still doubles or swallows wall times of the next one.
        changes = self._changes(start - 2 * DAY_S, end + 2 * DAY_S)
        cuts = [start, *(at for at in changes if start < at < end), end]
        return [self._stretch(low, high, changes) for low, high in itertools.pairwise(cuts)]

    def _stretch(self, low: int, high: int, changes: list[int]) -> Stretch:
        since = max((at for at in changes if at <= low), default=low)
        until = min((at for at in changes if at >= high), default=high)
        return Stretch(low, high, self.offset(low), since, self.offset(since - 1), until, self.offset(until))

    def _changes(self, start: int, end: int) -> list[int]:
        """The instants within (start, end) from which another offset holds."""
        changes = []
        before = self.offset(start)
        for low in range(start, end, PROBE_S):
            high = min(low + PROBE_S, end - 1)
            if (after := self.offset(high)) != before:
                changes.append(self._bisect(low, high, before))
                before = after
        return changes

    def _bisect(self, low: int, high: int, before: int) -> int:
        while high - low > 1:
            middle = (low + high) // 2
            if self.offset(middle) == before:
                low = middle
            else:
                high = middle
        return high


@functools.lru_cache(maxsize=4096)
def _table(zone: Zone, year: int) -> tuple[list[int], list[Stretch]]:
    """A year's stretches and their starts. Kept for all zones together, so that many zones do not fill the memory."""
    stretches = zone.year(year)
    return [stretch.start for stretch in stretches], stretches


_BARE_NAMES = ("UTC", "UCT", "Universal", "Zulu", "GMT", "GMT0", "GMT+0", "GMT-0", "Greenwich")
UTC_NAMES = frozenset(prefix + name for prefix in ("", "Etc/") for name in _BARE_NAMES)


@functools.cache
def zone(name: str) -> Zone:
    """Return the zone called `name`, the same object each time, so that its years are probed once."""
    try:
        return Zone(name)
    except KeyError:
        raise InvalidSchedule("timezone", unknown_zone(name)) from None


def unknown_zone(name: str) -> str:
    import difflib  # noqa: PLC0415 - only the way to an error needs it

    name = name[:60]  # an error must not repeat a megabyte
    # Comparing with all 600 names takes milliseconds, which a batch of wrong names would multiply.
    city = name.rpartition("/")[2][:1].upper()
    alike = [known for known in tzdb.names() if known.rpartition("/")[2][:1] == city]
    near = difflib.get_close_matches(name, alike, n=1, cutoff=0.7)
    hint = f", did you mean {near[0]!r}?" if near else ""
    return f"{name!r} is not a zone of the IANA database {tzdb.VERSION}{hint}"
