"""Where a job's lost timer belongs: a pure decision from the job's rule and what is known of its ticks."""

import logging
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

import msgspec

from evertick.contract.job import timing_of
from evertick.contract.job_reading import read_spec
from evertick.domain.ids import Prefix, format_id
from evertick.domain.job.timing import resolve_alone
from evertick.domain.rule import OneOff, from_canonical
from evertick.domain.schedule.instants import EPOCH_AT, from_us, to_us
from evertick.domain.stable_hash import due_at, jitter_offset
from evertick.store.lost_timers import Healing, Timerless

logger = logging.getLogger("evertick.janitor")


def repair_all(jobs: Iterable[Timerless]) -> Iterator[Healing]:
    """Decide on each. A job whose rule or spec cannot be read is left as it is, and logged."""
    for job in jobs:
        try:
            yield repair(job)
        except Exception as error:  # noqa: BLE001 - a corrupt row must not stop its neighbours
            name = format_id(Prefix.JOB, job.job_id)
            logger.error("%s has lost its timer and cannot be read: %s", name, error)  # noqa: TRY400 - the row is at fault


def repair(job: Timerless) -> Healing:
    """The tick after the last one that is accounted for, so that those in between are treated as any missed ones.

    Nothing is older than the spec, and what history has forgotten is not brought up again.
    """
    rule = from_canonical(job.canonical)
    if isinstance(rule.spec, OneOff):
        fire_at = only_tick(job.job_id, job.spec, job.created_at) if job.known_at is None else None
    else:
        since_at = max(at for at in (job.known_at, job.effective_at, job.forgotten_at) if at is not None)
        next_us = rule.ticks().next(to_us(since_at))
        fire_at = None if next_us is None else from_us(next_us)
    if fire_at is None:
        return Healing(job.job_id, None, None)
    jitter = jitter_offset(job.job_id, timedelta(microseconds=rule.jitter_us))
    return Healing(job.job_id, fire_at, due_at(fire_at, jitter))


def only_tick(job_id: int, spec: str, created_at: datetime) -> datetime | None:
    """A one-off's instant is in its timer alone, and has to be read from its text again."""
    timing = timing_of(read_spec(msgspec.json.decode(spec)))
    resolved = resolve_alone(timing, format_id(Prefix.JOB, job_id), created_at)
    return resolved.schedule.next(EPOCH_AT)
