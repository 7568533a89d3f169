"""Runs and attempts that are there twice, out of order or after the end."""

from dataclasses import replace

from evertick.domain.states import Outcome, RunReason
from faults.checkers.selftest.corruption import Pick, breaks, deferred_once, retried_once
from faults.checkers.selftest.edits import edit_attempt, edit_job, edit_outcome, swap_run
from faults.checkers.selftest.worlds import FIRST, SECOND, Life, World, run_of


@breaks("C2")
def an_earlier_outcome_is_gone(world: World, pick: Pick) -> World:
    return edit_attempt(world, pick(world.runs(retried_once)), 0, outcome=None)


@breaks("C2")
def a_run_is_there_twice(world: World, pick: Pick) -> World:
    run = pick(world.runs())
    return swap_run(world, run, run, run)


@breaks("C2")
def a_second_run_has_rows_of_its_own(world: World, pick: Pick) -> World:
    run = pick(world.runs())
    other = run_of(run.job_id, run.fire_us, Life((), Outcome.CANCELLED, run.reason))
    other = replace(other, attempts=(replace(other.attempts[0], lane_id=99),))
    return swap_run(world, run, run, other)


@breaks("C2")
def a_run_stands_with_another_job(world: World, pick: Pick) -> World:
    run = run_of(99, FIRST, Life((), Outcome.FAILED, RunReason.MANUAL))
    job = pick(world.jobs)
    return edit_job(world, job, runs=(*job.runs, run))


@breaks("C2")
def an_attempt_has_two_outcomes(world: World, pick: Pick) -> World:
    run = pick(world.runs(lambda run: bool(run.attempts)))
    return swap_run(world, run, replace(run, attempts=(*run.attempts, run.attempts[-1])))


@breaks("C2")
def a_place_is_taken_twice(world: World, pick: Pick) -> World:
    job = pick([job for job in world.jobs if job.job_id == 1])
    run = run_of(1, FIRST + 7 * SECOND, Life((), Outcome.FAILED, RunReason.MANUAL))
    taken = pick([run for run in job.runs if run.attempts]).attempts[0].seq
    run = replace(run, attempts=(replace(run.attempts[0], seq=taken),))
    return edit_job(world, job, runs=(*job.runs, run))


@breaks("C2")
def a_number_is_skipped(world: World, pick: Pick) -> World:
    return edit_attempt(world, pick(world.runs(retried_once)), 1, attempt=3)


@breaks("C2")
def numbers_begin_at_two(world: World, pick: Pick) -> World:
    return edit_attempt(world, pick(world.runs(lambda run: len(run.attempts) == 1)), 0, attempt=2)


@breaks("C2")
def a_number_repeats_after_a_failure(world: World, pick: Pick) -> World:
    return edit_attempt(world, pick(world.runs(retried_once)), 1, attempt=1)


@breaks("C2")
def a_deferral_burned_its_number(world: World, pick: Pick) -> World:
    return edit_attempt(world, pick(world.runs(deferred_once)), 1, attempt=2)


@breaks("C2")
def an_attempt_follows_a_success(world: World, pick: Pick) -> World:
    return edit_outcome(world, pick(world.runs(retried_once)), 0, result=Outcome.SUCCESS)


@breaks("C2")
def an_attempt_follows_the_final_one(world: World, pick: Pick) -> World:
    return edit_outcome(world, pick(world.runs(retried_once)), 0, is_final=True)


@breaks("C2")
def a_run_has_two_spec_versions(world: World, pick: Pick) -> World:
    return edit_attempt(world, pick(world.runs(lambda run: len(run.attempts) > 1)), 1, spec_version=2)


@breaks("C2", "C4")
def seq_shrinks_with_the_attempts(world: World, pick: Pick) -> World:
    run = pick(world.runs(retried_once))
    return edit_attempt(world, run, 0, seq=run.attempts[1].seq + SECOND)


@breaks("C2", "C4")
def seq_stands_still_in_another_lane(world: World, pick: Pick) -> World:
    run = pick(world.runs(retried_once))
    return edit_attempt(world, run, 1, seq=run.attempts[0].seq, lane_id=99)
