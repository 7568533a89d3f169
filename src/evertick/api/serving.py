"""From a request to its answer: who comes, may they, what do they bring; then the handler, in a transaction if it
changes anything, with its entry in the audit log.
"""

import hashlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

from evertick.api.answers import Answer
from evertick.api.operations import Call, Operation, Visit
from evertick.api.problems import Kind, Problem, over_quota, unauthenticated
from evertick.api.reading import read_query
from evertick.api.shapes import Nothing
from evertick.domain.access import allows
from evertick.domain.admission import Admitted, Request
from evertick.usecases import audit, idempotency
from evertick.usecases.context import Tenant
from evertick.usecases.idempotency import KEY_MAX_LENGTH, InFlight, OtherRequest
from evertick.usecases.joining import joined
from evertick.usecases.keys import Caller

_SCHEME = "bearer "
_REPEATED = "Idempotency-Replayed"


async def answer(
    operation: Operation, visit: Visit, parameters: Mapping[str, str], query: bytes, stream: AsyncIterator[bytes]
) -> Answer:
    """Answer one request. Whatever is wrong with it is raised."""
    if operation.role is None:
        read_query(query, operation.query or Nothing)
        return await operation.handler(visit)
    caller = await _admitted_caller(operation, visit)
    given: dict[str, Any] = dict(parameters)
    asked = read_query(query, operation.query or Nothing)
    if operation.query is not None:
        given["query"] = asked
    digest = hashlib.sha256(f"{operation.method} {visit.path}\n".encode())
    if operation.body is not None:
        given["body"] = await operation.body.read(visit.headers, _digested(stream, digest))
    call = _call_of(visit, caller)
    if not operation.is_change:
        return await operation.handler(call, **given)
    return await _change(operation, call, given, digest.digest())


async def _admitted_caller(operation: Operation, visit: Visit) -> Caller:
    header = visit.headers.get("authorization", "")
    if header[: len(_SCHEME)].lower() != _SCHEME:
        raise unauthenticated("send `Authorization: Bearer evt_…`")
    caller = await visit.services.keys.caller(header[len(_SCHEME) :].strip())
    if caller is None:
        raise unauthenticated("the key is unknown, has expired or was revoked")
    assert operation.role is not None
    if not allows(caller.role, operation.role):
        raise Problem(Kind.FORBIDDEN, f"this needs the role {operation.role}, and the key's is {caller.role}")
    return caller


def _call_of(visit: Visit, caller: Caller) -> Call:
    return Call(
        services=visit.services,
        request_id=visit.request_id,
        path=visit.path,
        raw_path=visit.raw_path,
        headers=visit.headers,
        gone=visit.gone,
        caller=caller,
        tenant=visit.services.acting_for(caller.tenant),
    )


async def _change(operation: Operation, call: Call, given: Mapping[str, Any], digest: bytes) -> Answer:
    key = call.headers.get("idempotency-key") if operation.is_repeatable else None
    if key is not None:
        _check_key(key)
        earlier = await idempotency.earlier(call.tenant, key, digest)
        if earlier is not None:
            return _repeated(earlier)
    cost = operation.cost(given.get("body")) if operation.cost else None
    if cost is not None:
        await _admit(call, cost)
    made: list[Answer] = []
    try:
        done = await _act(operation, call, given, key, digest, made)
    finally:
        if cost is not None and cost.jobs:
            call.services.quotas.settle(call.caller.tenant, cost.jobs, made[0].created if made else 0)
    for follow in call.afterwards:
        follow()
    return done


async def _act(  # noqa: PLR0913, PLR0917 - all that one change is about
    operation: Operation, call: Call, given: Mapping[str, Any], key: str | None, digest: bytes, made: list[Answer]
) -> Answer:
    """Act in one transaction, together with the audit log and the answer that is kept for who asks again."""

    async def act(tenant: Tenant) -> Answer:
        answered = await operation.handler(replace(call, tenant=tenant), **given)
        await audit.record(tenant, call.caller.key_id, operation.name, answered.subject, call.request_id)
        return answered

    async def kept(tenant: Tenant) -> idempotency.Answer:
        answered = await act(tenant)
        made.append(answered)
        headers = {**answered.headers, "Content-Type": answered.media_type}
        return idempotency.Answer(answered.status, headers, answered.body)

    if key is not None:
        verdict = await idempotency.answer_once(call.tenant, key, digest, kept)
        return made[0] if made else _repeated(verdict)
    async with joined(call.tenant) as tenant:
        answered = await act(tenant)
    made.append(answered)
    return answered


def _repeated(verdict: idempotency.Verdict) -> Answer:
    match verdict:
        case InFlight():
            raise Problem(Kind.IN_FLIGHT, "wait for the first request's answer", headers={"Retry-After": "1"})
        case OtherRequest():
            raise Problem(Kind.KEY_REUSED, "use a new key for a new request")
        case idempotency.Answer(status, headers, body):
            told = {**headers, _REPEATED: "true"}
            return Answer(status, body, told, media_type=told.pop("Content-Type"))


def _check_key(key: str) -> None:
    if not 1 <= len(key) <= KEY_MAX_LENGTH or not key.isprintable() or not key.isascii():
        raise Problem(Kind.INVALID, f"Idempotency-Key has 1 to {KEY_MAX_LENGTH} visible ASCII characters")


async def _admit(call: Call, cost: Request) -> None:
    verdict = await call.services.quotas.admit(call.caller.tenant, cost)
    if not isinstance(verdict, Admitted):
        raise over_quota(verdict)


async def _digested(stream: AsyncIterator[bytes], digest: Any) -> AsyncIterator[bytes]:
    async for part in stream:
        digest.update(part)
        yield part
