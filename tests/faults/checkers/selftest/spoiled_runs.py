"""Runs that are missing, late, foreign or never end."""

from dataclasses import replace

from evertick.domain.states import Outcome, RunReason, RunStatus
from faults.checkers.selftest.corruption import Pick, breaks, ends_as, retried_once, succeeded
from faults.checkers.selftest.edits import edit_attempt, edit_job, edit_outcome, swap_run
from faults.checkers.selftest.worlds import FIRST, SECOND, START_BOUND, Life, World, run_of


@breaks("C1", "C3", "C4")
def a_run_is_gone(world: World, pick: Pick) -> World:
    return swap_run(world, pick(world.runs(succeeded)))


@breaks("C1")
def a_run_starts_late(world: World, pick: Pick) -> World:
    run = pick(world.runs(lambda run: ends_as(run, Outcome.SUCCESS) and run.is_scheduled))
    return edit_outcome(world, run, 0, started_us=run.fire_us + START_BOUND + 1)


@breaks("C1")
def a_run_starts_early(world: World, pick: Pick) -> World:
    run = pick(world.runs(retried_once))
    return edit_outcome(world, run, 0, started_us=run.fire_us - 1)


@breaks("C1", "C3", "C4")
def a_run_has_another_fire_time(world: World, pick: Pick) -> World:
    run = pick(world.runs(succeeded))
    return swap_run(world, run, replace(run, fire_us=run.fire_us + 1))


@breaks("C1")
def a_run_is_foreign(world: World, pick: Pick) -> World:
    job = pick(world.jobs)
    foreign = run_of(job.job_id, FIRST + 11 * SECOND, Life((), Outcome.FAILED, pick(list(RunReason)[:3])))
    return edit_job(world, job, runs=(*job.runs, foreign))


@breaks("C1", "C3")
def the_last_outcome_is_gone(world: World, pick: Pick) -> World:
    return edit_attempt(world, pick(world.runs(succeeded)), -1, outcome=None)


@breaks("C1", "C3")
def the_retry_got_lost(world: World, pick: Pick) -> World:
    run = pick(world.runs(lambda run: run.status is RunStatus.DEAD and run.is_scheduled))
    return edit_outcome(world, run, -1, is_final=False)


@breaks("C1", "C3")
def a_withdrawn_run_was_only_forgotten(world: World, pick: Pick) -> World:
    run = pick(world.runs(lambda run: run.withdrawn_us is not None))
    return swap_run(world, run, replace(run, withdrawn_us=None))


@breaks("C3")
def a_manual_run_never_ends(world: World, pick: Pick) -> World:
    return edit_attempt(world, pick(world.runs(lambda run: not run.is_scheduled)), -1, outcome=None)
