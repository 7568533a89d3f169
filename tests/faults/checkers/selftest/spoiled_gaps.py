"""Gaps that are missing, miscounted or in the way of something else."""

from dataclasses import replace

from evertick.domain.states import GapReason
from faults.checkers.history import GapRecord, JobHistory
from faults.checkers.selftest.corruption import Pick, breaks, succeeded
from faults.checkers.selftest.edits import edit_job
from faults.checkers.selftest.worlds import FIRST, SECOND, World


def _a_gap(world: World, pick: Pick) -> tuple[JobHistory, GapRecord]:
    return pick([(job, gap) for job in world.jobs for gap in job.gaps if gap.reason is not GapReason.DST])


@breaks("C1", "C3")
def a_gap_is_gone(world: World, pick: Pick) -> World:
    job, gap = _a_gap(world, pick)
    return edit_job(world, job, gaps=tuple(other for other in job.gaps if other is not gap))


@breaks("C3")
def a_gap_counts_wrong(world: World, pick: Pick) -> World:
    job, gap = _a_gap(world, pick)
    wrong = replace(gap, count=gap.count + pick([-1, 1]))
    return edit_job(world, job, gaps=tuple(wrong if other is gap else other for other in job.gaps))


@breaks("C1", "C3")
def a_gap_ends_too_soon(world: World, pick: Pick) -> World:
    job, gap = _a_gap(world, pick)
    short = replace(gap, last_us=gap.last_us - 1)
    return edit_job(world, job, gaps=tuple(short if other is gap else other for other in job.gaps))


@breaks("C3")
def a_gap_counts_nothing(world: World, pick: Pick) -> World:
    job = pick(world.jobs)
    empty = GapRecord(FIRST + SECOND, FIRST + SECOND, 0, pick(list(GapReason)))
    return edit_job(world, job, gaps=(*job.gaps, empty))


@breaks("C3")
def two_gaps_hold_one_tick(world: World, pick: Pick) -> World:
    job, gap = _a_gap(world, pick)
    return edit_job(world, job, gaps=(*job.gaps, GapRecord(gap.last_us, gap.last_us, 1, GapReason.PAUSED)))


@breaks("C3")
def a_tick_has_a_run_and_a_gap(world: World, pick: Pick) -> World:
    run = pick(world.runs(succeeded))
    [job] = [job for job in world.jobs if job.job_id == run.job_id]
    return edit_job(world, job, gaps=(*job.gaps, GapRecord(run.fire_us, run.fire_us, 1, GapReason.OVERLAP)))
