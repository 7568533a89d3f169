"""Ticks of a job that changes.

An edit leaves its timer where it is as long as the ticks are the same, or moves it to the first one after now. Ticks of
a pause, and those that an edit or a deletion cuts off, will never become runs.
"""

from datetime import datetime, timedelta
from functools import lru_cache, partial
from typing import NamedTuple

from evertick.contract.job import JobSpec, timing_of
from evertick.domain.errors import Fault, InvalidFields, InvalidInput
from evertick.domain.ids import Prefix, format_id
from evertick.domain.job.definition import Definition, define
from evertick.domain.job.timing import Timing, resolve
from evertick.domain.misfire import TickGap, apply_missed_window, swallowed
from evertick.domain.policies import MissedWindow
from evertick.domain.rule import OneOff, Rule, from_canonical
from evertick.domain.schedule.instants import from_us, to_us
from evertick.domain.schedule.spec import Soon
from evertick.domain.schedule.ticks import END_US
from evertick.domain.stable_hash import due_at, jitter_offset
from evertick.domain.states import GapReason
from evertick.store.jobs.jobs import LockedJob
from evertick.usecases.context import TenantContext
from evertick.usecases.jobs.rows import read_stored
from evertick.usecases.transactions import Computed, compute_outside

rule_from = lru_cache(maxsize=1024)(from_canonical)


class Reschedule(NamedTuple):
    """When the edited job fires: by which rule, and when next; a `fire_at` of None: only triggers run it.

    `is_rescheduled`: its ticks are others than before. `gaps` are those that the clocks jump over before the next.
    """

    digest: bytes
    canonical: str
    fire_at: datetime | None
    due_at: datetime | None
    is_rescheduled: bool
    gaps: tuple[TickGap, ...] = ()


def reschedule(job: LockedJob, spec: JobSpec, shortest: timedelta) -> Reschedule:
    """Decide on a locked job. InvalidFields says why the new schedule cannot be used."""
    old, new = timing_of(read_stored(job.spec)), timing_of(spec)
    if _ticks(old) == _ticks(new):
        # Not defined anew: its one-off may be past, its last tick fired, and neither is wrong now.
        resolved = resolve(new, format_id(Prefix.JOB, job.job_id), job.created_at)
        due = None if job.fire_at is None else due_at(job.fire_at, jitter_offset(job.job_id, resolved.jitter))
        return Reschedule(resolved.digest, resolved.canonical, job.fire_at, due, is_rescheduled=False)
    # A delay counts from the edit; all other schedules keep the phase that the job was created with.
    is_delay = _is_delay(new, job)
    made = define(new, job.job_id, job.now_at if is_delay else job.created_at, job.now_at, shortest)
    if job.fire_at is not None and _says_the_same(made, job):
        due = due_at(job.fire_at, jitter_of(job.job_id, made.rule))
        return Reschedule(made.digest, made.canonical, job.fire_at, due, is_rescheduled=False)
    if made.first_fire_at is None:
        return Reschedule(made.digest, made.canonical, None, None, is_rescheduled=True)
    if made.first_fire_at <= job.now_at and not is_delay:
        raise InvalidFields([Fault("/schedule", f"{spec.schedule!r} is past, and an edit is never retroactive")])
    gaps = swallowed(made.rule, to_us(job.now_at), to_us(made.first_fire_at))
    return Reschedule(
        made.digest, made.canonical, made.first_fire_at, made.first_due_at, is_rescheduled=True, gaps=gaps
    )


def _is_delay(timing: Timing, job: LockedJob) -> bool:
    try:
        return isinstance(resolve(timing, "", job.created_at).schedule.spec, Soon)
    except InvalidInput:
        return False  # defining it says what is wrong


def _ticks(timing: Timing) -> tuple[object, ...]:
    return timing[:6]  # schedule, zone, what it makes of changes of the clocks, and the window


def _says_the_same(made: Definition, job: LockedJob) -> bool:
    """Whether another text has the same ticks as the timer. All one-offs share a rule, so their ticks are compared."""
    if isinstance(made.rule.spec, OneOff):
        return made.first_fire_at == job.fire_at
    return made.canonical == job.canonical


def jitter_of(job_id: int, rule: Rule) -> timedelta:
    """The job's own offset."""
    return jitter_offset(job_id, timedelta(microseconds=rule.jitter_us))


async def unfired(tenant: TenantContext, job: LockedJob) -> tuple[TickGap, ...]:
    """The ticks up to now that the job's timer has not fired, as the one gap that they become.

    Their fire times decide, though jitter would have made some of them due later.
    """
    if job.fire_at is None or job.fire_at > job.now_at:
        return ()
    key = "unfired", job.job_id, job.canonical, job.fire_at, job.status
    return await compute_outside(tenant.tenant_id, key, partial(_unfired, job, job.fire_at), job.now_at)


def _unfired(job: LockedJob, fire_at: datetime) -> Computed[tuple[TickGap, ...]]:
    reason = GapReason.PAUSED if job.status == "paused" else GapReason.MISSED
    fire_us, end_us = to_us(fire_at), to_us(job.now_at) + 1
    try:
        rule = rule_from(job.canonical)
        gaps = apply_missed_window(rule.ticks(), fire_us, end_us, MissedWindow.SKIP, max_missed=1, reason=reason).gaps
        next_us = rule.ticks().next(end_us - 1)
        skipped = (gap.first_us for gap in swallowed(rule, end_us, next_us))
        until_us = min([END_US if next_us is None else next_us, *skipped])
    except (ValueError, KeyError, TypeError):
        # Its zone is gone, it has become too costly, or the row is corrupt: it must be possible to repair the job, and
        # one tick is known.
        return Computed((TickGap(fire_us, fire_us, 1, reason),))
    return Computed(gaps, from_us(until_us))
