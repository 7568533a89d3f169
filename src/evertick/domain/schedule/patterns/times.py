"""The seconds of a day that a schedule names, kept small: 86,400 of them are a range or a product, not a list."""

import itertools
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Protocol, overload

LISTED = 96
"""So many times are listed, which is the fastest to search; more are kept as a product."""


class Times(Protocol):
    """The times of each day. `uniform`: every day has the same. `day_steps`: what looking at one day costs."""

    uniform: bool
    day_steps: int

    def of(self, day: int) -> Sequence[int]:
        """Return the seconds of the day that match, ascending."""

    def number(self, day: int) -> int:
        """Return how many there are."""


class SameTimes:
    """Every day has the same times."""

    uniform = True
    day_steps = 1

    def __init__(self, times: Sequence[int]) -> None:
        self._times = times

    def of(self, day: int) -> Sequence[int]:  # noqa: ARG002 - the protocol's shape
        return self._times

    def number(self, day: int) -> int:  # noqa: ARG002
        return len(self._times)


class ProductTimes(Sequence[int]):
    """Each of `outer` plus each of `inner`, whose span is shorter than any distance in `outer`."""

    __slots__ = ("inner", "outer")

    def __init__(self, outer: Sequence[int], inner: Sequence[int]) -> None:
        self.outer = outer
        self.inner = inner

    def __len__(self) -> int:
        return len(self.outer) * len(self.inner)

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[int]: ...
    def __getitem__(self, place: int | slice) -> int | Sequence[int]:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        i, j = divmod(range(len(self))[place], len(self.inner))
        return self.outer[i] + self.inner[j]

    def place_of(self, second: int) -> int:
        i = bisect_right(self.outer, second) - 1
        return i * len(self.inner) + place(self.inner, second - self.outer[i]) if i >= 0 else 0


def place(times: Sequence[int], second: int) -> int:
    """How many of the times are before `second`."""
    return times.place_of(second) if type(times) is ProductTimes else bisect_left(times, second)


def distances(times: Sequence[int]) -> set[int]:
    """The distances between neighbours."""
    if isinstance(times, ProductTimes):
        span = times.inner[-1] - times.inner[0]
        return distances(times.inner) | {distance - span for distance in distances(times.outer)}
    if isinstance(times, range):
        return {times.step} if len(times) > 1 else set()
    return {later - earlier for earlier, later in itertools.pairwise(times)}


def spread(outer: Sequence[int], inner: Sequence[int]) -> Sequence[int]:
    """Each of `outer` plus each of `inner`, in the smallest form: a range if they are evenly spaced."""
    if not outer or not inner:
        return ()
    if not inner[-1] and isinstance(outer, range | ProductTimes):
        return outer
    times = ProductTimes(outer, inner)
    apart = distances(times)
    if len(apart) == 1:
        return range(times[0], times[-1] + 1, apart.pop())
    return times if len(times) > LISTED else array("i", times)


def times_within(hours: Sequence[int], minutes: Sequence[int], seconds: Sequence[int]) -> Sequence[int]:
    """The times of a day with one of these hours, minutes and seconds."""
    return spread([hour * 3600 for hour in hours], spread([minute * 60 for minute in minutes], seconds))


def mask(unit: int, hours: Sequence[int], minutes: Sequence[int], seconds: Sequence[int]) -> bytes:
    """A byte for each hour, minute or second of a day, as `unit` says: 1 where all limits hold; empty means all."""
    second = bytes(not seconds or number in seconds for number in range(60 if unit < 60 else 1))
    minute = [not minutes or number in minutes for number in range(60 if unit < 3600 else 1)]
    hour = b"".join(second if holds else bytes(len(second)) for holds in minute)
    return b"".join(hour if not hours or number in hours else bytes(len(hour)) for number in range(24))
