"""Gives many jobs the jitter that the forecast advised, or takes it back, in batches: for janitors, and for the command
line on a database.

A batch is one transaction: it locks the smear, the next jobs that nobody else has locked, and their timers; writes the
next version of each, which differs in its jitter alone, so that its ticks and its timer's fire time stay; notes what
has become of each job; and records the change of each in the audit log. So whoever goes on after a crash finds each job
done or not. A job that was edited since the smear began, or that must not have the jitter any more, is left alone, and
one that was edited since the smear changed it is not changed back. A batch that fails is tried again after a while, and
other smears come first.

Jitter is not taken back between a tick's fire time and its due time: the tick would be late or missed. Such a job is
tried again a moment later.
"""

import dataclasses
import json
import logging
from collections.abc import Sequence
from datetime import timedelta
from functools import lru_cache
from typing import NamedTuple

from evertick.domain.errors import EvertickError
from evertick.domain.forecast.advice import smearable
from evertick.domain.ids import Prefix, format_id
from evertick.domain.rule import Rule, from_canonical
from evertick.domain.schedule.instants import SECOND_US
from evertick.domain.stable_hash import due_at, jitter_offset
from evertick.domain.states import SmearedState
from evertick.runtime.logs import tenant_fields
from evertick.store.database import Pool, Session, is_transient
from evertick.store.engine import lanes
from evertick.store.jobs import jobs, references, smears
from evertick.store.jobs.smears import LockedSmearJob, NewVersion, TakenSmear
from evertick.store.tenants import audit
from evertick.store.tenants.audit import AuditRecord

logger = logging.getLogger("evertick")

BATCH_SIZE = 200
LOCKED_SECONDS = 1.0
"""Until jobs are tried again that others had locked, or that have a tick between its fire time and its due time."""
FAILED_SECONDS = 10.0
APPLIED, TAKEN_BACK = "smear_job", "undo_smear_job"
"""How the audit log calls the change of a job."""


class RuleMissing(EvertickError):  # noqa: N818 - says what is wrong
    """A rule was added and is still missing."""


_smearable = lru_cache(maxsize=1024)(smearable)


class SmearBatch(NamedTuple):
    """What a batch did. `is_done`: its smear is over."""

    smear_id: int
    changed: int
    is_done: bool


async def smear_batch(pool: Pool) -> SmearBatch | None:
    """One batch of the smear that is due first. None: none is due."""
    smear: TakenSmear | None = None
    try:
        async with pool.acquire() as connection, connection.transaction():
            smear = await smears.take(connection)
            return None if smear is None else await _batch(connection, smear)
    except Exception as error:
        if smear is None or is_transient(error):
            raise
        smear_id = format_id(Prefix.SMEAR, smear.smear_id)
        fields = {"smear_id": smear_id} | tenant_fields(smear.tenant_id)
        logger.warning("a batch of smear %s failed: %r", smear_id, error, extra=fields)
        await smears.postpone(pool, smear.smear_id, FAILED_SECONDS)
        return SmearBatch(smear.smear_id, 0, is_done=False)


async def _batch(connection: Session, smear: TakenSmear) -> SmearBatch:
    open_state = SmearedState.CHANGED if smear.is_undone else SmearedState.WAITING
    found = await smears.next_jobs(connection, smear.smear_id, smear.reached_job_id, open_state, BATCH_SIZE)
    free = await jobs.lock_available(connection, found) if found else []
    # In one statement after the other: an edit that ended meanwhile is visible.
    locked = await smears.locked(connection, smear.smear_id, free) if free else []
    delayed = {job.job_id for job in locked if smear.is_undone and job.is_delayed}
    changes = [change for job in locked if job.job_id not in delayed and (change := _change(smear, job)) is not None]
    if changes:
        await _write(connection, smear, changes)
    state = SmearedState.KEPT if smear.is_undone else SmearedState.SKIPPED
    if left := set(free) - delayed - {change.version.job_id for change in changes}:
        await smears.leave(connection, smear.smear_id, sorted(left), state)
    if missing := set(found) - set(free):  # others have them locked, or they are gone
        await smears.leave_gone(connection, smear.smear_id, sorted(missing), state)
    # After the last it begins anew, with those that had to wait.
    reached, wait = (found[-1], 0.0) if len(found) == BATCH_SIZE else (0, LOCKED_SECONDS)
    is_done = await smears.advance(connection, smear.smear_id, reached, open_state, wait)
    return SmearBatch(smear.smear_id, len(changes), is_done)


class _Change(NamedTuple):
    version: NewVersion
    canonical: str


def _change(smear: TakenSmear, job: LockedSmearJob) -> _Change | None:
    """The next version of a job; None if it must stay as it is."""
    if job.is_deleted or job.fire_at is None:
        return None
    if job.known_version is not None and job.spec_version != job.known_version:
        return None  # it was edited since
    if smear.is_undone:
        jitter_s, rule = 0, _readable(job.canonical)
    else:
        jitter_s = smear.jitter_seconds
        rule = None if job.is_opted_out else _smearable(job.canonical, jitter_s)
    if rule is None:
        return None
    changed = dataclasses.replace(rule, jitter_us=jitter_s * SECOND_US)
    due = due_at(job.fire_at, jitter_offset(job.job_id, timedelta(seconds=jitter_s)))
    version = NewVersion(job.job_id, _spec_with(job.spec, jitter_s), changed.digest(), due)
    return _Change(version, changed.canonical())


def _readable(canonical: str) -> Rule | None:
    try:
        return from_canonical(canonical)
    except (ValueError, KeyError, TypeError):
        return None  # its zone is gone, or the row is corrupt


def _spec_with(spec: str, jitter_s: int) -> str:
    """A stored specification with another jitter; none is left out, as any default is."""
    fields = json.loads(spec)
    fields.pop("jitter_seconds", None)
    if jitter_s:
        fields["jitter_seconds"] = jitter_s
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))


async def _write(connection: Session, smear: TakenSmear, changes: Sequence[_Change]) -> None:
    state = SmearedState.UNDONE if smear.is_undone else SmearedState.CHANGED
    await references.add_rules(connection, {change.version.digest: change.canonical for change in changes})
    versions = [change.version for change in changes]
    now_at = await lanes.clock(connection)
    written = await smears.write(connection, smear.smear_id, versions, state, now_at)
    if written != len(versions):
        raise RuleMissing(f"of {len(versions)} jobs {written} were written: a rule that was added is missing")
    action = TAKEN_BACK if smear.is_undone else APPLIED
    subjects = [format_id(Prefix.JOB, version.job_id) for version in versions]
    await audit.record_all(
        connection, [AuditRecord(smear.tenant_id, smear.actor, action, subject, None) for subject in subjects]
    )
