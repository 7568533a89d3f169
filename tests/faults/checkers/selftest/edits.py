"""Changes to one thing in a world, the rest as it was."""

from dataclasses import replace
from typing import Any

from faults.checkers.history import Delivery, JobHistory, RunRecord
from faults.checkers.selftest.worlds import World


def swap_run(world: World, run: RunRecord, *instead: RunRecord) -> World:
    for job in world.jobs:
        if any(old is run for old in job.runs):
            runs = [new for old in job.runs for new in (instead if old is run else (old,))]
            return edit_job(world, job, runs=tuple(runs))
    raise LookupError(run)


def swap_delivery(world: World, delivery: Delivery, *instead: Delivery) -> World:
    log = [new for old in world.deliveries for new in (instead if old is delivery else (old,))]
    return replace(world, deliveries=tuple(log))


def edit_job(world: World, job: JobHistory, **changes: Any) -> World:
    return replace(world, jobs=tuple(replace(old, **changes) if old is job else old for old in world.jobs))


def edit_attempt(world: World, run: RunRecord, index: int, **changes: Any) -> World:
    """The receiver sees what really happens, so its log changes along."""
    attempts = list(run.attempts)
    old = attempts[index]
    new = attempts[index] = replace(old, **changes)
    log = tuple(
        replace(line, seq=new.seq, attempt=new.attempt) if (line.run_key, line.seq) == (run.key, old.seq) else line
        for line in world.deliveries
    )
    return replace(swap_run(world, run, replace(run, attempts=tuple(attempts))), deliveries=log)


def edit_outcome(world: World, run: RunRecord, index: int, **changes: Any) -> World:
    outcome = run.attempts[index].outcome
    assert outcome is not None
    return edit_attempt(world, run, index, outcome=replace(outcome, **changes))
