"""Reads ISO 8601 instants: with an offset they are one, without it they are wall times in the job's zone."""

from datetime import datetime

from evertick.domain.errors import InvalidSchedule
from evertick.domain.policies import DstGap, DstOverlap
from evertick.domain.schedule.instants import FIRST_YEAR, LAST_YEAR, to_us, to_wall
from evertick.domain.schedule.pattern import ListPattern
from evertick.domain.schedule.ticks import FIRST_US
from evertick.domain.schedule.zone import Zone
from evertick.domain.schedule.zoned import ZonedTicks


def read_instant(text: str) -> datetime | None:
    """The date and time that the text says, None if it says none. A date alone says no time."""
    body = text.strip().upper()
    try:
        return datetime.fromisoformat(body) if "T" in body or " " in body else None
    except ValueError:
        return None


def instant_us(at: datetime, zone: Zone, gap: DstGap, overlap: DstOverlap) -> int:
    """The instant in microseconds. Once means once: of a time that comes twice, `both` is the first."""
    if not FIRST_YEAR <= at.year <= LAST_YEAR:
        raise InvalidSchedule("schedule", f"{at.isoformat()} is outside of the years {FIRST_YEAR} to {LAST_YEAR}")
    if at.tzinfo is not None:
        return to_us(at)
    overlap = DstOverlap.SECOND if overlap is DstOverlap.SECOND else DstOverlap.FIRST
    found = ZonedTicks(ListPattern([to_wall(at)]), zone, gap, overlap).next(FIRST_US)
    if found is None:
        reason = f"never fires: {at.isoformat()} does not exist in {zone.name}, the clocks jump over it"
        raise InvalidSchedule("schedule", reason)
    return found + at.microsecond
