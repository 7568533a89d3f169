"""Workers that pull: lease by long poll, heartbeat, outcomes."""

import asyncio

import msgspec
from msgspec.structs import replace

from evertick.api.idempotency import in_flight, try_once
from evertick.api.long_polls import TooManyPolls
from evertick.api.messages import AuthenticatedRequest, Response, ok, page
from evertick.api.operations import HandlerMode, ResponseSpec, Routes
from evertick.api.poll_turns import Poll, PollSpec
from evertick.api.problems import Kind, key_ended, over_limit
from evertick.contract.workers import (
    Heartbeat,
    HeartbeatRequest,
    Lease,
    LeasedAttempt,
    LeaseRequest,
    OutcomesRequest,
    Queue,
    QueueSettings,
    QueuesQuery,
    Recorded,
    Worker,
    WorkersQuery,
)
from evertick.domain.access import KeyRole
from evertick.domain.limits import QuotaName
from evertick.executor.attempt_times import observe_pulled
from evertick.executor.handlers.run import Run
from evertick.usecases import workers
from evertick.usecases.context import TenantContext
from evertick.usecases.runs import pull_workers
from evertick.usecases.runs.pull_workers import LeasedAttempts
from evertick.usecases.tenants import queues

routes = Routes("Workers")
queue_routes = Routes("Queues")

RETRY_SECONDS = 5
"""Over the limit: polls end within half a minute, so some have ended by then."""
NOTHING = LeasedAttempts([], pull_workers.NEVER)


def _attempts(leased: LeasedAttempts) -> tuple[LeasedAttempt, ...]:
    return tuple(
        LeasedAttempt(
            token=run.fencing_token,
            run_id=run.run_id,
            job_id=run.job_id,
            name=attempt.name,
            handler=attempt.handler,
            payload=msgspec.Raw(b"null" if attempt.payload is None else attempt.payload.encode()),
            scheduled_at=attempt.fire_at,
            attempt=attempt.attempt,
            reason=attempt.reason,
            idempotency_key=run.idempotency_key,
            timeout_seconds=attempt.timeout_seconds,
            deadline=run.deadline,
            traceparent=run.traceparent,
        )
        for attempt in leased.attempts
        for run in [Run(attempt, leased.now_at)]
    )


@routes.operation(
    "POST",
    "/queues/{queue}/lease",
    KeyRole.WORKER,
    ResponseSpec(Lease, "What was ready, none if nothing was in time."),
    mode=HandlerMode.POLL,
)
async def lease(request: AuthenticatedRequest, queue: str, body: LeaseRequest) -> Response:
    """Lease attempts.

    Waits until there are some, for as long as is asked; then it answers with none. What is not recorded or kept alive
    by a heartbeat within `lease_seconds` is given to others.
    """
    pull_workers.check_queue(queue)
    handlers = None if body.handlers is None else frozenset(body.handlers)
    repeat_key = None if request.idempotency is None else request.idempotency.key
    request.services.pulling_workers.asked(request.tenant.tenant_id, body.worker_id, queue, body.handlers)
    spec = PollSpec(request.tenant.tenant_id, queue, handlers, request.caller.key_id, repeat_key)
    disconnected = asyncio.ensure_future(request.body.disconnected())
    try:
        with request.services.polls.added(spec) as poll:
            return await _wait_and_lease(request, body, poll, disconnected)
    except TooManyPolls as full:
        detail = f"{full}: wait with fewer, or ask for more attempts at once"
        raise over_limit(QuotaName.LONG_POLLS, detail, RETRY_SECONDS) from None
    finally:
        disconnected.cancel()


async def _wait_and_lease(
    request: AuthenticatedRequest, body: LeaseRequest, poll: Poll, disconnected: "asyncio.Future[None]"
) -> Response:
    clock = asyncio.get_running_loop().time
    until = clock() + body.wait_seconds
    while not (disconnected.done() or poll.is_ended):
        if poll.is_key_ended:
            raise key_ended()
        left = until - clock()
        # A poll that got no turn does not try again, unless its response is kept for a repeated request.
        if left <= 0 and not poll.has_turn and body.wait_seconds and request.idempotency is None:
            break
        if left > 0 and not poll.has_turn:
            await poll.wait(disconnected, left)
            continue
        response = await _try_lease(request, body, poll, disconnected, is_last=left <= 0)
        if response is not None:
            return response
        if left <= 0:
            raise in_flight()
    # Not kept: a repeated request should lease anew.
    return _lease_response(request, NOTHING)


