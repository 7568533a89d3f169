"""Workers that pull: lease by long poll, heartbeat, outcomes."""

import asyncio
from datetime import timedelta
from typing import Any

import msgspec

from evertick.api.answers import Answer, ok
from evertick.api.operations import Call, Section, Shown
from evertick.api.repeating import in_flight, one_try
from evertick.api.shapes import HeartbeatRequest, LeaseRequest, OutcomeReport, OutcomesRequest
from evertick.domain.access import KeyRole
from evertick.domain.states import Outcome
from evertick.roles.worker.run import Run
from evertick.usecases import pulling
from evertick.usecases.context import Tenant
from evertick.usecases.pulling import Given, Report

section = Section("Workers")

POLL_SECONDS = 1.0
"""A lost wake-up costs at most that long."""
NOTHING = Given([], pulling.NEVER)


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
    is_poll=True,
)
async def lease(call: Call, queue: str, body: LeaseRequest) -> Answer:
    """Lease attempts.

    Waits until there are some, for as long as is asked; then it answers with none. What is not recorded or kept alive
    by a heartbeat within `lease_seconds` is given to others.
    """
    clock = asyncio.get_running_loop().time
    until = clock() + body.wait_seconds
    gone = asyncio.ensure_future(call.gone())
    doorbell = call.services.doorbell
    try:
        while True:
            queue_id = await pulling.queue_id_of(call.tenant, queue)
            with doorbell.waiting(queue_id) as bell:
                if gone.done() or doorbell.is_stopping.is_set():
                    # Whoever has hung up would run nothing. Not kept: who asks again should not be told the same.
                    return _answer(call, NOTHING)
                left = until - clock()
                leasing = _Leasing(call, queue_id, body, is_last=left <= 0)
                answered = await one_try(call, leasing.attempt)
                if answered is not None:
                    if gone.done() and call.asked is None:  # with a key, who asks again is told
                        await pulling.hand_back(call.tenant, body.worker_id, leasing.given)
                    return answered
                if left <= 0:
                    raise in_flight()
                await _either(bell, gone, min(left, POLL_SECONDS))
    finally:
        gone.cancel()


class _Leasing:
    """A try to lease, which comes to an answer if there is work, and the last time in any case."""

    def __init__(self, call: Call, queue_id: int | None, body: LeaseRequest, *, is_last: bool) -> None:
        self._call = call
        self._queue_id = queue_id
        self._body = body
        self._is_last = is_last
        self.given = NOTHING

    async def attempt(self, tenant: Tenant) -> Answer | None:
        if self._queue_id is not None:
            body, lease_time = self._body, self._call.services.lease_time
            self.given = await pulling.lease(
                tenant, self._queue_id, body.worker_id, body.max, lease_time, handlers=body.handlers
            )
        return _answer(self._call, self.given) if self.given.attempts or self._is_last else None


def _answer(call: Call, given: Given) -> Answer:
    seconds = call.services.lease_time.total_seconds()
    return ok({"lease_seconds": int(seconds) if seconds.is_integer() else seconds, "attempts": _shape(given)})


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

    A worker may name the tokens of all that it holds: only these are kept, and those that it has lost are among those
    to stop. Without a word about it, all of its leases are kept, even one whose answer never arrived.
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
