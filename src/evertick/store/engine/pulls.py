"""Workers that pull over HTTP: the queues that they wait for, and what they hold. Called by the use cases."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from evertick.domain.attempt import Token
from evertick.domain.rate_bucket import Rate, rate_of
from evertick.store import statements
from evertick.store.engine.outcomes import TokenRow
from evertick.store.statements import Connection, columns


class HeldAttempt(NamedTuple):
    """An attempt that a worker holds; `retry` is its job's policy as JSON. `is_capped`: its end makes room."""

    lane_id: int
    seq: int
    job_id: int
    fire_at: datetime
    spec_version: int
    reason: str
    attempt: int
    retry: str
    is_capped: bool
    leased_at: datetime | None


class QueueAccess(NamedTuple):
    """Where a request may lease from. A queue that has had no job yet has no id.

    `is_capped`: a cap limits what runs of it at once. `rate`: how much of it starts per second.
    """

    queue_id: int | None
    is_capped: bool
    rate_limit: float | None
    rate_burst: int | None
    is_valid: bool

    @property
    def rate(self) -> Rate | None:
        return None if self.rate_limit is None else rate_of(self.rate_limit, self.rate_burst)


class QueueState(NamedTuple):
    """What a queue has for long polls. `handlers`: of attempts that were put back and are ready."""

    queue_id: int
    tenant_id: int
    name: str
    is_ready: bool
    handlers: list[str]


class _TenantKey(NamedTuple):
    tenant_id: int
    key_id: int


class _AnsweredKey(NamedTuple):
    tenant_id: int
    key: str


_SQL = statements.load("pulls")
_QUEUE = _SQL["queue"].rows(QueueAccess)
_LOOK = _SQL["look"].rows(QueueState)
_ENDED_KEYS = _SQL["ended_keys"].rows(_TenantKey)
_ANSWERED = _SQL["answered"].rows(_AnsweredKey)
_HELD = _SQL["held"].rows(HeldAttempt)
_LEASES = _SQL["leases"].values(int)
_CANCELLED = _SQL["cancelled"].rows(TokenRow)
_LOST = _SQL["lost"].rows(TokenRow)
_TOKENS = ("lane_ids", "seqs")


async def queue_access(connection: Connection, tenant_id: int, name: str, key_id: int) -> QueueAccess:
    """The tenant's queue, and whether the API key is valid."""
    return await _QUEUE.one(connection, tenant_id=tenant_id, name=name, key_id=key_id)


async def queue_states(connection: Connection, queues: Sequence[tuple[int, str]]) -> list[QueueState]:
    """What is there to lease in the queues of these tenants and names. Those that do not exist are left out."""
    return await _LOOK.all(connection, **columns(("tenant_ids", "names"), queues))


async def ended_keys(connection: Connection, keys: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
    """Those of these tenants' API keys that are not valid any more."""
    return set(await _ENDED_KEYS.all(connection, **columns(("tenant_ids", "key_ids"), keys)))


async def answered(connection: Connection, keys: Sequence[tuple[int, str]]) -> set[tuple[int, str]]:
    """Those of these tenants' idempotency keys under which an answer is kept."""
    return set(await _ANSWERED.all(connection, **columns(("tenant_ids", "keys"), keys)))


async def held(
    connection: Connection, tenant_id: int, worker: str, tokens: Sequence[Token]
) -> dict[Token, HeldAttempt]:
    """Those of these attempts that the tenant's worker holds."""
    rows = await _HELD.all(connection, tenant_id=tenant_id, worker=worker, **columns(_TOKENS, tokens))
    return {(row.lane_id, row.seq): row for row in rows}


async def release(connection: Connection, worker: str, lane_ids: Iterable[int]) -> None:
    """Let go of a worker's leases, in these lanes, in which nothing is open."""
    await _SQL["release"].execute(connection, worker=worker, lane_ids=list(lane_ids))


async def leases(connection: Connection, worker: str, tokens: Sequence[Token]) -> list[int]:
    """The worker's leases that these attempts are in."""
    return await _LEASES.all(connection, worker=worker, **columns(_TOKENS, tokens))


async def extend_all(connection: Connection, worker: str, lease_time: timedelta) -> None:
    """Extend a worker's leases, none of them beyond what its attempts may take."""
    await _SQL["extend_all"].execute(connection, worker=worker, lease_seconds=lease_time.total_seconds())


async def cancelled(connection: Connection, worker: str) -> Sequence[Token]:
    """Attempts that the worker holds and that were cancelled."""
    return await _CANCELLED.all(connection, worker=worker)


async def lost(connection: Connection, worker: str, tokens: Sequence[Token]) -> Sequence[Token]:
    """Those of these attempts that the worker does not hold, or not any more."""
    return await _LOST.all(connection, worker=worker, **columns(_TOKENS, tokens))