async def _try_lease(
    request: AuthenticatedRequest,
    body: LeaseRequest,
    poll: Poll,
    disconnected: "asyncio.Future[None]",
    *,
    is_last: bool,
) -> Response | None:
    """One try to lease. It ends in a response if there is work, and the last one in any case."""
    lease_time = request.services.lease_time
    leased = NOTHING

    async def attempt(tenant: TenantContext) -> Response | None:
        nonlocal leased
        source = await pull_workers.queue_access(tenant, poll.spec.queue, request.caller.key_id)
        if not source.is_valid:
            poll.pass_turn()
            raise key_ended()
        poll.found_queue(source.queue_id)
        if source.queue_id is not None:
            leased = await pull_workers.lease(
                *(tenant, source.queue_id, body.worker_id, body.max, lease_time),
                handlers=body.handlers,
                is_capped=source.is_capped,
                rate=source.rate,
                rates=request.services.queue_rates,
            )
            if leased.wait_seconds is not None:
                poll.try_later(leased.wait_seconds)
        return _lease_response(request, leased) if leased.attempts or is_last else None

    async with request.services.lease_limit.slot(request.tenant.tenant_id):
        request.services.unread.check(request.tenant.tenant_id)
        poll.use_turn()
        response = await try_once(request, attempt)
        # With an Idempotency-Key, a repeated request gets them.
        if response is not None and disconnected.done() and request.idempotency is None:
            await pull_workers.put_back(request.tenant, body.worker_id, leased, request.services.queue_rates)
    if leased.attempts:
        observe_pulled(poll.spec.queue, ((each.due_at, each.seq) for each in leased.attempts), leased.now_at)
        poll.succeeded()
    elif response is not None and not is_last:  # an earlier response: what is ready now is for others
        poll.pass_turn()
    return response


def _lease_response(request: AuthenticatedRequest, leased: LeasedAttempts) -> Response:
    seconds = request.services.lease_time.total_seconds()
    return ok(Lease(lease_seconds=int(seconds) if seconds.is_integer() else seconds, attempts=_attempts(leased)))


@routes.operation(
    "POST",
    "/workers/{worker_id}/heartbeat",
    KeyRole.WORKER,
    ResponseSpec(Heartbeat, "What the worker should stop."),
    mode=HandlerMode.REPORT,
)
async def heartbeat(request: AuthenticatedRequest, worker_id: str, body: HeartbeatRequest) -> Response:
    """Keep a worker's leases alive.

    A worker may name the tokens of all that it holds: only these are kept, and those that it has lost are among those
    to stop. Without a word about it, all of its leases are kept, even one whose answer never arrived.

    A consumer of a broker's messages, of a job with `completion: reported`, names the tokens of its messages. With its
    first heartbeat it holds them, until the run's timeout at most; if its heartbeats end, they are lost to it.
    """
    stopped = await pull_workers.heartbeat(
        request.tenant, worker_id, body.tokens, request.services.lease_time, body.progress
    )
    request.services.pulling_workers.heard(request.tenant.tenant_id, worker_id)
    return ok(Heartbeat(tuple(stopped)))


@routes.operation(
    "POST",
    "/outcomes",
    KeyRole.WORKER,
    ResponseSpec(Recorded, "How many count; the others came too late, or were never this worker's."),
    mode=HandlerMode.REPORT,
)
async def record_outcomes(request: AuthenticatedRequest, body: OutcomesRequest) -> Response:
    """Record how attempts ended.

    The first outcome of an attempt counts, whichever worker reports it. Of a job with `completion: reported`, the
    consumer of its messages reports it, with the token of the message; heartbeats are optional for it.
    """
    services = request.services
    recorded = await pull_workers.record(
        request.tenant,
        body.worker_id,
        body.outcomes,
        services.notifier.room,
        services.gates.note,
        result_max_bytes=services.result_max_bytes,
    )
    return ok(recorded if body.with_dead else replace(recorded, dead=()))


@queue_routes.operation("GET", "/workers", KeyRole.VIEWER, ResponseSpec(list[Worker], "The workers, by name."))
async def list_workers(request: AuthenticatedRequest, query: WorkersQuery) -> Response:
    """List workers and dispatchers, and which queues and handlers each serves.

    By their heartbeats: one that stops is removed, one that is lost counts as alive for as long as a lease lasts, and
    one that pulls over HTTP for a minute.
    """
    await request.services.pulling_workers.write()
    found = await workers.list_workers(request.tenant, limit=query.limit, cursor=query.cursor)
    return page(found, request.path, query)


@queue_routes.operation("GET", "/queues", KeyRole.VIEWER, ResponseSpec(list[Queue], "The queues, by name."))
async def list_queues(request: AuthenticatedRequest, query: QueuesQuery) -> Response:
    """List queues, with their handlers and how many workers serve each."""
    return page(await queues.list_queues(request.tenant, limit=query.limit, cursor=query.cursor), request.path, query)


@queue_routes.operation(
    "GET", "/queues/{queue}", KeyRole.VIEWER, ResponseSpec(Queue, "The queue."), problems=(Kind.NOT_FOUND,)
)
async def get_queue(request: AuthenticatedRequest, queue: str) -> Response:
    """Get a queue."""
    return ok(await queues.get_queue(request.tenant, queue))


@queue_routes.operation("PUT", "/queues/{queue}", KeyRole.EDITOR, ResponseSpec(Queue, "The queue as it is now."))
async def put_queue(request: AuthenticatedRequest, queue: str, body: QueueSettings) -> Response:
    """Limit how much of a queue runs at once, how much of it starts per second, and how much waits.

    In all workers together, within seconds. Attempts over `max_running` and `rate_limit` wait in the queue; while
    `max_ready` wait, its timers do. A lower limit stops nothing that runs or waits already. A limit that is left out
    gets its default.
    """
    return ok(await queues.limit_queue(request.tenant, queue, body), subject=queue)
