"""Cron rules by the day: their times of day are added up over all rules with the same days, and put on each day once.

A day on which the clocks change, or near which, is not like the others. On such days each rule counts for itself, by
its ticks.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from evertick.domain.forecast.horizon import MINUTE_US, Horizon
from evertick.domain.forecast.spreading import AddMinute, Spread
from evertick.domain.rule import Rule
from evertick.domain.schedule.cron import Cron, cron_days, times_of_day
from evertick.domain.schedule.instants import DAY_S, SECOND_US, first_day, from_day
from evertick.domain.schedule.zone import Zone, zone

_MARGIN_S = 3 * DAY_S
"""Days around the horizon that are looked at: jitter of a day, and zones that are up to a day away from UTC."""


class Change(NamedTuple):
    """Days that a change of the clocks makes different, first to last, and the instants in seconds that they cover."""

    first_date: int
    last_date: int
    start_s: int
    end_s: int


class ZoneDays(NamedTuple):
    """A zone within a horizon: the minute since 1970 at which each regular day begins; and the other days."""

    midnights: Mapping[int, int]
    changes: tuple[Change, ...]


class _DayClass(NamedTuple):
    """Rules that fire on the same days."""

    timezone: str
    dom: str
    month: str
    dow: str
    both_days: bool

    def has(self, date: int) -> bool:
        year = from_day(date).year
        return date - first_day(year) in cron_days(self.dom, self.month, self.dow, self.both_days)(year)


class DayTotals:
    """Times of day of cron rules, added up."""

    def __init__(self, horizon: Horizon, add_minute: AddMinute) -> None:
        self._horizon = horizon
        self._add_minute = add_minute
        self._zones: dict[str, ZoneDays | None] = {}
        # The jobs in each minute from midnight on; a day's jitter may lead into the next.
        self._totals: defaultdict[_DayClass, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))

    def zone(self, name: str) -> ZoneDays | None:
        """The days of a zone; None where they do not begin with a minute of UTC, or changes are days apart."""
        if name not in self._zones:
            low_s = self._horizon.from_us // SECOND_US - _MARGIN_S
            self._zones[name] = zone_days(zone(name), low_s, self._horizon.to_us // SECOND_US + _MARGIN_S)
        return self._zones[name]

    def add(self, cron: Cron, rule: Rule, days: ZoneDays, offsets: Mapping[int, int]) -> None:
        """The jobs of a rule, by the offsets at which they are due after its ticks."""
        second, minute, hour, dom, month, dow = cron.fields
        total = self._totals[_DayClass(rule.timezone, dom, month, dow, cron.both_days)]
        spread = Spread(offsets)
        for at_s in times_of_day(second, minute, hour):
            at_minute, rest_s = divmod(at_s, 60)
            for ahead, jobs in spread.of(rest_s):
                total[at_minute + ahead] += jobs
        first_minute = self._horizon.first_minute
        first_us = first_minute * MINUTE_US - spread.furthest_s * SECOND_US
        for change in days.changes:
            between_us = max(change.start_s * SECOND_US, first_us), min(change.end_s * SECOND_US, self._horizon.to_us)
            spread.put(rule.ticks(), between_us, first_minute, self._add_minute)

    def put(self) -> None:
        """Put the totals on the days of the horizon."""
        for kind, total in self._totals.items():
            days = self.zone(kind.timezone)
            assert days is not None
            self._put(total, [midnight for date, midnight in days.midnights.items() if kind.has(date)])
        self._totals.clear()

    def _put(self, total: Mapping[int, int], midnights: list[int]) -> None:
        from_minute, end_minute = self._horizon.from_us // MINUTE_US, self._horizon.to_us // MINUTE_US
        bucket, first_minute = self._horizon.bucket_us // MINUTE_US, self._horizon.first_minute
        earliest, latest = min(total), max(total)
        # By how far a day begins after the beginning of a bucket, the total of each bucket from there on.
        by_phase: dict[int, dict[int, int]] = {}
        for midnight in midnights:
            if midnight + latest < first_minute or midnight + earliest >= end_minute:
                continue
            if first_minute <= midnight + earliest and midnight + latest < end_minute:
                begin, phase = divmod(midnight - from_minute, bucket)
                if phase not in by_phase:
                    by_phase[phase] = _by_bucket(total, phase, bucket)
                for place, jobs in by_phase[phase].items():
                    self._add_minute(from_minute + (begin + place) * bucket, jobs)
            else:
                for minute, jobs in total.items():
                    if midnight + minute >= first_minute:
                        self._add_minute(midnight + minute, jobs)


def _by_bucket(total: Mapping[int, int], phase: int, bucket: int) -> dict[int, int]:
    buckets: defaultdict[int, int] = defaultdict(int)
    for minute, jobs in total.items():
        buckets[(phase + minute) // bucket] += jobs
    return buckets


@lru_cache(maxsize=256)
def zone_days(place: Zone, low_s: int, high_s: int) -> ZoneDays | None:
    """The days of a zone that touch [low_s, high_s)."""
    changes: list[Change] = []
    for at_s, before, after in _changes(place, low_s, high_s):
        # Walls that are lost or repeated, and those that stand in for them, and a second beside them.
        first_wall = at_s + min(before, after) - 1
        last_wall = at_s + max(before, after) + abs(after - before) + 1
        first, last = first_wall // DAY_S, last_wall // DAY_S
        if changes and first <= changes[-1].last_date:
            return None
        changes.append(Change(first, last, first * DAY_S - before, (last + 1) * DAY_S - after))
    irregular = {date for change in changes for date in range(change.first_date, change.last_date + 1)}
    midnights: dict[int, int] = {}
    for date in range(low_s // DAY_S, high_s // DAY_S + 1):
        if date not in irregular:
            offset = place.stretch_at(date * DAY_S - place.stretch_at(date * DAY_S).offset).offset
            if offset % 60:
                return None
            midnights[date] = (date * DAY_S - offset) // 60
    return ZoneDays(midnights, tuple(changes))


def _changes(place: Zone, low_s: int, high_s: int) -> Iterator[tuple[int, int, int]]:
    """The changes of the clocks around the time, each with the offsets before and after."""
    at_s, end_s, known = low_s - DAY_S, high_s + DAY_S, low_s - DAY_S
    while at_s < end_s:
        stretch = place.stretch_at(at_s)
        if stretch.until > known and stretch.until < end_s and stretch.after != stretch.offset:
            known = stretch.until
            yield stretch.until, stretch.offset, stretch.after
        at_s = stretch.end
