"""C1: every target is hit. The model is Jepsen's test of Mesos Chronos, made stricter about runs nobody asked for."""

from collections.abc import Iterable, Sequence

from evertick.domain.states import FINAL_RUNS, RunStatus
from faults.checkers.coverage import gaps_over
from faults.checkers.history import JobHistory, RunRecord
from faults.checkers.verdict import Verdict, at, run_text, tick_text


def every_target_hit(
    jobs: Iterable[JobHistory], *, now_us: int, bound_us: int, allow_gaps: bool, allow_cancelled: bool = False
) -> Verdict:
    """Match each tick to a run of its own that started at most `bound_us` after it.

    1. A run counts if it is scheduled, for a target, started and has ended; the others satisfy nothing.
    2. Ticks in gaps are excused if `allow_gaps`; so are those whose run was cancelled unstarted, if `allow_cancelled`.
    3. Starts are given to ticks, earliest deadline first. A tick left without one is a fault once its time is over.
    4. Besides, a scheduled run is a fault if its fire time is no target, or if it started before it.
    """
    faults: list[str] = []
    figures = dict.fromkeys(("targets", "hit", "excused", "past_own_bound"), 0)
    for job in jobs:
        targets = sorted(set(job.ticks))
        foreign, runs = _sorted_out(job, set(targets))
        faults += [f"{run_text(run.key)}: no target, yet it ran as {run.reason}" for run in foreign]
        excused = _in_gaps(targets, job) if allow_gaps else set()
        if allow_cancelled:
            excused |= {run.fire_us for run in runs if _was_cancelled_unstarted(run)}
        starts = _starts(runs)
        missed = _unhit([tick for tick in targets if tick not in excused], [start for _, start in starts], bound_us)
        overdue = [tick for tick in missed if tick + bound_us <= now_us]
        faults += [f"{tick_text(job.job_id, tick)}: not hit by {at(tick + bound_us)}" for tick in overdue]
        faults += [
            f"{run_text(run.key)}: started early, at {at(start)}" for run, start in starts if start < run.fire_us
        ]
        figures["targets"] += len(targets)
        figures["excused"] += len(excused)
        figures["hit"] += len(targets) - len(excused) - len(missed)
        figures["past_own_bound"] += sum(start > run.fire_us + bound_us for run, start in starts)
    return Verdict("C1 every target hit", tuple(faults), figures)


def _sorted_out(job: JobHistory, targets: set[int]) -> tuple[list[RunRecord], list[RunRecord]]:
    """The scheduled runs: those without a target, and those with one."""
    scheduled = [run for run in job.runs if run.is_scheduled]
    foreign = [run for run in scheduled if run.fire_us not in targets]
    return foreign, [run for run in scheduled if run.fire_us in targets]


def _in_gaps(targets: Sequence[int], job: JobHistory) -> set[int]:
    return {tick for tick, gaps in zip(targets, gaps_over(targets, job.gaps), strict=True) if gaps}


def _was_cancelled_unstarted(run: RunRecord) -> bool:
    return run.started_us is None and run.status is RunStatus.CANCELLED


def _starts(runs: Iterable[RunRecord]) -> list[tuple[RunRecord, int]]:
    known = ((run, run.started_us) for run in runs if run.status in FINAL_RUNS)
    return [(run, start) for run, start in known if start is not None]


def _unhit(targets: Sequence[int], starts: Iterable[int], bound_us: int) -> list[int]:
    """Those of the sorted targets that get no start. All have equal time, so the oldest has the first deadline."""
    missed, oldest = [], 0
    for start in sorted(starts):
        while oldest < len(targets) and targets[oldest] + bound_us < start:
            missed.append(targets[oldest])
            oldest += 1
        if oldest < len(targets) and targets[oldest] <= start:
            oldest += 1
    return [*missed, *targets[oldest:]]
