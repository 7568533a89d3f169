"""From a request to its answer: who comes, may they, what do they bring; then the handler, in a transaction if it
changes anything, with its entry in the audit log.

Bodies are read, admitted, and only then decoded: what is refused must cost little.
"""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from evertick.api import repeating
from evertick.api.answers import Answer
from evertick.api.body_limits import Reservation
from evertick.api.operations import Call, Operation, Visit
from evertick.api.problems import Kind, Problem, key_ended, over_quota, unauthenticated
from evertick.api.reading import IncomingBody, read_query
from evertick.api.shapes import Nothing
from evertick.domain.access import KeyRole, allows
from evertick.domain.admission import Admitted, Request
from evertick.store.database import Pool
from evertick.usecases import audit
from evertick.usecases.context import Tenant, computing, despite_others
from evertick.usecases.joining import joined
from evertick.usecases.keys import Caller

_SCHEME = "bearer "


async def answer(
    operation: Operation, visit: Visit, parameters: Mapping[str, str], query: bytes, stream: AsyncIterator[bytes]
) -> Answer:
    """Answer one request. Whatever is wrong with it is raised."""
    if operation.role is None:
        read_query(query, operation.query or Nothing)
        return await operation.handler(visit)
    secret = _secret_of(visit)
    caller = await _identified(visit, secret, operation.role)
    given: dict[str, Any] = dict(parameters)
    asked = read_query(query, operation.query or Nothing)
    if operation.query is not None:
        given["query"] = asked
    with visit.services.bodies.of(caller.tenant.tenant_id) as reservation:
        body = IncomingBody(visit.headers, stream, reservation)
        body.digest.update(f"{operation.method} {visit.path}\n".encode())
        text = await operation.body.read(body) if operation.body is not None else None
        pool = visit.services.pool_for(operation.role, is_poll=operation.is_poll)
        call = _call_of(visit, caller, reservation, pool)
        key = visit.headers.get("idempotency-key")
        call.asked = repeating.asked_of(operation, key, body.digest.digest(), caller, secret)
        if call.asked is not None:
            visit.services.unread.check(caller.tenant.tenant_id)
            earlier = await repeating.earlier(call, call.asked)
            if earlier is not None:
                return _held(visit, caller, earlier)
        if operation.cost is not None and (throttled := visit.services.quotas.throttled(caller.tenant)):
            raise over_quota(throttled)  # before it costs anything more
        if operation.body is not None:
            given["body"] = operation.body.decode(text)
        return _held(visit, caller, await _admitted(operation, call, given))


def _held(visit: Visit, caller: Caller, answered: Answer) -> Answer:
    """The answer, whose memory counts until it is sent."""
    visit.release = visit.services.unread.hold(caller.tenant.tenant_id, len(answered.body))
    return answered


def secret_in(header: str) -> str | None:
    """The key in an `Authorization` header."""
    is_bearer = header[: len(_SCHEME)].lower() == _SCHEME
    return header[len(_SCHEME) :].strip() if is_bearer else None


def _secret_of(visit: Visit) -> str:
    secret = secret_in(visit.headers.get("authorization", ""))
    if secret is None:
        raise unauthenticated("send `Authorization: Bearer evt_…`")
    return secret


async def caller_of(visit: Visit, role: KeyRole) -> Caller:
    """Who comes, with a key that allows what needs this role."""
    return await _identified(visit, _secret_of(visit), role)


async def _identified(visit: Visit, secret: str, role: KeyRole) -> Caller:
    caller = await visit.services.keys.caller(secret)
    if caller is None:
        raise key_ended()
    visit.is_known = True
    if not allows(caller.role, role):
        raise Problem(Kind.FORBIDDEN, f"this needs the role {role}, and the key's is {caller.role}")
    return caller


def _call_of(visit: Visit, caller: Caller, reservation: Reservation, pool: Pool) -> Call:
    return Call(
        services=visit.services,
        request_id=visit.request_id,
        path=visit.path,
        raw_path=visit.raw_path,
        headers=visit.headers,
        gone=visit.gone,
        caller=caller,
        tenant=visit.services.acting_for(caller.tenant, pool),
        reservation=reservation,
    )


async def _admitted(operation: Operation, call: Call, given: Mapping[str, Any]) -> Answer:
    """Act within the quotas."""
    cost = _cost_of(operation, call, given.get("body"))
    if cost is not None:
        if operation.replaces is not None and await operation.replaces(call):
            cost = replace(cost, jobs=0)
        await _admit(call, cost)
    created = 0
    try:
        if operation.prepare is not None:
            given = {**given, "body": await operation.prepare(call, given["body"])}
        call.services.unread.check(call.tenant.tenant_id)
        done = await _act(operation, call, given)
        created = done.created
    finally:
        if cost is not None and cost.jobs:
            call.services.quotas.settle(call.caller.tenant, cost.jobs, created)
    for follow in call.afterwards:
        follow()
    return done


def _cost_of(operation: Operation, call: Call, body: Any) -> Request | None:
    """What a request draws from the quotas: at least its entry in the audit log, and its answer if that is kept.

    A deletion makes room, and draws nothing.
    """
    keeps_answer = call.asked is not None
    if operation.cost is not None:
        return replace(operation.cost(body), is_stored=operation.is_change, keeps_answer=keeps_answer)
    if operation.is_change and operation.method != "DELETE":
        return Request(is_stored=False, keeps_answer=keeps_answer)
    return Request(submits=0, is_stored=False, keeps_answer=True) if keeps_answer else None


async def _act(operation: Operation, call: Call, given: Mapping[str, Any]) -> Answer:
    """Act; if that changes anything, in one transaction with the audit log and the answer for who asks again."""

    async def act(tenant: Tenant) -> Answer:
        call.afterwards.clear()  # of a try that was undone
        answered = await operation.handler(replace(call, tenant=tenant), **given)
        if operation.is_change:
            # Who is acted upon by the host reads it in their own log, too.
            for tenant_id in {tenant.tenant_id, answered.concerns or tenant.tenant_id}:
                concerned = replace(tenant, tenant_id=tenant_id)
                await audit.record(concerned, call.caller.key_id, operation.name, answered.subject, call.request_id)
        return answered

    async def transact() -> Answer:
        with _undoing(call):
            if call.asked is not None:
                return await repeating.once(call.tenant, call.asked, act)
            async with joined(call.tenant) as tenant:
                return await act(tenant)

    async def once() -> Answer:
        # What is computed between two tries needs no connection; and who waited for one has waited for nobody's lock.
        async with call.services.slot_for(operation.role, call.tenant.tenant_id):
            return await despite_others(transact)

    if operation.is_poll or operation.is_shared or operation.is_computed:
        return await operation.handler(call, **given)  # these see to their own transactions
    if operation.is_change or call.asked is not None:
        return await computing(once)
    async with call.services.slot_for(operation.role, call.tenant.tenant_id):
        return await act(call.tenant)


@contextmanager
def _undoing(call: Call) -> Iterator[None]:
    """One try; if it is not committed, what follows from that."""
    call.when_undone.clear()
    try:
        yield
    except BaseException:
        for undo in call.when_undone:
            undo()
        raise


async def _admit(call: Call, cost: Request) -> None:
    verdict = await call.services.quotas.admit(call.caller.tenant, cost)
    if not isinstance(verdict, Admitted):
        raise over_quota(verdict)
