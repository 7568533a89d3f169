"""Which ticks lie in gaps."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

from evertick.domain.states import GapReason
from faults.checkers.history import GapRecord


def ticks_within(ticks: Sequence[int], gap: GapRecord) -> tuple[int, int]:
    """The slice of the sorted ticks that a gap spans."""
    return bisect_left(ticks, gap.first_us), bisect_right(ticks, gap.last_us)


def gaps_over(ticks: Sequence[int], gaps: Iterable[GapRecord]) -> list[int]:
    """For each of the sorted ticks, how many gaps it lies in.

    A `dst` gap covers none: the times it stands for have no instant, and a tick at the jump is another one.
    """
    steps = [0] * (len(ticks) + 1)
    for gap in gaps:
        start, end = ticks_within(ticks, gap)
        if gap.reason is not GapReason.DST and start < end:
            steps[start] += 1
            steps[end] -= 1
    return list(accumulate(steps[:-1]))
