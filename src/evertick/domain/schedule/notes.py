"""What the clocks did to a fire time, in a few words for people."""

from datetime import timedelta

from evertick.domain.policies import DstGap, DstOverlap
from evertick.domain.schedule.english import clock, length
from evertick.domain.schedule.instants import DAY_S
from evertick.domain.schedule.schedule import Schedule
from evertick.domain.schedule.spec import fixed_times
from evertick.domain.schedule.ticks import LostTicks
from evertick.domain.schedule.zone import Stretch
from evertick.domain.schedule.zoned import CORRECTION_S, ZonedTicks


class ClockNotes:
    """Explains the fire times of one schedule. Instants are seconds."""

    def __init__(self, schedule: Schedule) -> None:
        self._zone = schedule.zone
        self._gap, self._overlap = schedule.dst_gap, schedule.dst_overlap
        self._zoned = _fixed_ticks(schedule)

    def of(self, at: int, previous: int | None) -> tuple[str, ...]:
        """Notes on the fire time at `at`, of which `previous` is the one listed before."""
        if self._zone.is_utc:
            return ()
        stretch = self._zone.stretch_at(at)
        here = [note for note in (self._stands_in(at, stretch), self._repeated(at, stretch)) if note]
        if not here and previous is not None:
            here += _change(stretch.offset - self._zone.stretch_at(previous).offset)
        return tuple(here)

    def _stands_in(self, at: int, stretch: Stretch) -> str:
        """Whether it runs for wall times that the jump before it swallowed."""
        jump = stretch.offset - stretch.before
        if self._zoned is None or self._gap is DstGap.SKIP or not 0 < jump < CORRECTION_S:
            return ""
        low, high = stretch.since + stretch.before, stretch.since + stretch.offset
        if self._gap is DstGap.SHIFT:
            low, high = at + stretch.before, min(high, at + stretch.before + 1)
        elif at != stretch.since:
            return ""
        if not self._zoned.pattern.count(low, high):
            return ""
        missing = _missing(self._zoned.pattern.next_from(low), self._zoned.pattern.prev_before(high))
        if self._zoned.made_up_for(at) is None:
            return f"{missing}: this stands for both"
        verb = "caught up at" if self._gap is DstGap.CATCH_UP else "shifted to"
        return f"{missing}: {verb} {_time(at + stretch.offset)}"

    def _repeated(self, at: int, stretch: Stretch) -> str:
        wall = at + stretch.offset
        if wall < stretch.since + stretch.before:
            which = "second"
        elif wall >= stretch.until + stretch.after:
            which = "first"
        else:
            return ""
        only = self._zoned is not None and self._overlap is not DstOverlap.BOTH
        return f"{_time(wall)} happens twice: " + (f"only the {which} runs" if only else f"{which} of two")


def lost_note(lost: LostTicks, gap: DstGap) -> str:
    """Why wall times did not run."""
    missing = _missing(lost.first_wall, lost.last_wall)
    why = "left out by dst_gap skip" if gap is DstGap.SKIP else "lost to a correction of the clocks"
    return f"{missing}: {why}"


def _fixed_ticks(schedule: Schedule) -> ZonedTicks | None:
    """The ticks before any window, if they are readings of the clock rather than elapsed time."""
    pattern = fixed_times(schedule.spec)
    return ZonedTicks(pattern, schedule.zone, schedule.dst_gap, schedule.dst_overlap) if pattern else None


def _change(seconds: int) -> list[str]:
    if not seconds:
        return []
    direction = "forward" if seconds > 0 else "back"
    return [f"after the clocks go {direction} {length(timedelta(seconds=abs(seconds)))}"]


def _missing(first: int | None, last: int | None) -> str:
    assert first is not None
    assert last is not None
    if first == last:
        return f"{_time(first)} does not exist on this day"
    return f"{_time(first)} to {_time(last)} do not exist on this day"


def _time(wall: int) -> str:
    return clock(wall % DAY_S)
