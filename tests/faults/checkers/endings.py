"""C3: every tick ends, in a run that is final or in a gap with a reason, and in one of them only."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from evertick.domain.ids import RunKey
from evertick.domain.states import FINAL_RUNS, GapReason
from faults.checkers.coverage import gaps_over, ticks_within
from faults.checkers.history import GapRecord, JobHistory, PendingTimer, RunRecord
from faults.checkers.verdict import Verdict, at, run_text, tick_text

NOT_ACCOUNTED = "neither a run nor a gap"


def every_tick_ends(
    jobs: Iterable[JobHistory], *, now_us: int, bound_us: int, timers: Iterable[PendingTimer] = ()
) -> Verdict:
    """What is unfinished must be younger than `bound_us`, counted from the last thing that happened or is to happen."""
    timers_due = {RunKey(timer.job_id, timer.fire_us): timer.due_us for timer in timers}
    old_us = now_us - bound_us
    faults: list[str] = []
    figures = dict.fromkeys(("ticks", "in_gaps", "unfinished"), 0)
    for job in jobs:
        ticks = sorted(set(job.ticks))
        gaps = gaps_over(ticks, job.gaps)
        unfinished = [run for run in job.runs if run.status not in FINAL_RUNS]
        faults += _stuck(unfinished, old_us, timers_due)
        faults += _astray(job, ticks, gaps, old_us, timers_due)
        faults += (f"job {job.job_id}, {fault}" for gap in job.gaps for fault in _gap_faults(gap, ticks))
        figures["ticks"] += len(ticks)
        figures["in_gaps"] += len(ticks) - gaps.count(0)
        figures["unfinished"] += len(unfinished)
    return Verdict("C3 every tick ends", tuple(faults), figures)


def _stuck(unfinished: Iterable[RunRecord], old_us: int, timers_due: Mapping[RunKey, int]) -> Iterator[str]:
    for run in unfinished:
        since_us = max(_last_event_us(run), timers_due.get(run.key, run.fire_us))
        if since_us <= old_us:
            yield f"{run_text(run.key)}: {run.status} since {at(since_us)}"


def _last_event_us(run: RunRecord) -> int:
    latest = run.latest
    if latest is None:
        return run.fire_us
    finished_us = run.fire_us if latest.outcome is None else latest.outcome.finished_us
    return max(run.fire_us, latest.due_us, finished_us)


def _astray(
    job: JobHistory, ticks: Sequence[int], gaps: Sequence[int], old_us: int, timers_due: Mapping[RunKey, int]
) -> Iterator[str]:
    """Ticks that are nowhere, or in more than one place."""
    run_times = {run.fire_us for run in job.runs if run.is_scheduled}
    for tick, covers in zip(ticks, gaps, strict=True):
        if covers > 1:
            yield f"{tick_text(job.job_id, tick)}: lies in {covers} gaps"
        if covers and tick in run_times:
            yield f"{tick_text(job.job_id, tick)}: has a run and lies in a gap"
        if not covers and tick not in run_times and timers_due.get(RunKey(job.job_id, tick), tick) <= old_us:
            yield f"{tick_text(job.job_id, tick)}: {NOT_ACCOUNTED}"


def _gap_faults(gap: GapRecord, ticks: Sequence[int]) -> Iterator[str]:
    start, end = ticks_within(ticks, gap)
    if gap.count < 1:
        yield f"{_gap_text(gap)}: counts {gap.count} ticks"
    elif gap.reason is not GapReason.DST and end - start != gap.count:
        yield f"{_gap_text(gap)}: counts {gap.count} ticks, but there are {end - start}"


def _gap_text(gap: GapRecord) -> str:
    return f"{gap.reason} gap from {at(gap.first_us)} to {at(gap.last_us)}"
