"""Counts what a firing did, for the metrics: once for each group of timers that fire alike."""

from collections.abc import Collection, Iterable

from evertick.domain.ids import partition_of
from evertick.domain.states import GapReason
from evertick.metrics.catalog import FIRE_LAG, FIRED, REFUSED, SKIPPED
from evertick.roles.scheduler.planning import Group
from evertick.store.engine.timers import Fired


def count_fired(groups: Iterable[Group], fired: Fired) -> None:
    """Count attempts and their lag, gaps, and what was refused."""
    left = {*fired.refused, *fired.waiting, *fired.early, *fired.busy}
    passed = set(fired.passed)
    refused = set(fired.refused)
    fenced = frozenset(fired.fenced or ())
    lag = FIRE_LAG.of()
    first = 1
    for plan, entries in groups:
        places = range(first, first + len(entries))
        first += len(entries)
        moved = len(entries) - _count(places, left)
        if runs := moved - _count(places, passed):
            FIRED.add(runs, plan.kind)
            lag.observe(max(0.0, (fired.now_at - plan.due_at).total_seconds()), runs)
        for gap in plan.gaps:
            SKIPPED.add(moved * gap.ticks, gap.reason)
        if refused:
            lost = sum(
                place in refused and partition_of(entry.timer.job_id) not in fenced
                for place, entry in zip(places, entries, strict=True)
            )
            REFUSED.add(lost, "fence")
            REFUSED.add(_count(places, refused) - lost, "changed")
    SKIPPED.add(fired.overlaps, GapReason.OVERLAP)


def _count(places: range, among: Collection[int]) -> int:
    """How many of these places are among others, of which there are mostly none."""
    return sum(place in among for place in places) if among else 0
