"""From wall times to instants: what daylight saving does to a pattern, for cron and RRULE alike.

The set of ticks is defined stretch by stretch of constant offset, never by walking from an earlier tick, so it does
not depend on where the search begins:

1. A wall time that exists once is that instant.
2. One that exists twice is its first, second or both instants, by `overlap`.
3. One that the clocks jump over is, by `gap`: the first instant after the jump (`catch_up`); as far behind the jump's
   start as it was written (`shift`); or lost (`skip`). A jump of three hours or more corrects the zone's place in the
   world rather than saves daylight: its wall times are lost under every policy.

A schedule that loses all its ticks to fifty changes of the clocks in a row counts as ended there.

Ticks that fall on one instant are one tick. A pattern that follows `elapsed` time knows no lost and no repeated
hour: each reading of the clock counts whenever it comes, under every policy.
"""

from collections.abc import Iterator

from evertick.domain.policies import DstGap, DstOverlap
from evertick.domain.schedule.budget import bounded, spend
from evertick.domain.schedule.instants import END_S, FIRST_S, SECOND_US
from evertick.domain.schedule.patterns.wall import WallPattern
from evertick.domain.schedule.ticks import LostTicks
from evertick.domain.schedule.zone import Stretch, Zone

CORRECTION_S = 3 * 3600
MAX_OFFSET_S = 26 * 3600
"""More than any zone is or was away from UTC."""

MAX_LOST = 50
"""Changes of the clocks in a row that may lose the ticks of a schedule which is not over."""

_STRETCH_STEPS = 12
"""What it costs to look for a tick between two changes of the clocks."""
_WALLS_PER_STEP = 4
_PASSING_STRETCHES = "changes of the clocks"


