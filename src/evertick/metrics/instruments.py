"""Counters, histograms and gauges of one process: plain numbers, cheap enough for hot paths.

There is no lock: an instrument belongs to the event loop of its process. The heartbeat's thread only times its own
statement; an observation that two threads make at the same moment may be lost.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import ClassVar, NamedTuple, TypeAlias

Labels: TypeAlias = tuple[str, ...]
"""The values of an instrument's labels, in their order."""
Read: TypeAlias = Callable[[], Mapping[Labels, float]]
NOTHING: Mapping[Labels, float] = MappingProxyType({})


class Sample(NamedTuple):
    """One line of the page: the name's suffix, the labels with their values, the value."""

    suffix: str
    labels: tuple[tuple[str, str], ...]
    value: float


class Instrument:
    """What a metric is called, what it says, and which labels its series have."""

    kind: ClassVar[str]

    def __init__(self, name: str, text: str, *labels: str) -> None:
        self.name = f"evertick_{name}"
        self.text = text
        self.labels = labels

    def samples(self) -> Iterator[Sample]:
        raise NotImplementedError

    def _named(self, labels: Labels) -> tuple[tuple[str, str], ...]:
        return tuple(zip(self.labels, labels, strict=True))


class Counter(Instrument):
    """Only grows. `known` label values are shown from the start, as 0: a rate needs a first value."""

    kind = "counter"

    def __init__(self, name: str, text: str, *labels: str, known: Iterable[Labels] = ()) -> None:
        super().__init__(f"{name}_total", text, *labels)
        self._values: dict[Labels, float] = dict.fromkeys(known if labels else [()], 0)

    def add(self, amount: float, *labels: str) -> None:
        if amount:
            self._values[labels] = self._values.get(labels, 0) + amount

    def value(self, *labels: str) -> float:
        return self._values.get(labels, 0)

    def samples(self) -> Iterator[Sample]:
        for labels, value in list(self._values.items()):  # the heartbeat's thread may add one
            yield Sample("", self._named(labels), value)


class Series:
    """The observations of one combination of labels: how many fell into each bucket, and their sum."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self._bounds, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        return sum(self.counts)


class Histogram(Instrument):
    """How often values were at most as large as each bound."""

    kind = "histogram"

    def __init__(self, name: str, text: str, *labels: str, bounds: tuple[float, ...]) -> None:
        super().__init__(name, text, *labels)
        self.bounds = bounds
        self._series: dict[Labels, Series] = {} if labels else {(): Series(bounds)}

    def of(self, *labels: str) -> Series:
        """The series of these label values, to observe into."""
        series = self._series.get(labels)
        if series is None:
            series = self._series[labels] = Series(self.bounds)
        return series

    def samples(self) -> Iterator[Sample]:
        for labels, series in list(self._series.items()):
            named = self._named(labels)
            total = 0
            for bound, count in zip((*self.bounds, float("inf")), series.counts, strict=True):
                total += count
                yield Sample("_bucket", (*named, ("le", number(bound))), total)
            yield Sample("_sum", named, series.sum)
            yield Sample("_count", named, total)


class Gauge(Instrument):
    """Read when the page is made, from all that is watched. A gauge for which nothing is watched is not shown.

    A process may run two workers: values with equal labels are added up, or the largest is shown.
    """

    kind = "gauge"

    def __init__(self, name: str, text: str, *labels: str, is_largest: bool = False) -> None:
        super().__init__(name, text, *labels)
        self._is_largest = is_largest
        self._reads: dict[int, Read] = {}
        self._number = 0

    def watch(self, read: Read) -> Callable[[], None]:
        """Show what `read` returns, until the returned function is called."""
        self._number += 1
        mine = self._number
        self._reads[mine] = read
        return lambda: self._reads.pop(mine, None) and None

    def watch_value(self, read: Callable[[], float], *labels: str) -> Callable[[], None]:
        """As `watch`, for one value."""
        return self.watch(lambda: {labels: read()})

    def samples(self, given: Mapping[Labels, float] = NOTHING) -> Iterator[Sample]:
        """What is watched, and what is given."""
        total: dict[Labels, float] = {}
        for values in (given, *(read() for read in list(self._reads.values()))):
            for labels, value in values.items():
                before = total.get(labels, 0)
                total[labels] = max(before, value) if self._is_largest else before + value
        for labels, value in total.items():
            yield Sample("", self._named(labels), value)


def number(value: float) -> str:
    """As Prometheus writes numbers."""
    return "+Inf" if value == float("inf") else repr(float(value))
