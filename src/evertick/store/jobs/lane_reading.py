"""Reading the first rows of an order that each lane has for itself, when there are hundreds of lanes."""

from collections.abc import Iterator

FEW = 4
TIMES = 4


def few_per_lane(most: int) -> Iterator[int]:
    """How many rows to read of each lane, in one try after the other, to find `most` in all of them.

    Rows are spread over lanes by a hash: a few of each are enough, unless one lane has nearly all.
    """
    per_lane = FEW
    while per_lane < most:
        yield per_lane
        per_lane *= TIMES
    yield most
