"""Ticks that will never become runs: those of a pause, and those that an edit or a deletion cuts off."""

from datetime import datetime, timedelta
from functools import lru_cache, partial

from evertick.domain.jitter import jitter_offset
from evertick.domain.misfire import Gap, apply_missed_window
from evertick.domain.policies import MissedWindow
from evertick.domain.rule import Rule, from_canonical
from evertick.domain.schedule.instants import SECOND_US, duration_us, from_us, to_us
from evertick.domain.schedule.ticks import END_US
from evertick.domain.states import GapReason
from evertick.store.jobs import LockedJob
from evertick.usecases.context import Tenant
from evertick.usecases.transactions import Computed, compute_outside

rule_from = lru_cache(maxsize=1024)(from_canonical)


def jitter_us(job_id: int, rule: Rule) -> int:
    """The job's own offset."""
    return duration_us(jitter_offset(job_id, timedelta(microseconds=rule.jitter_us)))


async def unfired(tenant: Tenant, job: LockedJob) -> tuple[Gap, ...]:
    """The ticks up to now that the job's timer has not fired, as the one gap that they become.

    Their fire times decide, though jitter would have made some of them due later.
    """
    if job.fire_at is None or job.fire_at > job.now_at:
        return ()
    key = "unfired", job.job_id, job.canonical, job.fire_at, job.status
    return await compute_outside(tenant.tenant_id, key, partial(_unfired, job, job.fire_at), job.now_at)


def _unfired(job: LockedJob, fire_at: datetime) -> Computed[tuple[Gap, ...]]:
    reason = GapReason.PAUSED if job.status == "paused" else GapReason.MISSED
    fire_us, end_us = to_us(fire_at), to_us(job.now_at) + 1
    try:
        rule = rule_from(job.canonical)
        gaps = apply_missed_window(rule.ticks(), fire_us, end_us, MissedWindow.SKIP, max_missed=1, reason=reason).gaps
        next_us = rule.ticks().next(end_us - 1)
        following = [
            END_US if next_us is None else next_us,
            *(gap.first_us for gap in swallowed(rule, end_us, next_us)),
        ]
    except (ValueError, KeyError, TypeError):
        # Its zone is gone, it has become too costly, or the row is corrupt: it must be possible to repair the job, and
        # one tick is known.
        return Computed((Gap(fire_us, fire_us, 1, reason),))
    return Computed(gaps, from_us(min(following)))


def swallowed(rule: Rule, after_us: int, next_us: int | None) -> tuple[Gap, ...]:
    """Ticks that the clocks jump over, and no policy makes up for, between an instant and the next tick or the end."""
    if rule.timezone == "UTC":
        return ()
    lost = rule.ticks().lost(after_us + 1, END_US if next_us is None else next_us + 1)
    return tuple(Gap(jump.at * SECOND_US, jump.at * SECOND_US, jump.ticks, GapReason.DST) for jump in lost)
