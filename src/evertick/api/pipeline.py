"""The steps of a request: authenticate, authorise, parse, idempotency, quota, transaction, audit, response.

A body is read, then admitted, and only then decoded: what is refused must cost little. Every refusal is
raised, and becomes a problem in `app`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from evertick.api import idempotency
from evertick.api.bodies.memory_limits import Reservation
from evertick.api.bodies.request_body import IncomingBody
from evertick.api.decoding import parse_query
from evertick.api.messages import AuthenticatedRequest, HttpRequest, Response, authorise
from evertick.api.operations import API, HandlerMode, Operation
from evertick.api.problems import over_quota
from evertick.contract.jobs import Nothing
from evertick.domain.admission import AdmissionRequest
from evertick.usecases import audit
from evertick.usecases.context import TenantContext, unit_of_work
from evertick.usecases.jobs import costs
from evertick.usecases.tenants.keys import Caller
from evertick.usecases.transactions import retry_conflicts, retry_with_results


async def respond(operation: Operation, http_request: HttpRequest) -> Response:
    """Do what a request asks for."""
    caller = None
    if operation.role is not None:
        caller = await operation.surface.authenticate(http_request)
        authorise(caller, operation.role)

    arguments: dict[str, Any] = dict(http_request.path_parameters)
    query = parse_query(
        http_request.query_string, operation.query or Nothing, ignores_blanks=operation.surface.ignores_blanks
    )
    if operation.query is not None:
        arguments["query"] = query
    if caller is None:
        return await operation.handler(http_request, **arguments)

    with http_request.services.bodies.of(caller.tenant.tenant_id) as reservation:
        body = IncomingBody(http_request.headers, http_request.body.parts(), reservation)
        body.digest.update(f"{operation.method} {http_request.path}\n".encode())
        text = await operation.body.read(body) if operation.body is not None else None

        request = _authenticated(operation, http_request, caller, reservation)
        request.idempotency = idempotency.identify(operation, request, body.digest.digest())
        response = await idempotency.earlier_response(request)
        if response is None:
            _check_rate(operation, request)
            if operation.body is not None:
                arguments["body"] = operation.body.decode(text)
            response = await _admit_and_act(operation, request, arguments)

    response.on_sent = request.services.unread.hold(caller.tenant.tenant_id, len(response.body))
    if operation.surface is API:
        _add_prefix(response.headers, http_request.client.prefix)
    return response


def _add_prefix(headers: dict[str, str], prefix: str) -> None:
    """Paths as the client sees them. Not where they are made: a kept response may be sent again by another way."""
    if "Location" in headers:
        headers["Location"] = prefix + headers["Location"]
    if "Link" in headers:
        headers["Link"] = headers["Link"].replace("</", f"<{prefix}/", 1)


async def _admit_and_act(operation: Operation, request: AuthenticatedRequest, arguments: dict[str, Any]) -> Response:
    cost = await _cost_of(operation, request, arguments.get("body"))
    if cost is not None:
        request.admitted = await request.admit(cost)
    created = 0
    try:
        if operation.body is not None and operation.body.prepare is not None:
            arguments["body"] = await operation.body.prepare(request, arguments["body"])
        request.services.unread.check(request.tenant.tenant_id)
        response = await _act(operation, request, arguments)
        created = response.created_jobs
    finally:
        request.services.quotas.end_runs(request.tenant.tenant_id, request.runs)
        if request.admitted is not None and request.admitted.jobs:
            request.services.quotas.confirm(request.caller.tenant, request.admitted.jobs, created)
    for follow in request.after_commit:
        follow()
    return response


async def _act(operation: Operation, request: AuthenticatedRequest, arguments: dict[str, Any]) -> Response:
    """Call the handler; if it changes anything, in one transaction with the audit log and the kept response."""

    async def act(tenant: TenantContext) -> Response:
        request.after_commit.clear()  # of a try that was undone
        response = await operation.handler(replace(request, tenant=tenant), **arguments)
        if operation.mode.is_change:
            await _audit(operation, request, response, tenant)
        return response

    async def transact() -> Response:
        with _rollback(request):
            if request.idempotency is not None:
                return await idempotency.act_once(request.tenant, request.idempotency, act)
            async with unit_of_work(request.tenant) as tenant:
                return await act(tenant)

    async def transact_in_slot() -> Response:
        # What is computed between two tries needs no connection, and waiting for a slot is not waiting for a lock.
        async with request.services.slot_for(operation.role, request.tenant.tenant_id):
            return await retry_conflicts(transact)

    if operation.mode.has_own_transactions:
        return await operation.handler(request, **arguments)
    if operation.mode.is_change or request.idempotency is not None:
        return await retry_with_results(transact_in_slot)
    replica = request.services.replica if operation.mode is HandlerMode.LATE_READ else None
    async with request.services.slot_for(operation.role, request.tenant.tenant_id):
        if replica is None:
            return await act(request.tenant)
        return await replica.read(request.services.pool, lambda pool: act(replace(request.tenant, pool=pool)))


@contextmanager
def _rollback(request: AuthenticatedRequest) -> Iterator[None]:
    """One try of a transaction; if it is undone, what the handler wants done then."""
    request.on_rollback.clear()
    try:
        yield
    except BaseException:
        for undo in request.on_rollback:
            undo()
        raise


async def _audit(
    operation: Operation, request: AuthenticatedRequest, response: Response, tenant: TenantContext
) -> None:
    # A tenant that the host has changed reads it in its own log, too.
    for tenant_id in {tenant.tenant_id, response.affected_tenant or tenant.tenant_id}:
        log = replace(tenant, tenant_id=tenant_id)
        await audit.record(log, request.caller.key_id, operation.name, response.subject, request.request_id)


def _authenticated(
    operation: Operation, request: HttpRequest, caller: Caller, reservation: Reservation
) -> AuthenticatedRequest:
    services = request.services
    pool = services.pool_for(operation.role, is_poll=operation.mode is HandlerMode.POLL)
    return AuthenticatedRequest(
        services=services,
        request_id=request.request_id,
        path=request.path,
        raw_path=request.raw_path,
        path_parameters=request.path_parameters,
        query_string=request.query_string,
        headers=request.headers,
        body=request.body,
        method=request.method,
        client=request.client,
        caller=caller,
        tenant=services.tenant_on(caller.tenant, pool),
        reservation=reservation,
    )


def _check_rate(operation: Operation, request: AuthenticatedRequest) -> None:
    """Refuse early what the tenant's rate does not admit: before the request costs anything more."""
    if operation.cost is not None and (throttled := request.services.quotas.throttled(request.caller.tenant)):
        raise over_quota(throttled)


async def _cost_of(operation: Operation, request: AuthenticatedRequest, body: Any) -> AdmissionRequest | None:
    """What a request draws from the quotas: at least its entry in the audit log, and its response if that is kept.

    A deletion makes room, and draws nothing.
    """
    keeps_answer = request.idempotency is not None
    if operation.cost is not None:
        own = operation.cost
        cost = own if isinstance(own, AdmissionRequest) else await own(request, body)
        return replace(cost, is_stored=operation.mode.is_change, keeps_answer=keeps_answer)
    if operation.mode.is_change and operation.method != "DELETE":
        return replace(costs.OF_CHANGE, keeps_answer=keeps_answer)
    return AdmissionRequest(submits=0, is_stored=False, keeps_answer=True) if keeps_answer else None
