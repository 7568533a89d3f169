"""Answering once, however often one asks: the answer is committed together with what it tells about.

1. In one transaction, claim the key: who cannot is told that the first request is in flight. A killed process holds its
   claim no longer than its connection lives.
2. An answer is there already: the same request gets it again, another one is refused.
3. Otherwise act, keep the answer, commit. An error undoes everything, the claim included, so that it may be mended and
   asked again.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import NamedTuple, TypeAlias

from evertick.store import idempotency
from evertick.store.database import Pool, Session
from evertick.store.idempotency import Kept
from evertick.usecases.context import Tenant
from evertick.usecases.joining import joined

KEPT_FOR = timedelta(hours=24)
KEY_MAX_LENGTH = 255


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


async def answer_once(tenant: Tenant, key: str, request: bytes, act: Callable[[Tenant], Awaitable[Answer]]) -> Verdict:
    """Act in one transaction, unless the request, known by its digest, was answered before."""
    async with joined(tenant) as inside:
        session = inside.pool
        assert not isinstance(session, Pool)
        if not await idempotency.begin(session, tenant.tenant_id, key):
            return InFlight()
        kept = await idempotency.find(session, tenant.tenant_id, key)
        if kept is not None:
            return _repeated(kept) if kept.request == request else OtherRequest()
        answer = await act(inside)
        await _keep(session, tenant.tenant_id, key, request, answer)
        return answer


async def earlier(tenant: Tenant, key: str, request: bytes) -> Answer | OtherRequest | None:
    """The answer that was given already, if one was. Cheaper than to act, and never over a quota."""
    kept = await idempotency.find(tenant.pool, tenant.tenant_id, key)
    if kept is None:
        return None
    return _repeated(kept) if kept.request == request else OtherRequest()


async def prune(pool: Pool) -> None:
    """Forget answers that nobody will ask for any more."""
    await idempotency.prune(pool, KEPT_FOR)


async def _keep(session: Session, tenant_id: int, key: str, request: bytes, answer: Answer) -> None:
    kept = Kept(request, answer.status, json.dumps(dict(answer.headers)), answer.body)
    await idempotency.keep(session, tenant_id, key, kept)


def _repeated(kept: Kept) -> Answer:
    return Answer(kept.status, json.loads(kept.headers), kept.body)
