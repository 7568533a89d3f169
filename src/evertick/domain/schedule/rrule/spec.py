"""What a recurrence says, with all that DTSTART implies made explicit."""

from dataclasses import dataclass, replace
from typing import NamedTuple

from evertick.domain.schedule.instants import DAY_S, from_wall
from evertick.domain.schedule.rrule.text import Freq, Parts

ALL_WEEKDAYS = tuple((0, day) for day in range(7))


@dataclass(frozen=True, slots=True)
class RRule:
    """A recurrence with all that DTSTART implies made explicit, so that DTSTART matters only where it must.

    `base` is the wall from which periods are numbered; `first` bounds the rule from below.
    """

    freq: Freq
    interval: int
    wkst: int
    bymonth: tuple[int, ...]
    byweekno: tuple[int, ...]
    byyearday: tuple[int, ...]
    bymonthday: tuple[int, ...]
    byday: tuple[tuple[int, int], ...]
    byhour: tuple[int, ...]
    byminute: tuple[int, ...]
    bysecond: tuple[int, ...]
    bysetpos: tuple[int, ...]
    base: int
    first: int | None
    count: int | None
    until_wall: int | None
    until_us: int | None
    rdates: tuple[int, ...]
    exdates: tuple[int, ...]
    rdates_us: tuple[int, ...]
    exdates_us: tuple[int, ...]

    @property
    def is_unanchored(self) -> bool:
        """Whether its COUNT starts with a creation that is not known yet."""
        return self.count is not None and self.first is None

    def anchored(self, wall: int) -> "RRule":
        """The same rule of a job that is created at `wall`."""
        return replace(self, base=wall // DAY_S * DAY_S, first=wall)

    @property
    def elapsed(self) -> bool:
        """Whether it steps by the hour or finer, and so follows elapsed time as `*` does in cron."""
        return self.freq > Freq.DAILY


class Anchor(NamedTuple):
    """For a rule without DTSTART: the wall from which periods are numbered, and the first that COUNT counts."""

    base: int
    first: int | None


def resolve(parts: Parts, anchor: Anchor) -> RRule:
    """Make explicit what DTSTART implies. Without DTSTART the anchor stands for it, and times that a BYHOUR or
    BYMINUTE leaves open are zero: BYHOUR=14 means 14:00.
    """
    numbers = parts.numbers
    if parts.dtstart is not None:
        anchor = Anchor(parts.dtstart, parts.dtstart)
    base = anchor.base
    start = from_wall(base)
    if parts.dtstart is None:
        if "BYHOUR" in numbers:
            start = start.replace(minute=0, second=0)
        if "BYMINUTE" in numbers:
            start = start.replace(second=0)
    bymonth, bymonthday, byday = numbers.get("BYMONTH", ()), numbers.get("BYMONTHDAY", ()), parts.byday
    if not (byday or {"BYWEEKNO", "BYYEARDAY", "BYMONTHDAY"} & numbers.keys()):
        match parts.freq:
            case Freq.YEARLY:
                bymonth, bymonthday = bymonth or (start.month,), (start.day,)
            case Freq.MONTHLY:
                bymonthday = (start.day,)
            case Freq.WEEKLY:
                byday = ((0, start.weekday()),)
            case _:
                byday = ALL_WEEKDAYS
    byhour = numbers.get("BYHOUR", (start.hour,) if parts.freq < Freq.HOURLY else ())
    byminute = numbers.get("BYMINUTE", (start.minute,) if parts.freq < Freq.MINUTELY else ())
    bysecond = numbers.get("BYSECOND", (start.second,) if parts.freq < Freq.SECONDLY else ())
    phased = parts.interval > 1 or parts.count is not None or parts.dtstart is not None
    return RRule(
        freq=parts.freq,
        interval=parts.interval,
        # Where no week is numbered, the day on which weeks start must not split rules.
        wkst=parts.wkst if "BYWEEKNO" in numbers or (parts.freq is Freq.WEEKLY and phased) else 0,
        bymonth=bymonth,
        byweekno=numbers.get("BYWEEKNO", ()),
        byyearday=numbers.get("BYYEARDAY", ()),
        bymonthday=bymonthday,
        byday=byday,
        byhour=byhour,
        byminute=byminute,
        bysecond=bysecond,
        bysetpos=numbers.get("BYSETPOS", ()),
        base=base if phased else 0,
        first=anchor.first if parts.dtstart is not None or parts.count is not None else None,
        count=parts.count,
        until_wall=parts.until_wall,
        until_us=parts.until_us,
        rdates=tuple(sorted(set(parts.rdates))),
        exdates=tuple(sorted(set(parts.exdates))),
        rdates_us=tuple(sorted(set(parts.rdates_us))),
        exdates_us=tuple(sorted(set(parts.exdates_us))),
    )
