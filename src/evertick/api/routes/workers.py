"""Workers that pull: lease by long poll, heartbeat, outcomes."""

import asyncio
from datetime import timedelta
from typing import Any

import msgspec

from evertick.api.idempotency import in_flight, one_try
from evertick.api.long_polls import Poll, Request, TooManyPolls
from evertick.api.operations import Call, Section, Shown
from evertick.api.problems import key_ended, over_limit
from evertick.api.responses import Answer, ok
from evertick.api.shapes import HeartbeatRequest, LeaseRequest, OutcomeReport, OutcomesRequest
from evertick.domain.access import KeyRole
from evertick.domain.admission import QuotaName
from evertick.domain.states import Outcome
from evertick.roles.worker.run import Run
from evertick.usecases import pulling
from evertick.usecases.context import Tenant
from evertick.usecases.pulling import Given, Report

section = Section("Workers")

RETRY_SECONDS = 5
"""Over the limit: polls end within half a minute, so some have ended by then."""
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
    pulling.check_queue(queue)
    handlers = None if body.handlers is None else frozenset(body.handlers)
    repeat_key = None if call.asked is None else call.asked.key
    request = Request(call.tenant.tenant_id, queue, handlers, call.caller.key_id, repeat_key)
    gone = asyncio.ensure_future(call.gone())
    try:
        with call.services.polls.joined(request) as poll:
            return await _polled(call, body, poll, gone)
    except TooManyPolls as full:
        detail = f"{full}: wait with fewer, or ask for more attempts at once"
        raise over_limit(QuotaName.LONG_POLLS, detail, RETRY_SECONDS) from None
    finally:
        gone.cancel()


async def _polled(call: Call, body: LeaseRequest, poll: Poll, gone: "asyncio.Future[None]") -> Answer:
    clock = asyncio.get_running_loop().time
    until = clock() + body.wait_seconds
    while not (gone.done() or poll.is_dismissed):
        if poll.is_refused:
            raise key_ended()
        left = until - clock()
        # A poll that waited in vain does not try again, unless its answer is kept for a repeated request.
        if left <= 0 and not poll.has_turn and body.wait_seconds and call.asked is None:
            break
        if left > 0 and not poll.has_turn:
            await poll.wait(gone, left)
            continue
        answered = await _tried(call, body, poll, gone, is_last=left <= 0)
        if answered is not None:
            return answered
        if left <= 0:
            raise in_flight()
    # Not kept: a repeated request should lease anew.
    return _answer(call, NOTHING)


async def _tried(
    call: Call, body: LeaseRequest, poll: Poll, gone: "asyncio.Future[None]", *, is_last: bool
) -> Answer | None:
    """A try to lease, which comes to an answer if there is work, and the last time in any case."""
    lease_time = call.services.lease_time
    given = NOTHING

    async def attempt(tenant: Tenant) -> Answer | None:
        nonlocal given
        source = await pulling.source(tenant, poll.request.queue, call.caller.key_id)
        if not source.is_valid:
            poll.pass_on()
            raise key_ended()
        poll.found(source.queue_id)
        if source.queue_id is not None:
            given = await pulling.lease(
                tenant, source.queue_id, body.worker_id, body.max, lease_time, handlers=body.handlers
            )
        return _answer(call, given) if given.attempts or is_last else None

    async with call.services.lease_limit.slot(call.tenant.tenant_id):
        call.services.unread.check(call.tenant.tenant_id)
        poll.use_turn()
        answered = await one_try(call, attempt)
        if answered is not None and gone.done() and call.asked is None:  # with a key, who asks again is told
            await pulling.hand_back(call.tenant, body.worker_id, given)
    if given.attempts:
        poll.succeeded()
    elif answered is not None and not is_last:  # an earlier request's answer: what is ready now is for others
        poll.pass_on()
    return answered


def _answer(call: Call, given: Given) -> Answer:
    seconds = call.services.lease_time.total_seconds()
    return ok({"lease_seconds": int(seconds) if seconds.is_integer() else seconds, "attempts": _shape(given)})


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
