"""Owns what becomes of a due tick while earlier runs of its job are unfinished.

Open is every unfinished run that does not merely wait its turn: pending, running, or between two attempts.
Manual runs and replays count as open like any other. They themselves are not asked here: they consume no
tick, so there is none to skip, and a user who triggers a job means now.
"""

from dataclasses import dataclass
from typing import TypeAlias, assert_never

from evertick.domain.policies import ConcurrentPolicy


@dataclass(frozen=True, slots=True)
class Start:
    """The tick runs."""


@dataclass(frozen=True, slots=True)
class Wait:
    """The tick runs when the run before it has finished. It is a pending run already."""


@dataclass(frozen=True, slots=True)
class SkipTick:
    """The tick becomes a gap `overlap`."""


@dataclass(frozen=True, slots=True)
class Replace:
    """The tick runs, and all `cancel` unfinished runs are cancelled in the same statement."""

    cancel: int


Overlap: TypeAlias = Start | Wait | SkipTick | Replace


@dataclass(frozen=True, slots=True)
class Unfinished:
    """What a job has unfinished: `open_runs`, and `waiting` ones behind them (policy QUEUE)."""

    open_runs: int = 0
    waiting: int = 0

    @property
    def total(self) -> int:
        # What waited when the policy was edited starts as soon as there is room: all policies count it.
        return self.open_runs + self.waiting


def decide(policy: ConcurrentPolicy, max_concurrent: int, unfinished: Unfinished) -> Overlap:
    """Decide for one due tick. Only ALLOW reads `max_concurrent`: the other policies mean one at a time."""
    match policy:
        case ConcurrentPolicy.SKIP:
            return SkipTick() if unfinished.total else Start()
        case ConcurrentPolicy.ALLOW:
            return Start() if unfinished.total < max_concurrent else SkipTick()
        case ConcurrentPolicy.QUEUE:
            return _in_turn(unfinished)
        case ConcurrentPolicy.REPLACE:
            return Replace(unfinished.total) if unfinished.total else Start()
        case _:
            assert_never(policy)


def _in_turn(unfinished: Unfinished) -> Overlap:
    if unfinished.open_runs == 0:
        # Whoever waits goes first: it takes the free place, and the tick takes its.
        return Wait() if unfinished.waiting else Start()
    # The waiting one keeps its place. It is a run by now, and a run never turns back into a gap.
    return SkipTick() if unfinished.waiting else Wait()


@dataclass(frozen=True, slots=True)
class Allotment:
    """What becomes of ticks that are due together, oldest first: skip, start, wait, skip the rest."""

    skip_oldest: int = 0
    start: int = 0
    wait: int = 0
    skip_newest: int = 0
    cancel: int = 0


def allot(policy: ConcurrentPolicy, max_concurrent: int, unfinished: Unfinished, ticks: int) -> Allotment:
    """Decide for `ticks` due together as if they came one by one, in O(1).

    REPLACE starts the newest alone: each older one would be cancelled by the next before it did anything.
    """
    if ticks == 0:
        return Allotment()
    if policy is ConcurrentPolicy.REPLACE:
        return Allotment(skip_oldest=ticks - 1, start=1, cancel=unfinished.total)
    start = min(ticks, _room(policy, max_concurrent, unfinished))
    wait = 0
    if policy is ConcurrentPolicy.QUEUE and start < ticks:
        wait = int(isinstance(_in_turn(Unfinished(unfinished.open_runs + start, unfinished.waiting)), Wait))
    return Allotment(start=start, wait=wait, skip_newest=ticks - start - wait)


def _room(policy: ConcurrentPolicy, max_concurrent: int, unfinished: Unfinished) -> int:
    limit = max_concurrent if policy is ConcurrentPolicy.ALLOW else 1
    return max(0, limit - unfinished.total)
