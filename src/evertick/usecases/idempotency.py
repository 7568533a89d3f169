"""Idempotency-Keys: a request that is repeated gets its first answer, which is committed together with its changes.

1. In one transaction, claim the key. If another request holds it, that one is in flight. A killed process holds its
   claim no longer than its connection lives.
2. If an answer is stored, the same request gets it again, and a different one is refused.
3. Otherwise act, store the answer, commit. An error rolls back everything, the claim included, so that the request can
   be corrected and repeated.

An answer that holds a secret is stored sealed, by a key that the database never sees.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from evertick.store.tenants import idempotency
from evertick.store.tenants.idempotency import StoredAnswer
from evertick.store.tenants.secrets import Seal
from evertick.usecases.context import TenantContext, unit_of_work

KEY_MAX_LENGTH = 255


def is_key(text: str) -> bool:
    """Whether a text can be an Idempotency-Key: 1 to 255 visible ASCII characters."""
    return 1 <= len(text) <= KEY_MAX_LENGTH and text.isprintable() and text.isascii()


class KeyedRequest(NamedTuple):
    """A request with an Idempotency-Key: the key, a digest of the request, and the seal of an answer with a secret.

    Only its own seal opens a sealed answer, so requests with different seals must have different digests.
    """

    key: str
    digest: bytes
    seal: Seal | None = None


class Answer(NamedTuple):
    """The parts of an answer that are repeated."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class InFlight(NamedTuple):
    """The first request with this key is not answered yet."""


class OtherRequest(NamedTuple):
    """The key belongs to a different request."""


ClaimResult: TypeAlias = Answer | InFlight | OtherRequest


async def answer_once(
    tenant: TenantContext, request: KeyedRequest, act: Callable[[TenantContext], Awaitable[Answer | None]]
) -> ClaimResult | None:
    """Act in one transaction, unless the request was answered before. None: there is no answer yet, and none stored."""
    async with unit_of_work(tenant) as inside:
        results = await claim(inside, [request])
        if results:
            return results[request.key]
        answer = await act(inside)
        if answer is not None:
            await store(inside, [(request, answer)])
        return answer


async def claim(tenant: TenantContext, requests: Sequence[KeyedRequest]) -> dict[str, ClaimResult]:
    """Claim keys, each given once, in the tenant's transaction. Returns results for the requests that must not act."""
    keys = [each.key for each in requests]
    claimed = await idempotency.begin(tenant.pool, tenant.tenant_id, keys)
    # A statement of its own: what the former holder of a key has committed is visible only now.
    found = zip(keys, await earlier(tenant, requests), strict=True)
    answered: dict[str, ClaimResult] = {key: result for key, result in found if result is not None}
    return {key: InFlight() for key in keys if key not in claimed} | answered


async def store(tenant: TenantContext, answers: Sequence[tuple[KeyedRequest, Answer]]) -> None:
    """Store the answers to requests whose keys were claimed in this transaction."""
    if answers:
        stored = {request.key: _stored(tenant.tenant_id, request, answer) for request, answer in answers}
        await idempotency.store(tenant.pool, tenant.tenant_id, stored)


async def earlier(tenant: TenantContext, requests: Sequence[KeyedRequest]) -> list[Answer | OtherRequest | None]:
    """The stored answers, where there are any. Cheaper than to act, and never over a quota."""
    stored = await idempotency.find(tenant.pool, tenant.tenant_id, [each.key for each in requests])
    return [_repeated(tenant, stored[each.key], each) if each.key in stored else None for each in requests]


def _stored(tenant_id: int, request: KeyedRequest, answer: Answer) -> StoredAnswer:
    body = answer.body if request.seal is None else request.seal.seal(answer.body, tenant_id)
    return StoredAnswer(request.digest, answer.status, json.dumps(dict(answer.headers)), body)


def _repeated(tenant: TenantContext, stored: StoredAnswer, request: KeyedRequest) -> Answer | OtherRequest:
    if stored.request != request.digest:
        return OtherRequest()
    body = stored.body if request.seal is None else request.seal.unseal(stored.body, tenant.tenant_id)
    return Answer(stored.status, json.loads(stored.headers), body)
