"""Answering once, however often one asks: the answer is committed together with what it tells about.

1. In one transaction, claim the key: who cannot is told that the first request is in flight. A killed process holds its
   claim no longer than its connection lives.
2. An answer is there already: the same request gets it again, another one is refused.
3. Otherwise act, keep the answer, commit. An error undoes everything, the claim included, so that it may be mended and
   asked again.

An answer that holds a secret is kept sealed, by a key that the database never sees.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from evertick.store import idempotency
from evertick.store.idempotency import Kept
from evertick.store.sealing import Seal
from evertick.usecases.context import Tenant
from evertick.usecases.unit_of_work import unit_of_work

KEY_MAX_LENGTH = 255


class Asked(NamedTuple):
    """A request that may come again: its key, a digest of all that it asks for, and what seals an answer with a secret.

    What is sealed can be opened by its own seal alone, so the digest has to tell requests with other seals apart.
    """

    key: str
    digest: bytes
    seal: Seal | None = None


class Answer(NamedTuple):
    """What was answered, as far as it is worth repeating."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class InFlight(NamedTuple):
    """The first request with this key is not answered yet."""


class OtherRequest(NamedTuple):
    """The key belongs to a request that asked for something else."""


Verdict: TypeAlias = Answer | InFlight | OtherRequest


async def answer_once(
    tenant: Tenant, asked: Asked, act: Callable[[Tenant], Awaitable[Answer | None]]
) -> Verdict | None:
    """Act in one transaction, unless the request was answered before. None: it came to no answer yet; none is kept."""
    async with unit_of_work(tenant) as inside:
        verdicts = await claim(inside, [asked])
        if verdicts:
            return verdicts[asked.key]
        answer = await act(inside)
        if answer is not None:
            await keep(inside, [(asked, answer)])
        return answer


async def claim(tenant: Tenant, asked: Sequence[Asked]) -> dict[str, Verdict]:
    """Claim keys, each given once, in the tenant's transaction. Returns verdicts on those who are not to act."""
    keys = [each.key for each in asked]
    claimed = await idempotency.begin(tenant.pool, tenant.tenant_id, keys)
    # A statement of its own: what whoever held a key before has committed is there to be seen only now.
    found = zip(keys, await earlier(tenant, asked), strict=True)
    answered: dict[str, Verdict] = {key: verdict for key, verdict in found if verdict is not None}
    return {key: InFlight() for key in keys if key not in claimed} | answered


async def keep(tenant: Tenant, answers: Sequence[tuple[Asked, Answer]]) -> None:
    """Keep the answers to requests whose keys were claimed in this transaction."""
    if answers:
        kept = {asked.key: _kept(tenant.tenant_id, asked, answer) for asked, answer in answers}
        await idempotency.keep(tenant.pool, tenant.tenant_id, kept)


async def earlier(tenant: Tenant, asked: Sequence[Asked]) -> list[Answer | OtherRequest | None]:
    """The answers that were given already, if any were. Cheaper than to act, and never over a quota."""
    kept = await idempotency.find(tenant.pool, tenant.tenant_id, [each.key for each in asked])
    return [_repeated(tenant, kept[each.key], each) if each.key in kept else None for each in asked]


def _kept(tenant_id: int, asked: Asked, answer: Answer) -> Kept:
    body = answer.body if asked.seal is None else asked.seal.seal(answer.body, tenant_id)
    return Kept(asked.digest, answer.status, json.dumps(dict(answer.headers)), body)


def _repeated(tenant: Tenant, kept: Kept, asked: Asked) -> Answer | OtherRequest:
    if kept.request != asked.digest:
        return OtherRequest()
    body = kept.body if asked.seal is None else asked.seal.unseal(kept.body, tenant.tenant_id)
    return Answer(kept.status, json.loads(kept.headers), body)
