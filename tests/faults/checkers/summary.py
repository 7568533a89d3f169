"""The figures of a fault test that docs/reliability.md tells, in one line that is the same for all tests."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

from faults.checkers.endings import NOT_ACCOUNTED
from faults.checkers.history import Delivery, JobHistory
from faults.checkers.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Summary:
    ticks: int
    runs: int
    lost: int
    """Ticks that are neither a run nor a gap."""
    doubled: int
    """Starts beyond the first of a run."""
    longest_gap_seconds: float
    """The longest time without any start."""

    def __str__(self) -> str:
        return "  ".join(f"{name.replace('_', ' ')} {value}" for name, value in asdict(self).items())


def summarise(
    verdicts: Iterable[Verdict], jobs: Iterable[JobHistory], deliveries: Sequence[Delivery], starts_us: Iterable[int]
) -> Summary:
    """`starts_us`: when handlers were called, for the longest gap."""
    judged = {verdict.name[:2]: verdict for verdict in verdicts}
    return Summary(
        ticks=judged["C3"].figures["ticks"],
        runs=sum(len(job.runs) for job in jobs),
        lost=sum(NOT_ACCOUNTED in fault for verdict in judged.values() for fault in verdict.faults),
        doubled=len(deliveries) - len({delivery.run_key for delivery in deliveries}),
        longest_gap_seconds=longest_gap(starts_us),
    )


def longest_gap(starts_us: Iterable[int]) -> float:
    """The longest time between two successive starts, in seconds."""
    times = sorted(starts_us)
    return round(max((after - before for before, after in pairwise(times)), default=0) / 1e6, 2)
