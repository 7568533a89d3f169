"""How much of the jobs a forecast is counted from, and how finely. Jobs are spread over the partitions by a hash, so
that some of these are a fair sample of all.

One partition is read first. From how often it has each group of timers follows how many groups there are in all
(Chao's estimator): groups that were seen once hint at others that were not seen at all. Jitter makes many groups of a
rule, one for each second. Where these are too many, the minute matters alone: for rules that fire at one second of the
minute, which most do, the forecast is the same.
"""

import math
from collections.abc import Collection
from typing import NamedTuple

from evertick.domain.forecast.horizon import MINUTE_US
from evertick.domain.ids import PARTITIONS
from evertick.domain.rule import OneOff, RuleSpec
from evertick.domain.schedule.cron import Cron
from evertick.domain.schedule.interval import Every, EveryMonths
from evertick.domain.schedule.rrule.spec import RRule
from evertick.domain.schedule.rrule.text import Freq
from evertick.domain.schedule.spec import Manual

MAX_GROUPS = 100_000
MAX_RULES = 40_000
"""What is counted within three seconds on a slow core."""
MAX_LABELLED = 300_000
"""Jobs whose labels are compared with a filter."""
FEW_JOBS = 300_000
"""Up to so many are read by index. More are faster to find by reading all timers."""


class Probe(NamedTuple):
    """What one partition has: the number of timers in each group by seconds, in each by minutes, and of each rule."""

    by_second: Collection[int]
    by_minute: Collection[int]
    rules: Collection[int]

    @property
    def jobs(self) -> int:
        """In all partitions, as it seems."""
        return sum(self.rules) * PARTITIONS


class Sample(NamedTuple):
    """How many partitions to count: all of them, or a power of two. `by_second`: with jitter to the second."""

    partitions: int
    by_second: bool


def sample_of(probe: Probe, *, has_labels: bool) -> Sample:
    if not probe.rules:
        return Sample(PARTITIONS, by_second=True)
    by_second = richness(probe.by_second) <= MAX_GROUPS
    groups = probe.by_second if by_second else probe.by_minute
    most = PARTITIONS
    if richness(groups) > MAX_GROUPS:
        most = min(most, MAX_GROUPS // len(groups))
    if richness(probe.rules) > MAX_RULES:
        most = min(most, MAX_RULES // len(probe.rules))
    if has_labels and probe.jobs > MAX_LABELLED:
        most = min(most, MAX_LABELLED // sum(probe.rules))
    return Sample(1 << max(most, 1).bit_length() - 1, by_second)


def has_one_second(spec: RuleSpec) -> bool:
    """Whether all ticks are at one second of the minute: then jitter in minutes says in which minute jobs are due."""
    match spec:
        case Every():
            return spec.step_us % MINUTE_US == 0
        case Cron():
            return spec.fields[0].isdecimal()
        case RRule():
            return spec.freq is not Freq.SECONDLY and len(spec.bysecond) <= 1 and not (spec.rdates or spec.rdates_us)
        case EveryMonths() | OneOff() | Manual():
            return True


def richness(seen: Collection[int]) -> float:
    """How many kinds there are, by how often each kind was seen in a sample."""
    once, twice = sum(number == 1 for number in seen), sum(number == 2 for number in seen)
    return len(seen) + once * (once - 1) / (2 * (twice + 1))


def relative_error(count: int, partitions: int) -> float:
    """The standard error of a count that was scaled up from a sample, as a fraction of it."""
    fraction = partitions / PARTITIONS
    return 0.0 if fraction == 1 or not count else math.sqrt((1 - fraction) / (count * fraction))
