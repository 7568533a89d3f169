"""From wall times to instants: what daylight saving does to a pattern, for cron and RRULE alike.

The set of ticks is defined stretch by stretch of constant offset, never by walking from an earlier tick, so it does
not depend on where the search begins:

1. A wall time that exists once is that instant.
2. One that exists twice is its first, second or both instants, by `overlap`.
3. One that the clocks jump over is, by `gap`: the first instant after the jump (`catch_up`); as far behind the jump's
   start as it was written (`shift`); or lost (`skip`). A jump of three hours or more corrects the zone's place in the
   world rather than saves daylight: its wall times are lost under every policy.

Ticks that fall on one instant are one tick. A pattern that follows `elapsed` time knows no lost and no repeated
hour: each reading of the clock counts whenever it comes, under every policy.
"""

from collections.abc import Iterator

from evertick.domain.policies import DstGap, DstOverlap
from evertick.domain.schedule.instants import END_S, FIRST_S, SECOND_US
from evertick.domain.schedule.pattern import WallPattern
from evertick.domain.schedule.ticks import LostTicks
from evertick.domain.schedule.zone import Stretch, Zone

CORRECTION_S = 3 * 3600
MOST_OFFSET_S = 26 * 3600
"""More than any zone is or was away from UTC."""


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

    def next(self, after: int) -> int | None:
        low = max(after // SECOND_US + 1, FIRST_S)
        while low < END_S:
            stretch = self._zone.stretch_at(low)
            found = self._first_in(stretch, low)
            if found is not None:
                return found * SECOND_US
            wall = self.pattern.next_from(stretch.end + min(stretch.before, stretch.offset, stretch.after))
            if wall is None:
                return None
            low = max(stretch.end, wall - MOST_OFFSET_S)
        return None

    def prev(self, before: int) -> int | None:
        high = min(-(-before // SECOND_US), END_S)
        while high > FIRST_S:
            stretch = self._zone.stretch_at(high - 1)
            found = self._last_in(stretch, high)
            if found is not None:
                return found * SECOND_US
            wall = self.pattern.prev_before(stretch.start + max(stretch.offset, stretch.before))
            if wall is None:
                return None
            high = min(stretch.start, wall + MOST_OFFSET_S)
        return None

    def count(self, low: int, high: int) -> int:
        first, end = max(-(-low // SECOND_US), FIRST_S), min(-(-high // SECOND_US), END_S)
        total = 0
        for stretch in self._stretches(first, end):
            start, stop = max(first, stretch.start), min(end, stretch.end)
            regular_low, regular_high = self._regular_walls(stretch)
            total += self.pattern.count(
                max(start + stretch.offset, regular_low), min(stop + stretch.offset, regular_high)
            )
            total += sum(start <= at < stop for at in self._made_up(stretch) if not self._is_regular(stretch, at))
        return total

    def lost(self, low: int, high: int) -> list[LostTicks]:
        if self._elapsed:
            return []
        at, end = max(-(-low // SECOND_US), FIRST_S), min(-(-high // SECOND_US), END_S)
        lost: list[LostTicks] = []
        while at < end:
            stretch = self._zone.stretch_at(at)
            # A year's cut repeats the change before it: only the stretch that the change begins reports it.
            if at <= stretch.since == stretch.start and not self._makes_up(stretch):
                lost += self._swallowed(stretch)
            wall = self.pattern.next_from(stretch.end + min(stretch.before, stretch.offset, stretch.after))
            if wall is None:
                break
            at = max(stretch.end, wall - MOST_OFFSET_S)
        return lost

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

    def _made_up(self, stretch: Stretch) -> Iterator[int]:
        """Instants of the stretch, ascending, that stand in for walls lost in the jump that began it."""
        if not self._makes_up(stretch):
            return
        wall = self.pattern.next_from(stretch.since + stretch.before)
        while wall is not None and wall < stretch.since + stretch.offset:
            at = stretch.since if self._gap is DstGap.CATCH_UP else wall - stretch.before
            if stretch.start <= at < stretch.end:
                yield at
            if self._gap is DstGap.CATCH_UP:
                return
            wall = self.pattern.next_from(wall + 1)

    def _first_in(self, stretch: Stretch, low: int) -> int | None:
        regular_low, regular_high = self._regular_walls(stretch)
        wall = self.pattern.next_from(max(low + stretch.offset, regular_low))
        regular = wall - stretch.offset if wall is not None and wall < regular_high else None
        if low >= _settled(stretch):
            return regular
        made_up = next((at for at in self._made_up(stretch) if at >= low), None)
        return min((at for at in (regular, made_up) if at is not None), default=None)

    def _last_in(self, stretch: Stretch, high: int) -> int | None:
        regular_low, regular_high = self._regular_walls(stretch)
        wall = self.pattern.prev_before(min(high + stretch.offset, regular_high))
        regular = wall - stretch.offset if wall is not None and wall >= regular_low else None
        if regular is not None and regular >= _settled(stretch):
            return regular
        made_up = max((at for at in self._made_up(stretch) if at < high), default=None)
        return max((at for at in (regular, made_up) if at is not None), default=None)


def _settled(stretch: Stretch) -> int:
    """The instant from which the jump that began the stretch can have no made-up ticks left."""
    return stretch.since + stretch.offset - stretch.before
