"""What jitter makes of the minutes of a forecast.

The firings of a rule are counted once, minute by minute. Jitter spreads each of them over the minutes that follow. If
it does so evenly, which is near to what hashing the jobs gives, then the minutes after it are sums of differences, for
any jitter and any number of rules. `smeared` and `smeared_counts` count the offsets that jobs really get.
"""

from collections.abc import Generator, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from evertick.domain.forecast.counting import Counter
from evertick.domain.forecast.horizon import Horizon, Pending, RuleLoad
from evertick.domain.schedule.instants import SECOND_US


class MinuteLoad(NamedTuple):
    """The jobs of a rule without jitter: how many firings each minute has of them, and at which second of it."""

    key: int
    jobs: int
    second: int
    firings: Mapping[int, int]


def minute_load(key: int, load: RuleLoad, horizon: Horizon) -> MinuteLoad:
    """A load, minute by minute, without what is due already. Of ticks at several seconds, the first stands for all."""
    counter = Counter(horizon)
    counter.add(load)
    counts = counter.counts
    if horizon.from_us <= horizon.now_us:
        place = (horizon.now_us - horizon.from_us) // horizon.bucket_us
        counts[place] -= sum(each.jobs for each in load.pending if each.fire_us < horizon.now_us)
    second = min(each.fire_us for each in load.pending) // SECOND_US % 60
    return MinuteLoad(key, load.jobs, second, {place: count for place, count in enumerate(counts) if count})


def spread_evenly(counts: Sequence[float], moved: Iterable[tuple[MinuteLoad, float]], jitter_s: int) -> Sequence[float]:
    """The minutes after these parts of the loads have got jitter, which is a number of whole minutes."""
    minutes = jitter_s // 60
    single = [*counts, *[0.0] * minutes]
    steps = [0.0] * len(single)
    for load, part in moved:
        per_firing, late = part * 60 / jitter_s, part * load.second / jitter_s
        for place, firings in load.firings.items():
            steps[place] += firings * per_firing
            steps[place + minutes] -= firings * per_firing
            # The first minute has less of it by the seconds before the tick, which the last one has.
            single[place] -= firings * (part + late)
            single[place + minutes] += firings * late
    return [one + sum_ for one, sum_ in zip(single[: len(counts)], accumulate(steps), strict=False)]


def smeared(load: RuleLoad, offsets: Mapping[int, int], fire_us: int) -> RuleLoad:
    """The load with some of its jobs at their offsets, by seconds; the others stay as they are."""
    left = sum(offsets.values())
    pending = [Pending(fire_us, offset_s, jobs) for offset_s, jobs in offsets.items()]
    for each in load.pending:
        moved = min(left, each.jobs)
        left -= moved
        if each.jobs > moved:
            pending.append(each._replace(jobs=each.jobs - moved))
    return RuleLoad(load.rule, tuple(sorted(pending, key=lambda each: each.offset_s)))


def smeared_counts(
    counts: Sequence[int], changes: Iterable[tuple[RuleLoad, RuleLoad]], horizon: Horizon
) -> Generator[None, None, list[int]]:
    """The counts of a forecast after some loads have changed, each given as it was and as it is."""
    lost, gained = Counter(horizon), Counter(horizon)
    for before, after in changes:
        lost.add(before)
        gained.add(after)
        yield
    return [count - less + more for count, less, more in zip(counts, lost.counts, gained.counts, strict=True)]
