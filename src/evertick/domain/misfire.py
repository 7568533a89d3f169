"""What to do with a due timer: fire its tick, on time or late, or apply `missed_window` to the ticks that were missed.

The decision needs the next, the previous and the number of ticks, never a walk through them, so a job that was down
for a year costs as much as one that was down for an hour. Time is microseconds since 1970 UTC by the database clock.

1. A job's jitter moves its whole clock: seen from the ticks, now is earlier by the offset.
2. Ticks later than the grace are missed. `missed_window` decides: some run as `catch_up`, the rest is one gap.
3. Ticks within the grace run, as `tick` or as `late`.
4. A plan fires one tick, the earliest that runs. The timer moves to the next that is not handled, which may be due
   already: the next plan then sees in the database what this one leaves open.
5. Ticks that a change of the clocks swallowed on the way are gaps too.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, assert_never

from evertick.domain.policies import MissedWindow
from evertick.domain.rule import Rule
from evertick.domain.schedule.budget import PLAN_STEPS, bounded_by
from evertick.domain.schedule.instants import SECOND_US
from evertick.domain.schedule.ticks import END_US, Ticks
from evertick.domain.states import GapReason, RunReason

ON_TIME_US = SECOND_US
"""So much lateness is the machine's, not an outage: such a tick is on time under every grace."""

LONGEST_WAIT_US = SECOND_US
"""For so long at most a run is put off that found no room."""


class Fire(NamedTuple):
    """A tick to run now."""

    fire_us: int
    reason: RunReason


@dataclass(frozen=True, slots=True)
class TickGap:
    """Contiguous ticks that do not run."""

    first_us: int
    last_us: int
    count: int
    reason: GapReason


@dataclass(frozen=True, slots=True)
class Plan:
    """What one due timer leads to: at most one run. `next_us` is where the timer moves; None removes it."""

    fire: Fire | None
    gaps: tuple[TickGap, ...]
    next_us: int | None


@bounded_by(PLAN_STEPS)
def plan(rule: Rule, fire_us: int, now_us: int, *, jitter_us: int = 0) -> Plan:
    """Plan the timer that stands at `fire_us`. Before it is due, nothing happens and it stays."""
    now_us -= jitter_us
    if fire_us > now_us:
        return Plan(None, (), fire_us)
    ticks = rule.ticks()
    grace_from_us = now_us - max(rule.grace_us, ON_TIME_US)
    fire: Fire | None = None
    gaps: tuple[TickGap, ...] = ()
    next_us: int | None = fire_us
    if fire_us < grace_from_us:
        missed = apply_missed_window(
            ticks, fire_us, grace_from_us, rule.missed_window, max_missed=rule.max_missed, max_fires=1
        )
        gaps = missed.gaps
        if missed.fires:
            fire = missed.fires[0]
        next_us = ticks.next(grace_from_us - 1) if missed.next_us is None else missed.next_us
    if fire is None and next_us is not None and next_us <= now_us:
        fire = Fire(next_us, RunReason.TICK if now_us - next_us <= ON_TIME_US else RunReason.LATE)
        next_us = ticks.next(next_us)
    return Plan(fire, (*gaps, *_swallowed(ticks, fire_us, next_us)), next_us)


def swallowed(rule: Rule, after_us: int, next_us: int | None) -> tuple[TickGap, ...]:
    """Ticks that the clocks jump over, and no policy makes up for, between an instant and the next tick or the end."""
    return () if rule.timezone == "UTC" else tuple(_swallowed(rule.ticks(), after_us, next_us))


def wait_us(fire_us: int, next_us: int | None) -> int:
    """For how long a tick is put off that found no room: shorter than its interval, or it would never catch up."""
    return LONGEST_WAIT_US if next_us is None else min(LONGEST_WAIT_US, (next_us - fire_us) // 4)


class MissedTicks(NamedTuple):
    """Missed ticks: the oldest of those that run, where the others that run begin, and those that do not."""

    fires: tuple[Fire, ...]
    next_us: int | None
    gaps: tuple[TickGap, ...]


@bounded_by(PLAN_STEPS)
def apply_missed_window(  # noqa: PLR0913 - which ticks, and what to do with them
    ticks: Ticks,
    first_us: int,
    end_us: int,
    policy: MissedWindow,
    *,
    max_missed: int,
    max_fires: int = 1,
    reason: GapReason = GapReason.MISSED,
) -> MissedTicks:
    """Decide which of the ticks from `first_us` to before `end_us` run. `resume` asks the same for a pause's ticks."""
    # The first is in the timer and may have left the ticks since: the zone's rules or the schedule changed.
    count = 1 + ticks.count(first_us + 1, end_us)
    match policy:
        case MissedWindow.SKIP:
            keep = 0
        case MissedWindow.RUN_ONCE:
            keep = 1
        case MissedWindow.RUN_ALL:
            keep = min(count, max_missed)
        case _:
            assert_never(policy)
    oldest_us = _oldest(ticks, first_us, end_us, count, keep)
    kept = list(islice(_forwards(ticks, oldest_us, end_us), max_fires + 1))
    fires = tuple(Fire(at, RunReason.CATCH_UP) for at in kept[:max_fires])
    next_us = kept[max_fires] if len(kept) > max_fires else None
    if count == keep:
        return MissedTicks(fires, next_us, ())
    last_us = _newest(ticks, first_us, oldest_us or end_us)
    return MissedTicks(fires, next_us, (TickGap(first_us, last_us, count - keep, reason),))


def _newest(ticks: Ticks, first_us: int, before_us: int) -> int:
    return max(first_us, ticks.prev(before_us) or first_us)


def _oldest(ticks: Ticks, first_us: int, end_us: int, count: int, keep: int) -> int | None:
    """The oldest of the newest `keep` out of `count` ticks, found by counting rather than by walking back."""
    if keep <= 1:
        return _newest(ticks, first_us, end_us) if keep else None
    if count == keep:
        return first_us
    return _nth(ticks, first_us, end_us, count - 1, count - keep)


def _nth(ticks: Ticks, first_us: int, end_us: int, count: int, wanted: int) -> int | None:
    """The `wanted`-th of the `count` ticks between two instants.

    Each count costs, so they are few and short: every other guess is where the tick is if all are evenly spaced, any
    instant from the tick to the next one will do, and what was counted is not counted again.
    """
    (low, below), (high, up_to) = (first_us, 0), (end_us - 1, count)
    is_even = True
    while high - low > 1:
        share = (2 * (wanted - below) + 1, 2 * (up_to - below) + 2) if is_even else (1, 2)
        guess = min(max(low + (high - low) * share[0] // share[1], low + 1), high - 1)
        is_even = not is_even
        found = below + ticks.count(low + 1, guess + 1)
        if found == wanted:
            return ticks.prev(guess + 1)
        if found < wanted:
            low, below = guess, found
        else:
            high, up_to = guess, found
    return high


def _forwards(ticks: Ticks, at_us: int | None, end_us: int) -> Iterator[int]:
    while at_us is not None and at_us < end_us:
        yield at_us
        at_us = ticks.next(at_us)


def _swallowed(ticks: Ticks, from_us: int, to_us: int | None) -> Iterator[TickGap]:
    """Gaps for wall times up to the next tick, or the end, that the clocks jumped over and no policy made up for.

    Such a time has no instant of its own: its gap stands at the jump, where a run may stand too.
    """
    for lost in ticks.lost(from_us + 1, END_US if to_us is None else to_us + 1):
        at_us = lost.at * SECOND_US
        yield TickGap(at_us, at_us, lost.ticks, GapReason.DST)
