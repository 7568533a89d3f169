"""The fuse against runaway jobs: whether a job has more runs than its schedule has ticks, and which jobs to look at.

Nothing should make such a job: plans are made from ticks, and each moves its timer on. The fuse is there for what
nobody has thought of, in planning, in the clock or in who holds a partition. So it judges by the history alone.
"""

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from heapq import nlargest
from typing import NamedTuple

from evertick.domain.schedule.instants import from_us, utc_text
from evertick.domain.schedule.ticks import Ticks

MAX_COUNTED = 10_000


class Breach(NamedTuple):
    """More runs than ticks: the runs with fire times from `first_us` to `last_us`, and the ticks in the same stretch.

    `repeated`: how many runs stand at a fire time that another run of the job has.
    """

    runs: int
    repeated: int
    first_us: int
    last_us: int
    ticks: int

    def __str__(self) -> str:
        first, last = (utc_text(from_us(at)) for at in (self.first_us, self.last_us))
        repeated = f", {self.repeated} of them for a tick that had its run," if self.repeated else ""
        fired = f"it fired {self.runs} runs{repeated} from {first} to {last}"
        return f"runaway: {fired}, where the number of ticks is {self.ticks}"


def find_breach(ticks: Ticks, fired: Mapping[int, int]) -> Breach | None:
    """Compare how many runs each fire time has, within one version of a job, with the ticks of its rule.

    One fire time may be none of the ticks: a one-off is not in its rule, and the timer's own may have left the ticks
    because the rules of the zone changed.
    """
    if not fired:
        return None
    first_us, last_us = min(fired), max(fired)
    runs = sum(fired.values())
    allowed = ticks.count(first_us, last_us + 1)
    if runs == len(fired) <= allowed + 1:
        return None
    return Breach(runs, runs - len(fired), first_us, last_us, allowed)


class FrequentJobs:
    """Counts how often jobs fire, in little memory: where there are too many, those that fired least are forgotten."""

    def __init__(self, max_counted: int = MAX_COUNTED) -> None:
        self._max_counted = max_counted
        self._counts: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, job_ids: Iterable[int]) -> None:
        counts = self._counts
        counts.update(job_ids)
        least = 1
        # To the half, so that it is done seldom.
        while len(counts) > (self._max_counted if least == 1 else self._max_counted // 2):
            counts = self._counts = Counter({job_id: count for job_id, count in counts.items() if count > least})
            least *= 2

    def take(self, most: int, later: Container[int] = ()) -> tuple[list[int], list[int]]:
        """The jobs that fired most often since the last call, at least twice, those of `later` last; and the others."""
        counts, self._counts = self._counts, Counter()
        repeated = (job_id for job_id, count in counts.items() if count > 1)
        often = nlargest(most, repeated, key=lambda job_id: (job_id not in later, counts[job_id]))
        return often, sorted(counts.keys() - often)
