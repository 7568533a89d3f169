"""Repeated requests: the Idempotency-Key of a POST, and the response that is kept under it.

A response with a secret is sealed with the caller's own API key, of which the database has only the digest. So nobody
who reads the database can read it, and a repeated request needs the same API key.
"""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from evertick.api.messages import AuthenticatedRequest, Response, bearer_key
from evertick.api.operations import Operation
from evertick.api.problems import HttpProblem, Kind
from evertick.store.tenants.secrets import ANSWERS, Seal
from evertick.usecases import idempotency
from evertick.usecases.context import TenantContext, single_connection
from evertick.usecases.idempotency import KEY_MAX_LENGTH, InFlight, KeyedRequest, OtherRequest

IDEMPOTENCY_KEY = "Idempotency-Key"
REPLAYED = "Idempotency-Replayed"

Act: TypeAlias = Callable[[TenantContext], Awaitable[Response]]
Try: TypeAlias = Callable[[TenantContext], Awaitable[Response | None]]


def identify(operation: Operation, request: AuthenticatedRequest, digest: bytes) -> KeyedRequest | None:
    """What identifies a request when it is repeated. None: it has no Idempotency-Key."""
    key = request.headers.get("idempotency-key")
    if key is None or not operation.is_repeatable:
        return None
    if not idempotency.is_key(key):
        raise HttpProblem(Kind.INVALID, f"Idempotency-Key has 1 to {KEY_MAX_LENGTH} visible ASCII characters")
    if operation.holds_secret:
        return KeyedRequest(key, digest + request.caller.key_id.encode(), Seal(bearer_key(request), ANSWERS))
    return KeyedRequest(key, digest)


async def earlier_response(request: AuthenticatedRequest) -> Response | None:
    """The response that a repeated request was given already, if there is one."""
    if request.idempotency is None:
        return None
    request.services.unread.check(request.caller.tenant.tenant_id)
    return replayed(await request.services.earlier_responses.ask(request.tenant, request.idempotency))


async def act_once(tenant: TenantContext, identity: KeyedRequest, act: Act) -> Response:
    """Act in one transaction, unless the request was answered before."""
    response = await _act_once(tenant, identity, act)
    if response is None:
        raise in_flight()
    return response


async def try_once(request: AuthenticatedRequest, attempt: Try) -> Response | None:
    """One try of a poll. None: there is no response yet, or another request with the same key is under way."""
    if request.idempotency is None:
        # On one connection: between its statements it waits for no other.
        async with single_connection(request.tenant) as tenant:
            return await attempt(tenant)
    return await _act_once(request.tenant, request.idempotency, attempt)


def in_flight() -> HttpProblem:
    return HttpProblem(Kind.IN_FLIGHT, "wait for the first request's answer", headers={"Retry-After": "1"})


async def _act_once(tenant: TenantContext, identity: KeyedRequest, attempt: Try) -> Response | None:
    made: list[Response] = []

    async def act(inside: TenantContext) -> idempotency.Answer | None:
        response = await attempt(inside)
        if response is None:
            return None
        made.append(response)
        return kept(response)

    found = await idempotency.answer_once(tenant, identity, act)
    return made[0] if made else replayed(found)


def kept(response: Response) -> idempotency.Answer:
    """A response as it is kept for repeated requests."""
    headers = {**response.headers, "Content-Type": response.media_type}
    return idempotency.Answer(response.status, headers, response.body)


def replayed(found: idempotency.ClaimResult | None) -> Response | None:
    """A response that was kept; None: there is none yet."""
    match found:
        case None | InFlight():
            return None
        case OtherRequest():
            raise HttpProblem(Kind.KEY_REUSED, "use a new key for a new request")
        case idempotency.Answer(status, kept_headers, body):
            headers = {**kept_headers, REPLAYED: "true"}
            return Response(status, body, headers, media_type=headers.pop("Content-Type"))
