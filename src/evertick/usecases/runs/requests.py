"""Manual requests: run a job now, run a finished run again, cancel a run."""

from contextlib import suppress
from typing import assert_never

from msgspec import UNSET, UnsetType

from evertick.contract.broker_targets import check_templates, stored_broker_target
from evertick.domain.errors import Fault, InvalidFields, InvalidInput
from evertick.domain.gate import gate_of
from evertick.domain.ids import Prefix, RunKey, format_id, format_run_id
from evertick.domain.job.checks import Json, check_payload
from evertick.domain.job.faults import Faults
from evertick.domain.overlap import TriggerVerdict, judge_trigger
from evertick.domain.schedule.instants import from_us, to_us
from evertick.domain.schedule.text import is_one_off
from evertick.domain.states import FINAL_RUNS, RunReason
from evertick.domain.tracing import TraceContext
from evertick.runtime.run_views import status_of
from evertick.store.database import Session
from evertick.store.jobs import jobs, runs
from evertick.store.jobs.runs import RequestedRun, RunRow
from evertick.usecases.context import TenantContext, job_key
from evertick.usecases.errors import (
    JobNotFound,
    LetterNotFound,
    RunFinished,
    RunNotFound,
    RunUnfinished,
    TriggerRefused,
)
from evertick.usecases.jobs import lifecycle, reading
from evertick.usecases.jobs.rows import read_stored, write_payload
from evertick.usecases.runs.reading import run_key, run_rows

_CANCELLED = "cancelled by request"
_REPLACED = "replaced by a manual run"
MANUAL = "manual"
MAX_UNFINISHED = 10_001
"""More than `max_concurrent` can be."""


async def trigger(
    tenant: TenantContext,
    job_id: str,
    payload: "Json | UnsetType" = UNSET,
    trace: TraceContext | None = None,
    *,
    force: bool = False,
) -> str:
    """Run a job now, paused or not, and return the id of a run of its own. No tick is consumed.

    TriggerRefused: its policy allows no run beside those that are open now; a tick that fires at the same moment is not
    waited for. With `force` the policy does not count. Without a payload the run gets its job's. Its spans belong to
    the given trace.
    """
    key = job_key(job_id)
    has_payload = payload is not UNSET
    written = None
    if payload is not UNSET:
        faults = Faults()
        check_payload(payload, "/payload", faults)
        faults.raise_any()
        written = write_payload(payload)

    async def work(connection: Session) -> str:
        await _lock(connection, tenant, key)
        is_queued = not force and await _must_wait(connection, key)
        gate_id = await _own_gate(connection, tenant, key, payload)
        wanted = RequestedRun(RunReason.MANUAL, None, has_payload, written, gate_id, _text(trace), is_queued)
        return await _request(connection, key, wanted)

    return await tenant.change_job(key, work)


async def _must_wait(connection: Session, key: int) -> bool:
    """Whether a manual run of a locked job waits for room. If its policy says so, this ends the runs that are open."""
    spec = read_stored((await jobs.stored(connection, key)).spec)
    unfinished = await runs.unfinished(connection, key, MAX_UNFINISHED)
    verdict = judge_trigger(
        spec.concurrent_policy,
        spec.max_concurrent,
        open_runs=len(unfinished),
        queued_runs=sum(run.is_queued for run in unfinished),
        may_skip=spec.schedule.strip().lower() != MANUAL and spec.gate_fields.limit is None,
    )
    match verdict:
        case TriggerVerdict.START | TriggerVerdict.QUEUE:
            return verdict is TriggerVerdict.QUEUE
        case TriggerVerdict.REFUSE:
            raise TriggerRefused(format_run_id(key, to_us(unfinished[0].fire_at)), spec.concurrent_policy)
        case TriggerVerdict.REPLACE:
            keys = [RunKey(key, to_us(run.fire_at)) for run in unfinished]
            for each in keys:  # all timers before the first row in open_runs
                await runs.lock(connection, key, from_us(each.fire_at_us))
            for each in keys:
                await _replace(connection, each)
            return False
        case _:
            assert_never(verdict)


async def _replace(connection: Session, key: RunKey) -> None:
    """End a locked run, if it is not over. One whose attempt got its outcome meanwhile is read again."""
    is_over = False
    while not is_over:
        rows = await run_rows(connection, key)
        is_over = not rows or status_of(rows[-1].run) in FINAL_RUNS or await _end(connection, rows[-1].run, _REPLACED)


