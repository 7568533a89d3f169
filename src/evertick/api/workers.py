"""Workers that pull: lease by long poll, heartbeat, outcomes."""

import asyncio
from datetime import timedelta
from typing import Any

import msgspec

from evertick.api.answers import Answer, ok
from evertick.api.operations import Call, Section, Shown
from evertick.api.shapes import HeartbeatRequest, LeaseRequest, OutcomeReport, OutcomesRequest
from evertick.domain.access import KeyRole
from evertick.domain.states import Outcome
from evertick.roles.worker.run import Run
from evertick.usecases import pulling
from evertick.usecases.pulling import Given, Report

section = Section("Workers")

POLL_SECONDS = 1.0
"""A lost wake-up costs at most that long."""


MOST_SECONDS = 9.0
"""A poll is held no longer than that, whatever is asked: many clients and proxies give up after ten seconds."""
UNKNOWN_SECONDS = 2.0
"""A queue that never had a job is probably mistyped: its workers wait no longer than that before they are told."""


def _shape(given: Given) -> list[dict[str, Any]]:
    return [
        {
            "token": run.fencing_token,
            "run_id": run.run_id,
            "job_id": run.job_id,
            "name": leased.name,
            "handler": leased.handler,
            "payload": msgspec.Raw(b"null" if leased.payload is None else leased.payload.encode()),
            "scheduled_at": leased.fire_at,
            "attempt": leased.attempt,
            "reason": leased.reason,
            "idempotency_key": run.idempotency_key,
            "timeout_seconds": leased.timeout_seconds,
            "deadline": run.deadline,
        }
        for leased in given.attempts
        for run in [Run(leased, given.now_at)]
    ]


@section.operation(
    "POST",
    "/queues/{queue}/lease",
    KeyRole.WORKER,
    answers={200: Shown("Lease", "What was ready, none if nothing was in time.")},
    is_change=False,
)
async def lease(call: Call, queue: str, body: LeaseRequest) -> Answer:
    """Lease attempts.

    Waits until there are some, for as long as is asked, but answers with none after nine seconds: ask again. What is
    not recorded or kept alive by a heartbeat within `lease_seconds` is given to others.
    """
    given = await _lease(call, queue, body)
    seconds = call.services.lease_time.total_seconds()
    return ok({"lease_seconds": int(seconds) if seconds.is_integer() else seconds, "attempts": _shape(given)})


async def _lease(call: Call, queue: str, body: LeaseRequest) -> Given:
    """Try, and wait for the bell between two tries. Who has hung up gets nothing: nobody would run it."""
    clock = asyncio.get_running_loop().time
    until = clock() + min(body.wait_seconds, MOST_SECONDS)
    gone = asyncio.ensure_future(call.gone())
    try:
        while True:
            queue_id = await pulling.queue_id_of(call.tenant, queue)
            if queue_id is None:
                until = min(until, clock() + UNKNOWN_SECONDS)
            with call.services.doorbell.waiting(queue_id) as bell:
                given = Given([], pulling.NEVER)
                if queue_id is not None and not gone.done():
                    lease_time = call.services.lease_time
                    given = await pulling.lease(call.tenant, queue_id, body.worker_id, body.max, lease_time)
                left = until - clock()
                if given.attempts or left <= 0 or gone.done() or call.services.doorbell.is_stopping.is_set():
                    return given
                await _either(bell, gone, min(left, POLL_SECONDS))
    finally:
        gone.cancel()


async def _either(bell: asyncio.Event, gone: "asyncio.Future[None]", seconds: float) -> None:
    ringing: asyncio.Future[Any] = asyncio.ensure_future(bell.wait())
    either: set[asyncio.Future[Any]] = {ringing, gone}
    await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    ringing.cancel()


@section.operation(
    "POST",
    "/workers/{worker_id}/heartbeat",
    KeyRole.WORKER,
    answers={200: Shown("Heartbeat", "What the worker should stop.")},
    is_change=False,
)
async def heartbeat(call: Call, worker_id: str, body: HeartbeatRequest) -> Answer:
    """Keep a worker's leases alive.

    A worker may tell the tokens that it runs: those that it has lost are then among those to stop.
    """
    stopped = await pulling.heartbeat(call.tenant, worker_id, body.tokens, call.services.lease_time)
    return ok({"cancel": stopped})


@section.operation(
    "POST",
    "/outcomes",
    KeyRole.WORKER,
    answers={200: Shown("Recorded", "How many count; the others came too late, or were never this worker's.")},
    body="OutcomesRequest",
    is_change=False,
)
async def record_outcomes(call: Call, body: OutcomesRequest) -> Answer:
    """Record how attempts ended.

    The first outcome of an attempt counts, whoever it is from.
    """
    recorded = await pulling.record(call.tenant, body.worker_id, [_report(each) for each in body.outcomes])
    return ok({"recorded": recorded.recorded, "stale": recorded.stale})


def _report(given: OutcomeReport) -> Report:
    wait = given.retry_after_seconds
    return Report(
        token=given.token,
        result=Outcome(given.result),
        started_at=given.started_at,
        finished_at=given.finished_at,
        error=given.error,
        retryable=given.retryable is not False,
        retry_after=None if wait is None else timedelta(seconds=wait),
        output=given.output,
    )
