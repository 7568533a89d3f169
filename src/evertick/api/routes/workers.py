"""Workers that pull: lease by long poll, heartbeat, outcomes."""

import asyncio
from datetime import timedelta

import msgspec

from evertick.api.idempotency import in_flight, try_once
from evertick.api.long_polls import Poll, PollSpec, TooManyPolls
from evertick.api.operations import Execution, ResponseSpec, Routes
from evertick.api.problems import key_ended, over_limit
from evertick.api.requests import AuthenticatedRequest
from evertick.api.responses import Response, ok
from evertick.contract.workers import (
    Heartbeat,
    HeartbeatRequest,
    Lease,
    LeasedAttempt,
    LeaseRequest,
    OutcomeReport,
    OutcomesRequest,
    Recorded,
)
from evertick.domain.access import KeyRole
from evertick.domain.admission import QuotaName
from evertick.domain.states import Outcome
from evertick.executor.handlers.run import Run
from evertick.usecases.runs import pull_workers as pulling
from evertick.usecases.context import Tenant
from evertick.usecases.runs.pull_workers import LeasedAttempts, AttemptReport

routes = Routes("Workers")

RETRY_SECONDS = 5
"""Over the limit: polls end within half a minute, so some have ended by then."""
NOTHING = LeasedAttempts([], pulling.NEVER)


def _attempts(given: LeasedAttempts) -> tuple[LeasedAttempt, ...]:
    return tuple(
        LeasedAttempt(
            token=run.fencing_token,
            run_id=run.run_id,
            job_id=run.job_id,
            name=leased.name,
            handler=leased.handler,
            payload=msgspec.Raw(b"null" if leased.payload is None else leased.payload.encode()),
            scheduled_at=leased.fire_at,
            attempt=leased.attempt,
            reason=leased.reason,
            idempotency_key=run.idempotency_key,
            timeout_seconds=leased.timeout_seconds,
            deadline=run.deadline,
        )
        for leased in given.attempts
        for run in [Run(leased, given.now_at)]
    )


@routes.operation(
    "POST",
    "/queues/{queue}/lease",
    KeyRole.WORKER,
    responses={200: ResponseSpec(Lease, "What was ready, none if nothing was in time.")},
    execution=Execution.POLL,
)
async def lease(request: AuthenticatedRequest, queue: str, body: LeaseRequest) -> Response:
    """Lease attempts.

    Waits until there are some, for as long as is asked; then it answers with none. What is not recorded or kept alive
    by a heartbeat within `lease_seconds` is given to others.
    """
    pulling.check_queue(queue)
    handlers = None if body.handlers is None else frozenset(body.handlers)
    repeat_key = None if request.idempotency is None else request.idempotency.key
    spec = PollSpec(request.tenant.tenant_id, queue, handlers, request.caller.key_id, repeat_key)
    gone = asyncio.ensure_future(request.body.disconnected())
    try:
        with request.services.polls.joined(spec) as poll:
            return await _polled(request, body, poll, gone)
    except TooManyPolls as full:
        detail = f"{full}: wait with fewer, or ask for more attempts at once"
        raise over_limit(QuotaName.LONG_POLLS, detail, RETRY_SECONDS) from None
    finally:
        gone.cancel()


async def _polled(
    request: AuthenticatedRequest, body: LeaseRequest, poll: Poll, gone: "asyncio.Future[None]"
) -> Response:
    clock = asyncio.get_running_loop().time
    until = clock() + body.wait_seconds
    while not (gone.done() or poll.is_dismissed):
        if poll.is_refused:
            raise key_ended()
        left = until - clock()
        # A poll that waited in vain does not try again, unless its answer is kept for a repeated request.
        if left <= 0 and not poll.has_turn and body.wait_seconds and request.idempotency is None:
            break
        if left > 0 and not poll.has_turn:
            await poll.wait(gone, left)
            continue
        answered = await _tried(request, body, poll, gone, is_last=left <= 0)
        if answered is not None:
            return answered
        if left <= 0:
            raise in_flight()
    # Not kept: a repeated request should lease anew.
    return _answer(request, NOTHING)


async def _tried(
    request: AuthenticatedRequest, body: LeaseRequest, poll: Poll, gone: "asyncio.Future[None]", *, is_last: bool
) -> Response | None:
    """A try to lease, which comes to an answer if there is work, and the last time in any case."""
    lease_time = request.services.lease_time
    given = NOTHING

    async def attempt(tenant: Tenant) -> Response | None:
        nonlocal given
        source = await pulling.queue_access(tenant, poll.spec.queue, request.caller.key_id)
        if not source.is_valid:
            poll.pass_on()
            raise key_ended()
        poll.found(source.queue_id)
        if source.queue_id is not None:
            given = await pulling.lease(
                tenant, source.queue_id, body.worker_id, body.max, lease_time, handlers=body.handlers
            )
        return _answer(request, given) if given.attempts or is_last else None

    async with request.services.lease_limit.slot(request.tenant.tenant_id):
        request.services.unread.check(request.tenant.tenant_id)
        poll.use_turn()
        answered = await try_once(request, attempt)
        if answered is not None and gone.done() and request.idempotency is None:  # with a key, who asks again is told
            await pulling.hand_back(request.tenant, body.worker_id, given)
    if given.attempts:
        poll.succeeded()
    elif answered is not None and not is_last:  # an earlier request's answer: what is ready now is for others
        poll.pass_on()
    return answered


def _answer(request: AuthenticatedRequest, given: LeasedAttempts) -> Response:
    seconds = request.services.lease_time.total_seconds()
    return ok(Lease(lease_seconds=int(seconds) if seconds.is_integer() else seconds, attempts=_attempts(given)))


@routes.operation(
    "POST",
    "/workers/{worker_id}/heartbeat",
    KeyRole.WORKER,
    responses={200: ResponseSpec(Heartbeat, "What the worker should stop.")},
    execution=Execution.REPORT,
)
async def heartbeat(request: AuthenticatedRequest, worker_id: str, body: HeartbeatRequest) -> Response:
    """Keep a worker's leases alive.

    A worker may name the tokens of all that it holds: only these are kept, and those that it has lost are among those
    to stop. Without a word about it, all of its leases are kept, even one whose answer never arrived.
    """
    stopped = await pulling.heartbeat(request.tenant, worker_id, body.tokens, request.services.lease_time)
    return ok(Heartbeat(tuple(stopped)))


@routes.operation(
    "POST",
    "/outcomes",
    KeyRole.WORKER,
    responses={200: ResponseSpec(Recorded, "How many count; the others came too late, or were never this worker's.")},
    execution=Execution.REPORT,
)
async def record_outcomes(request: AuthenticatedRequest, body: OutcomesRequest) -> Response:
    """Record how attempts ended.

    The first outcome of an attempt counts, whoever it is from.
    """
    recorded = await pulling.record(request.tenant, body.worker_id, [_report(each) for each in body.outcomes])
    return ok(recorded)


def _report(given: OutcomeReport) -> AttemptReport:
    wait = given.retry_after_seconds
    return AttemptReport(
        token=given.token,
        result=Outcome(given.result),
        started_at=given.started_at,
        finished_at=given.finished_at,
        error=given.error,
        retryable=given.retryable is not False,
        retry_after=None if wait is None else timedelta(seconds=wait),
        output=given.output,
    )
