"""C6: the lag comes back after healing. C7: the jobs of others are served as before.

Both compare with the same cluster before the fault, so that a slow machine is slow on both sides. The lag of a run is
the time from its fire time to its first start. Runs without a start are judged by C1 and C3.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from evertick.domain.states import GapReason, RunStatus
from faults.checkers.coverage import gaps_over
from faults.checkers.history import JobHistory, RunRecord
from faults.checkers.verdict import Verdict, at

FACTOR = 3
FLOOR_US = 5_000_000
"""A lag of so much is never a fault: the machine may be busy."""
ENOUGH = 20
"""Fewer runs than this on either side prove nothing."""


@dataclass(frozen=True, slots=True)
class Window:
    """From an instant up to another, which is not part of it."""

    from_us: int
    until_us: int

    def __contains__(self, at_us: int) -> bool:
        return self.from_us <= at_us < self.until_us


def lag_recovers(
    jobs: Iterable[JobHistory],
    *,
    before: Window,
    healed_us: int,
    within_us: int,
    factor: int = FACTOR,
    floor_us: int = FLOOR_US,
) -> Verdict:
    """Ticks that are due later than `within_us` after healing start as soon as those before the fault did.

    As soon: the p99 of their lags is at most `factor` times the p99 before, or `floor_us`.
    """
    lags = sorted(chain.from_iterable(map(_lags, jobs)))
    settled_us = healed_us + within_us
    calm = [lag for tick, lag in lags if tick in before]
    healed = [lag for tick, lag in lags if tick >= settled_us]
    bound_us = max(factor * p99(calm), floor_us)
    faults = [*_too_few("before the fault", calm), *_too_few(f"after {at(settled_us)}", healed)]
    if p99(healed) > bound_us:
        faults.append(f"the lag after {at(settled_us)} is {_ms(p99(healed))} ms, the bound {_ms(bound_us)} ms")
    late = [tick + lag for tick, lag in lags if tick >= before.until_us and lag > bound_us]
    figures = {
        "p99_before_ms": _ms(p99(calm)),
        "p99_after_ms": _ms(p99(healed)),
        "longest_ms": _ms(max((lag for tick, lag in lags if tick >= before.from_us), default=0)),
        "recovered_after_ms": _ms(max(0, max(late, default=healed_us) - healed_us)),
    }
    return Verdict("C6 lag after healing", tuple(faults), figures)


def neighbours_unaffected(
    neighbours: Mapping[str, Iterable[JobHistory]],
    *,
    calm: Window,
    fault: Window,
    factor: int = FACTOR,
    floor_us: int = FLOOR_US,
) -> Verdict:
    """Each tenant's runs during the fault of another start as soon as before it, and not one tick more is missed."""
    faults: list[str] = []
    figures = {"tenants": len(neighbours), "runs": 0, "p99_calm_ms": 0, "p99_fault_ms": 0}
    for name, histories in neighbours.items():
        jobs = list(histories)
        lags = list(chain.from_iterable(map(_lags, jobs)))
        quiet = [lag for tick, lag in lags if tick in calm]
        shaken = [lag for tick, lag in lags if tick in fault]
        bound_us = max(factor * p99(quiet), floor_us)
        faults += [f"{name}: {each}" for each in (*_too_few("before", quiet), *_too_few("during the fault", shaken))]
        if p99(shaken) > bound_us:
            faults.append(f"{name}: the lag is {_ms(p99(shaken))} ms, the bound {_ms(bound_us)} ms")
        failed, failed_before = (sum(_failures(job, window) for job in jobs) for window in (fault, calm))
        if failed > failed_before:
            faults.append(f"{name}: {failed} ticks were missed or failed, {failed_before} before the fault")
        figures["runs"] += len(shaken)
        figures["p99_calm_ms"] = max(figures["p99_calm_ms"], _ms(p99(quiet)))
        figures["p99_fault_ms"] = max(figures["p99_fault_ms"], _ms(p99(shaken)))
    return Verdict("C7 other tenants", tuple(faults), figures)


def p99(lags: Iterable[int]) -> int:
    """The smallest of the given that 99 of 100 do not exceed; 0 for none."""
    ordered = sorted(lags)
    return ordered[-(-len(ordered) * 99 // 100) - 1] if ordered else 0


def _lags(job: JobHistory) -> Iterator[tuple[int, int]]:
    """The fire time and the lag of each scheduled run that started."""
    for run in job.runs:
        if run.is_scheduled and run.started_us is not None:
            yield run.fire_us, run.started_us - run.fire_us


def _failures(job: JobHistory, window: Window) -> int:
    """How many ticks ended badly: in a dead run, or missed. A job that overlaps itself does so in calm times too."""
    ticks = [tick for tick in sorted(set(job.ticks)) if tick in window]
    missed = gaps_over(ticks, [gap for gap in job.gaps if gap.reason is GapReason.MISSED])
    return len(missed) - missed.count(0) + sum(_is_dead(run) for run in job.runs if run.fire_us in window)


def _is_dead(run: RunRecord) -> bool:
    return run.is_scheduled and run.status is RunStatus.DEAD


def _too_few(when: str, lags: list[int]) -> Iterator[str]:
    if len(lags) < ENOUGH:
        yield f"only {len(lags)} runs {when}, which prove nothing"


def _ms(us: int) -> int:
    return us // 1000