async def replay(tenant: TenantContext, run_id: str, trace: TraceContext | None = None) -> str:
    """Run a finished run again: its payload, by the job's current version. Removes its dead letter, if it has one."""
    key = run_key(run_id)

    async def work(connection: Session) -> str:
        await _lock(connection, tenant, key.job_id)
        rows = await run_rows(connection, key)
        if not rows:
            raise RunNotFound(run_id)
        status = status_of(rows[-1].run)
        if status not in FINAL_RUNS:
            raise RunUnfinished(run_id, status)
        await runs.take_dead_letter(connection, tenant.tenant_id, key.job_id, from_us(key.fire_at_us))
        return await _repeat(connection, key, rows[-1].run.spec_version, trace)

    return await tenant.change_job(key.job_id, work)


async def replay_letter(tenant: TenantContext, run_id: str, trace: TraceContext | None = None) -> str:
    """Run a dead letter's run again, and remove the letter. Its attempts may be pruned already."""
    key = run_key(run_id)

    async def work(connection: Session) -> str:
        await _lock(connection, tenant, key.job_id)
        spec_version = await runs.take_dead_letter(connection, tenant.tenant_id, key.job_id, from_us(key.fire_at_us))
        if spec_version is None:
            raise LetterNotFound(run_id)
        return await _repeat(connection, key, spec_version, trace)

    return await tenant.change_job(key.job_id, work)


async def cancel(tenant: TenantContext, run_id: str) -> None:
    """End a run: an open attempt is cancelled, one that waits for its time is withdrawn. RunFinished if it is over.

    Locks in the order job, timers, open_runs, outcomes: firing passes over what is locked here. A worker may record an
    outcome first; then the run is read again.
    """
    key = run_key(run_id)
    if not await jobs.owned(tenant.pool, tenant.tenant_id, key.job_id):
        raise RunNotFound(run_id)

    async def work(connection: Session) -> bool:
        await runs.lock(connection, key.job_id, from_us(key.fire_at_us))
        rows = await run_rows(connection, key)
        if not rows:
            raise RunNotFound(run_id)
        status = status_of(rows[-1].run)
        if status in FINAL_RUNS:
            raise RunFinished(run_id, status)
        return await _end(connection, rows[-1].run, _CANCELLED)

    while not await tenant.in_transaction(work):
        pass
    tenant.notify([key.job_id])  # another run may have waited behind this one


async def cancel_submitted(tenant: TenantContext, run_id: str) -> None:
    """End a run; a one-off whose time has not come has none yet, and is deleted."""
    key = run_key(run_id)
    try:
        await cancel(tenant, run_id)
    except RunNotFound:
        try:
            job = await reading.get(tenant, format_id(Prefix.JOB, key.job_id))
        except JobNotFound:
            raise RunNotFound(run_id) from None
        if not is_one_off(job.schedule) or job.next_run_at != from_us(key.fire_at_us):
            raise
        await lifecycle.delete(tenant, job.job_id)
        with suppress(RunNotFound, RunFinished):  # its time may have come meanwhile
            await cancel(tenant, run_id)


async def _end(connection: Session, latest: RunRow, error: str) -> bool:
    """End a run by its latest attempt. False: that got its outcome meanwhile."""
    if latest.seq is not None and latest.result is None:
        return await runs.cancel_attempt(connection, latest, error)
    return await runs.withdraw(connection, latest)


async def _lock(connection: Session, tenant: TenantContext, key: int) -> None:
    if not await jobs.lock(connection, tenant.tenant_id, key):
        raise JobNotFound(format_id(Prefix.JOB, key))


async def _own_gate(connection: Session, tenant: TenantContext, key: int, payload: "Json | UnsetType") -> int | None:
    """The gate of a manual run by its own payload; None: that of its version, if it has one.

    InvalidFields: the payload lacks what the job's key or its target names.
    """
    stored = await jobs.stored(connection, key)
    spec, given = read_stored(stored.spec), None if payload is UNSET else payload
    try:
        if payload is not UNSET or not stored.has_payload:  # that of the job was checked with it
            check_templates(stored_broker_target(spec.target), given)
        if payload is UNSET and stored.gate_id is not None:
            return None
        return gate_of(spec.gate_fields, tenant.tenant_id, key, given)
    except InvalidInput as refused:
        raise InvalidFields([Fault(f"/{refused.field}", refused.reason)]) from None


async def _repeat(connection: Session, key: RunKey, spec_version: int, trace: TraceContext | None) -> str:
    fire_at = from_us(key.fire_at_us)
    given = await runs.given(connection, key.job_id, fire_at, spec_version)
    wanted = RequestedRun(RunReason.REPLAY, fire_at, True, *given, _text(trace))
    return await _request(connection, key.job_id, wanted)


async def _request(connection: Session, key: int, wanted: RequestedRun) -> str:
    fire_at = None
    while fire_at is None:  # a thousand runs by hand within a millisecond: the next one has room
        fire_at = await runs.request(connection, key, wanted)
    return format_run_id(key, to_us(fire_at))


def _text(trace: TraceContext | None) -> str | None:
    return None if trace is None else str(trace)