class ZonedTicks:
    """The ticks of a wall pattern in a zone."""

    def __init__(
        self, pattern: WallPattern, zone: Zone, gap: DstGap, overlap: DstOverlap, *, elapsed: bool = False
    ) -> None:
        self.pattern = pattern
        self._zone = zone
        self._elapsed = elapsed
        self._gap = DstGap.SKIP if elapsed else gap
        self._overlap = DstOverlap.BOTH if elapsed else overlap

    @bounded
    def next(self, after: int) -> int | None:
        low = max(after // SECOND_US + 1, FIRST_S)
        lost = 0
        while low < END_S and lost <= MAX_LOST:
            stretch = self._zone.stretch_at(low)
            start = max(low + stretch.offset, self._regular_walls(stretch)[0])
            wall = self.pattern.next_from(start)
            found = self._first_in(stretch, low, wall)
            if found is not None:
                return found * SECOND_US
            spend(_STRETCH_STEPS, _PASSING_STRETCHES)
            further = stretch.end + min(stretch.before, stretch.offset, stretch.after)
            if further < start or (wall is not None and wall < further):  # else it is the next from there too
                wall = self.pattern.next_from(further)
            if wall is None:
                return None
            low = max(stretch.end, wall - MAX_OFFSET_S)
            lost += low == stretch.end
        return None

    @bounded
    def prev(self, before: int) -> int | None:
        high = min(-(-before // SECOND_US), END_S)
        lost = 0
        while high > FIRST_S and lost <= MAX_LOST:
            stretch = self._zone.stretch_at(high - 1)
            end = min(high + stretch.offset, self._regular_walls(stretch)[1])
            wall = self.pattern.prev_before(end)
            found = self._last_in(stretch, high, wall)
            if found is not None:
                return found * SECOND_US
            spend(_STRETCH_STEPS, _PASSING_STRETCHES)
            further = stretch.start + max(stretch.offset, stretch.before)
            if further > end or (wall is not None and wall >= further):
                wall = self.pattern.prev_before(further)
            if wall is None:
                return None
            high = min(stretch.start, wall + MAX_OFFSET_S)
            lost += high == stretch.start
        return None

    @bounded
    def count(self, low: int, high: int) -> int:
        first, end = max(-(-low // SECOND_US), FIRST_S), min(-(-high // SECOND_US), END_S)
        total = 0
        for stretch in self._stretches(first, end):
            start, stop = max(first, stretch.start), min(end, stretch.end)
            regular_low, regular_high = self._regular_walls(stretch)
            total += self.pattern.count(
                max(start + stretch.offset, regular_low), min(stop + stretch.offset, regular_high)
            )
            total += self._count_made_up(stretch, start, stop)
        return total

    @bounded
    def lost(self, low: int, high: int) -> list[LostTicks]:
        if self._elapsed:
            return []
        at, end = max(-(-low // SECOND_US), FIRST_S), min(-(-high // SECOND_US), END_S)
        lost: list[LostTicks] = []
        alone = 0  # of these, the last ones that have no tick between them
        while at < end and alone <= MAX_LOST:
            stretch = self._zone.stretch_at(at)
            # A year's cut repeats the change before it: only the stretch that the change begins reports it.
            if at <= stretch.since == stretch.start and not self._makes_up(stretch):
                for jump in self._swallowed(stretch):
                    alone = alone + 1 if not lost or self._has_none_between(lost[-1], jump) else 0
                    lost.append(jump)
            spend(_STRETCH_STEPS, _PASSING_STRETCHES)
            wall = self.pattern.next_from(stretch.end + min(stretch.before, stretch.offset, stretch.after))
            if wall is None:
                break
            at = max(stretch.end, wall - MAX_OFFSET_S)
        return lost

    def _has_none_between(self, one: LostTicks, other: LostTicks) -> bool:
        return self.pattern.next_from(one.last_wall + 1) == other.first_wall

    def _swallowed(self, stretch: Stretch) -> Iterator[LostTicks]:
        low, high = stretch.since + stretch.before, stretch.since + stretch.offset
        head, tail = self.pattern.next_from(low), self.pattern.prev_before(high)
        if head is not None and tail is not None and head <= tail:
            yield LostTicks(stretch.since, self.pattern.count(low, high), head, tail)

    def made_up_for(self, at: int) -> int | None:
        """The wall time for which the tick at `at` (seconds) stands in, if it is not a reading of the clock."""
        stretch = self._zone.stretch_at(at)
        if not self._makes_up(stretch) or self._is_regular(stretch, at):
            return None
        if self._gap is DstGap.SHIFT:
            return at + stretch.before
        return self.pattern.next_from(stretch.since + stretch.before) if at == stretch.since else None

    def _stretches(self, low: int, high: int) -> Iterator[Stretch]:
        while low < high:
            stretch = self._zone.stretch_at(low)
            yield stretch
            spend(_STRETCH_STEPS // 2, _PASSING_STRETCHES)
            low = stretch.end

    def _regular_walls(self, stretch: Stretch) -> tuple[int, int]:
        """The walls [low, high) that are instants of this stretch, less those that mean their other instant."""
        low, high = stretch.start + stretch.offset, stretch.end + stretch.offset
        if self._overlap is DstOverlap.FIRST:
            low = max(low, stretch.since + stretch.before)
        if self._overlap is DstOverlap.SECOND:
            high = min(high, stretch.until + stretch.after)
        return low, high

    def _makes_up(self, stretch: Stretch) -> bool:
        """Whether the change that began the stretch is a jump whose wall times run after all."""
        return self._gap is not DstGap.SKIP and 0 < stretch.offset - stretch.before < CORRECTION_S

    def _is_regular(self, stretch: Stretch, at: int) -> bool:
        wall = at + stretch.offset
        low, high = self._regular_walls(stretch)
        return low <= wall < high and self.pattern.next_from(wall) == wall

    def _lost_walls(self, stretch: Stretch, low: int, high: int) -> tuple[int, int]:
        """The walls [first, end) lost in the jump that began the stretch and made up for at instants in [low, high)."""
        first, end = stretch.since + stretch.before, stretch.since + stretch.offset
        low, high = max(low, stretch.start), min(high, stretch.end)
        if not self._makes_up(stretch):
            return first, first
        if self._gap is DstGap.CATCH_UP:
            return (first, end) if low <= stretch.since < high else (first, first)
        return max(first, low + stretch.before), min(end, high + stretch.before)

    def _first_made_up(self, stretch: Stretch, low: int) -> int | None:
        """The first instant from `low` on that stands in for a lost wall."""
        first, end = self._lost_walls(stretch, low, stretch.end)
        wall = self.pattern.next_from(first) if first < end else None
        return self._stand_in(stretch, wall) if wall is not None and wall < end else None

    def _last_made_up(self, stretch: Stretch, high: int) -> int | None:
        """The last such instant before `high`."""
        first, end = self._lost_walls(stretch, stretch.start, high)
        wall = self.pattern.prev_before(end) if first < end else None
        return self._stand_in(stretch, wall) if wall is not None and wall >= first else None

    def _count_made_up(self, stretch: Stretch, low: int, high: int) -> int:
        """How many instants in [low, high) stand in for lost walls and are not ticks anyway."""
        if self._gap is DstGap.CATCH_UP:
            at = self._first_made_up(stretch, low)
            return at is not None and at < high and not self._is_regular(stretch, at)
        first, end = self._lost_walls(stretch, low, high)
        lost = self.pattern.walls(first, end) if first < end else ()
        if not lost:
            return 0
        spend(len(lost) // _WALLS_PER_STEP, _PASSING_STRETCHES)
        jump = stretch.offset - stretch.before
        regular_low, regular_high = self._regular_walls(stretch)
        there = self.pattern.walls(max(lost[0] + jump, regular_low), min(lost[-1] + jump + 1, regular_high))
        return len({wall + jump for wall in lost}.difference(there))

    def _stand_in(self, stretch: Stretch, wall: int) -> int:
        return stretch.since if self._gap is DstGap.CATCH_UP else wall - stretch.before

    def _first_in(self, stretch: Stretch, low: int, wall: int | None) -> int | None:
        """The first tick of the stretch from `low` on, where `wall` is the pattern's next."""
        regular_high = self._regular_walls(stretch)[1]
        regular = wall - stretch.offset if wall is not None and wall < regular_high else None
        if low >= _settled(stretch):
            return regular
        made_up = self._first_made_up(stretch, low)
        return min((at for at in (regular, made_up) if at is not None), default=None)

    def _last_in(self, stretch: Stretch, high: int, wall: int | None) -> int | None:
        """The last tick of the stretch before `high`, where `wall` is the pattern's last before that."""
        regular_low = self._regular_walls(stretch)[0]
        regular = wall - stretch.offset if wall is not None and wall >= regular_low else None
        if regular is not None and regular >= _settled(stretch):
            return regular
        made_up = self._last_made_up(stretch, high)
        return max((at for at in (regular, made_up) if at is not None), default=None)


def _settled(stretch: Stretch) -> int:
    """The instant from which the jump that began the stretch can have no made-up ticks left."""
    return stretch.since + stretch.offset - stretch.before
