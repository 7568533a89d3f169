"""Ticks: the nominal fire times of a schedule, as instants in microseconds since 1970 UTC.

Like the wall patterns they answer next, previous and how many without walking; `zoned` makes ticks of a wall pattern.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from evertick.domain.schedule.budget import bounded, spend
from evertick.domain.schedule.instants import END_S, FIRST_S, SECOND_US
from evertick.domain.schedule.patterns.wall import LONGEST_REMOVED_S, LOOK_UP_STEPS, PASSING_DATES, ListPattern

FIRST_US, END_US = FIRST_S * SECOND_US, END_S * SECOND_US
_LONGEST_REMOVED_US = LONGEST_REMOVED_S * SECOND_US


class LostTicks(NamedTuple):
    """Wall times [first_wall, last_wall] that the jump at `at` (seconds) swallowed and no policy made up for."""

    at: int
    ticks: int
    first_wall: int
    last_wall: int


class Ticks(Protocol):
    """An ordered set of instants."""

    def next(self, after: int) -> int | None:
        """Return the first tick strictly after `after`."""

    def prev(self, before: int) -> int | None:
        """Return the last tick strictly before `before`."""

    def count(self, low: int, high: int) -> int:
        """Return the number of ticks in [low, high)."""

    def lost(self, low: int, high: int) -> list[LostTicks]:
        """Return what changes of the clocks within [low, high) swallowed for good."""


class _Lossless:
    """Ticks that do not go by the clock on the wall."""

    def lost(self, low: int, high: int) -> list[LostTicks]:  # noqa: ARG002 - the protocol's shape
        return []


class NoTicks(_Lossless):
    """A manual job: nothing but triggers runs it."""

    def next(self, after: int) -> int | None:  # noqa: ARG002
        return None

    def prev(self, before: int) -> int | None:  # noqa: ARG002
        return None

    def count(self, low: int, high: int) -> int:  # noqa: ARG002
        return 0


class ListTicks(_Lossless):
    """A few instants, listed: a one-off, or dates that a recurrence names apart."""

    def __init__(self, instants: Sequence[int]) -> None:
        self._list = ListPattern(instants)

    def next(self, after: int) -> int | None:
        return self._list.next_from(after + 1)

    def prev(self, before: int) -> int | None:
        return self._list.prev_before(before)

    def count(self, low: int, high: int) -> int:
        return self._list.count(low, high)


class EveryTick(_Lossless):
    """`anchor + n * step` for n in [first, end); without `total` in both directions and for ever."""

    def __init__(self, anchor: int, step: int, total: int | None = None, *, from_anchor: bool = False) -> None:
        self._anchor = anchor
        self._step = step
        low = anchor if from_anchor else FIRST_US
        high = END_US if total is None else min(END_US, anchor + total * step)
        self._low = -(-(low - anchor) // step)
        self._high = -(-(high - anchor) // step)

    def next(self, after: int) -> int | None:
        n = max((after - self._anchor) // self._step + 1, self._low)
        return self._anchor + n * self._step if n < self._high else None

    def prev(self, before: int) -> int | None:
        n = min(self._ceil(before), self._high) - 1
        return self._anchor + n * self._step if n >= self._low else None

    def count(self, low: int, high: int) -> int:
        return max(0, min(self._ceil(high), self._high) - max(self._ceil(low), self._low))

    def _ceil(self, at: int) -> int:
        return -(-(at - self._anchor) // self._step)


class WithinTicks:
    """The ticks of `inner` from `first` to `last`, both included; None means no bound."""

    def __init__(self, inner: Ticks, first: int | None, last: int | None) -> None:
        self._inner = inner
        self._first = FIRST_US if first is None else first
        self._last = END_US if last is None else last

    def next(self, after: int) -> int | None:
        found = self._inner.next(max(after, self._first - 1))
        return None if found is None or found > self._last else found

    def prev(self, before: int) -> int | None:
        found = self._inner.prev(min(before, self._last + 1))
        return None if found is None or found < self._first else found

    def count(self, low: int, high: int) -> int:
        return self._inner.count(max(low, self._first), min(high, self._last + 1))

    def lost(self, low: int, high: int) -> list[LostTicks]:
        return self._inner.lost(max(low, self._first), min(high, self._last + 1))


class JoinedTicks:
    """The ticks of `inner` and of `few`, which are counted one by one."""

    def __init__(self, inner: Ticks, few: Ticks) -> None:
        self._inner = inner
        self._few = few

    @bounded
    def next(self, after: int) -> int | None:
        return min((at for at in (self._inner.next(after), self._few.next(after)) if at is not None), default=None)

    @bounded
    def prev(self, before: int) -> int | None:
        return max((at for at in (self._inner.prev(before), self._few.prev(before)) if at is not None), default=None)

    @bounded
    def count(self, low: int, high: int) -> int:
        total, at = self._inner.count(low, high), self._few.next(low - 1)
        while at is not None and at < high:
            spend(LOOK_UP_STEPS, PASSING_DATES)
            total += not self._inner.count(at, at + 1)
            at = self._few.next(at)
        return total

    @bounded
    def lost(self, low: int, high: int) -> list[LostTicks]:
        jumps: dict[int, LostTicks] = {}
        for lost in (*self._inner.lost(low, high), *self._few.lost(low, high)):
            # One jump is one gap, of whichever ticks.
            at, ticks, first, last = jumps.get(lost.at, LostTicks(lost.at, 0, lost.first_wall, lost.last_wall))
            jumps[at] = LostTicks(at, ticks + lost.ticks, min(first, lost.first_wall), max(last, lost.last_wall))
        return sorted(jumps.values())


class ExceptTicks:
    """The ticks of `inner` but for a few instants."""

    def __init__(self, inner: Ticks, removed: Collection[int]) -> None:
        self._inner = inner
        self._removed = frozenset(removed)
        spend(LOOK_UP_STEPS * len(self._removed), PASSING_DATES)
        self._taken = ListPattern([at for at in self._removed if inner.count(at, at + 1)])

    @bounded
    def next(self, after: int) -> int | None:
        found = self._inner.next(after)
        while found in self._removed:
            spend(LOOK_UP_STEPS, PASSING_DATES)
            found = self._inner.next(found) if found - after <= _LONGEST_REMOVED_US else None
        return found

    @bounded
    def prev(self, before: int) -> int | None:
        found = self._inner.prev(before)
        while found in self._removed:
            spend(LOOK_UP_STEPS, PASSING_DATES)
            found = self._inner.prev(found) if before - found <= _LONGEST_REMOVED_US else None
        return found

    @bounded
    def count(self, low: int, high: int) -> int:
        return self._inner.count(low, high) - self._taken.count(low, high)

    def lost(self, low: int, high: int) -> list[LostTicks]:
        return self._inner.lost(low, high)
