"""Pausing, resuming and deleting jobs. Runs that were fired continue; after the commit nothing new fires."""

from collections.abc import Collection
from datetime import datetime
from functools import partial
from typing import NamedTuple

from evertick.contract.job import Job
from evertick.domain.misfire import TickGap, apply_missed_window, swallowed
from evertick.domain.policies import Missed, MissedWindow
from evertick.domain.schedule.instants import from_us, to_us
from evertick.domain.states import GapReason, JobStatus
from evertick.runtime import background
from evertick.store.database import Session
from evertick.store.jobs import jobs
from evertick.store.jobs.jobs import LockedJob
from evertick.usecases.context import TenantContext, job_key
from evertick.usecases.jobs.edit import locked
from evertick.usecases.jobs.reading import read_job
from evertick.usecases.jobs.rescheduling import jitter_of, rule_from, unfired
from evertick.usecases.jobs.rows import read_stored
from evertick.usecases.transactions import Computed, compute_outside

MAX_CAUGHT_UP = 1000
"""Ticks of a pause that `run_all` runs at most, whatever the job's `max_missed`: each is a timer from the start."""


async def pause(tenant: TenantContext, job_id: str, reason: str | None = None) -> Job:
    """Let no tick of a job fire until it is resumed. A paused one stays as it is."""
    key = job_key(job_id)

    async def work(connection: Session) -> Job:
        job = await locked(connection, tenant, key)
        if job.status != JobStatus.PAUSED:
            await jobs.pause(connection, key, reason)
        return await read_job(connection, tenant, key)

    return await tenant.in_transaction(work)


async def resume(tenant: TenantContext, job_id: str, missed: Missed = Missed.SKIP) -> Job:
    """Let a paused job fire again, and decide about the ticks that have passed. An active one stays as it is."""
    key = job_key(job_id)

    async def work(connection: Session) -> Job:
        job = await locked(connection, tenant, key)
        if job.status == JobStatus.PAUSED:
            await jobs.resume(connection, key, job.now_at)
            if job.fire_at is not None:
                plan_key = "resume", job.job_id, job.spec_version, job.canonical, job.fire_at
                compute = partial(_computed_plan, job, job.fire_at, missed)
                plan = await compute_outside(tenant.tenant_id, plan_key, compute, job.now_at)
                await _apply(connection, job, plan)
        return await read_job(connection, tenant, key)

    return await tenant.change_job(key, work)


class ResumeChoice(NamedTuple):
    """What a resume would do now: how many runs it would start, and how many ticks become gaps."""

    missed: Missed
    runs: int
    skipped: int


async def resume_choices(tenant: TenantContext, job_id: str) -> tuple[ResumeChoice, ...]:
    """What each choice for the missed ticks of a paused job would do now; nothing if its rule cannot be used."""
    key = job_key(job_id)

    async def work(connection: Session) -> LockedJob:
        return await locked(connection, tenant, key)

    job = await tenant.in_transaction(work)
    try:
        return await background.run(tenant.tenant_id, partial(_choices, job))
    except (ValueError, KeyError, TypeError):  # as in `rescheduling`: its zone is gone, or it has become too costly
        return ()


def _choices(job: LockedJob) -> tuple[ResumeChoice, ...]:
    if job.fire_at is None:
        return tuple(ResumeChoice(missed, 0, 0) for missed in Missed)
    plans = [(missed, plan_resume(job, job.fire_at, missed)) for missed in Missed]
    return tuple(ResumeChoice(missed, len(plan.run_ats), sum(gap.count for gap in plan.gaps)) for missed, plan in plans)


async def delete(tenant: TenantContext, job_id: str, *, expected_version: int | Collection[int] | None = None) -> None:
    """Delete a job. Its history stays, its name is free, and runs that wait for a timer are cancelled."""
    key = job_key(job_id)

    async def work(connection: Session) -> None:
        job = await locked(connection, tenant, key, expected_version, to_delete=True)
        await jobs.forget_ahead(connection, key, job.now_at)
        await jobs.add_gaps(connection, key, job.spec_version, await unfired(tenant, job))
        await jobs.delete(connection, key, job.now_at)

    await tenant.in_transaction(work)


class ResumePlan(NamedTuple):
    """What a resume makes of ticks that have passed: some run, the others are gaps. A `next_at` of None: the end."""

    run_ats: tuple[datetime, ...]
    gaps: tuple[TickGap, ...]
    next_at: datetime | None
    due_at: datetime | None


def _computed_plan(job: LockedJob, fire_at: datetime, missed: Missed) -> Computed[ResumePlan]:
    plan = plan_resume(job, fire_at, missed)
    return Computed(plan, plan.next_at)  # until its next tick has passed, too


def plan_resume(job: LockedJob, fire_at: datetime, missed: Missed) -> ResumePlan:
    """Decide about the ticks of a pause. The job's timer is at `fire_at`, the first tick that was not fired.

    A tick has passed when its fire time has, though jitter would have made it due later.
    """
    rule = rule_from(job.canonical)
    ticks = rule.ticks()
    first_us, passed_us = to_us(fire_at), to_us(job.now_at)
    offset = jitter_of(job.job_id, rule)
    if first_us > passed_us:
        return ResumePlan((), (), fire_at, fire_at + offset)
    max_missed = min(read_stored(job.spec).max_missed, MAX_CAUGHT_UP)
    settled = apply_missed_window(
        ticks,
        first_us,
        passed_us + 1,
        MissedWindow[missed.name],
        max_missed=max_missed,
        max_fires=MAX_CAUGHT_UP,
        reason=GapReason.PAUSED,
    )
    next_us = ticks.next(passed_us)
    next_at = None if next_us is None else from_us(next_us)
    return ResumePlan(
        run_ats=tuple(from_us(fire.fire_us) for fire in settled.fires),
        gaps=(*settled.gaps, *swallowed(rule, first_us, next_us)),
        next_at=next_at,
        due_at=None if next_at is None else next_at + offset,
    )


async def _apply(connection: Session, job: LockedJob, plan: ResumePlan) -> None:
    await jobs.add_gaps(connection, job.job_id, job.spec_version, plan.gaps)
    if plan.run_ats:
        await jobs.catch_up(connection, job, plan.run_ats)
    if plan.next_at is None or plan.due_at is None:
        await jobs.drop_timer(connection, job.job_id, job.now_at, is_finished=True)
    else:
        await jobs.set_due(connection, job.job_id, plan.next_at, plan.due_at)
