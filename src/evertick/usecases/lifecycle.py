"""Pausing, resuming and deleting jobs. Whatever has been fired goes on; from the commit on nothing new is."""

from collections.abc import Collection
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

from evertick.contract.job import Job, JobStatus
from evertick.contract.jobs import Missed
from evertick.domain.misfire import Gap, apply_missed_window
from evertick.domain.policies import MissedWindow
from evertick.domain.schedule.instants import from_us, to_us
from evertick.domain.states import GapReason
from evertick.store import jobs
from evertick.store.database import Session
from evertick.store.jobs import LockedJob
from evertick.usecases.transactions import Computed, compute_outside
from evertick.usecases.context import Tenant, job_key
from evertick.usecases.jobs.edit import locked
from evertick.usecases.jobs.reading import seen
from evertick.usecases.jobs.unfired_ticks import jitter_us, rule_from, swallowed, unfired
from evertick.usecases.jobs.views import read_stored

MAX_CAUGHT_UP = 1000
"""Ticks of a pause that `run_all` runs at most, whatever the job's `max_missed`: each is a timer from the start."""


async def pause(tenant: Tenant, job_id: str, reason: str | None = None) -> Job:
    """Let no tick of a job fire until it is resumed. A paused one stays as it is."""
    key = job_key(job_id)

    async def work(connection: Session) -> Job:
        job = await locked(connection, tenant, key)
        if job.status != JobStatus.PAUSED:
            await jobs.pause(connection, key, reason)
        return await seen(connection, tenant, key)

    return await tenant.transact(work)


async def resume(tenant: Tenant, job_id: str, missed: Missed = Missed.SKIP) -> Job:
    """Let a paused job fire again, and settle the ticks that have passed. An active one stays as it is."""
    key = job_key(job_id)

    async def work(connection: Session) -> Job:
        job = await locked(connection, tenant, key)
        if job.status == JobStatus.PAUSED:
            await jobs.resume(connection, key, job.now_at)
            if job.fire_at is not None:
                question = "resume", job.job_id, job.spec_version, job.canonical, job.fire_at
                answer = partial(_settlement, job, job.fire_at, missed)
                await _settle(connection, job, await compute_outside(tenant, question, answer, job.now_at))
        return await seen(connection, tenant, key)

    resumed = await tenant.transact(work)
    tenant.notify([key])
    return resumed


async def delete(tenant: Tenant, job_id: str, *, expected_version: int | Collection[int] | None = None) -> None:
    """Delete a job. Its history stays, its name is free, and runs that wait for a timer are cancelled."""
    key = job_key(job_id)

    async def work(connection: Session) -> None:
        job = await locked(connection, tenant, key, expected_version, to_delete=True)
        await jobs.forget_ahead(connection, key, job.now_at)
        await jobs.add_gaps(connection, key, job.spec_version, await unfired(tenant, job))
        await jobs.delete(connection, key, job.now_at)

    await tenant.transact(work)


class Settlement(NamedTuple):
    """What a resume makes of ticks that have passed: some run, the others are gaps. A `next_at` of None: the end."""

    run_ats: tuple[datetime, ...]
    gaps: tuple[Gap, ...]
    next_at: datetime | None
    due_at: datetime | None


def _settlement(job: LockedJob, fire_at: datetime, missed: Missed) -> Computed[Settlement]:
    settlement = settlement_of(job, fire_at, missed)
    return Computed(settlement, settlement.next_at)  # until its next tick has passed, too


def settlement_of(job: LockedJob, fire_at: datetime, missed: Missed) -> Settlement:
    """Settle a paused job whose timer stands at `fire_at`, the first tick that the pause can have swallowed.

    A tick has passed when its fire time has, though jitter would have made it due later.
    """
    rule = rule_from(job.canonical)
    ticks = rule.ticks()
    first_us, passed_us = to_us(fire_at), to_us(job.now_at)
    offset = timedelta(microseconds=jitter_us(job.job_id, rule))
    if first_us > passed_us:
        return Settlement((), (), fire_at, fire_at + offset)
    max_missed = min(read_stored(job.spec).max_missed, MAX_CAUGHT_UP)
    settled = apply_missed_window(
        ticks,
        first_us,
        passed_us + 1,
        MissedWindow[missed.name],
        max_missed=max_missed,
        most_fires=MAX_CAUGHT_UP,
        reason=GapReason.PAUSED,
    )
    next_us = ticks.next(passed_us)
    next_at = None if next_us is None else from_us(next_us)
    return Settlement(
        run_ats=tuple(from_us(fire.fire_us) for fire in settled.fires),
        gaps=(*settled.gaps, *swallowed(rule, first_us, next_us)),
        next_at=next_at,
        due_at=None if next_at is None else next_at + offset,
    )


async def _settle(connection: Session, job: LockedJob, settlement: Settlement) -> None:
    await jobs.add_gaps(connection, job.job_id, job.spec_version, settlement.gaps)
    if settlement.run_ats:
        await jobs.catch_up(connection, job, settlement.run_ats)
    if settlement.next_at is None or settlement.due_at is None:
        await jobs.drop_timer(connection, job.job_id, job.now_at, is_finished=True)
    else:
        await jobs.set_due(connection, job.job_id, settlement.next_at, settlement.due_at)
