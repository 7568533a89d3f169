"""C5: the fence. Once a partition has a new holder, nothing of the old one is let through."""

from collections.abc import Iterable
from itertools import pairwise
from operator import attrgetter

from faults.checkers.history import FencedWrite
from faults.checkers.verdict import Verdict


def epochs_only_grow(writes: Iterable[FencedWrite]) -> Verdict:
    """Per partition, a write with a larger `seq` has no smaller epoch. Equal `seq` are of two lanes, in any order."""
    ordered = sorted(writes, key=attrgetter("partition", "seq", "epoch"))
    faults = tuple(
        f"partition {after.partition}: epoch {after.epoch} wrote seq {after.seq} after epoch {before.epoch} "
        f"had written {before.seq}"
        for before, after in pairwise(ordered)
        if before.partition == after.partition and after.epoch < before.epoch
    )
    figures = {"writes": len(ordered), "partitions": len({write.partition for write in ordered})}
    return Verdict("C5 fence", faults, figures)
