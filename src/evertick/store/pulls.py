"""Workers that pull over HTTP: the queues that they wait for, and what they hold. Called by the use cases."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from evertick.domain.attempt import Token
from evertick.store import statements
from evertick.store.statements import Connection

_SQL = statements.load("pulls")


class Held(NamedTuple):
    """An attempt in a worker's hands; `retry` is its job's policy as JSON."""

    lane_id: int
    seq: int
    job_id: int
    fire_at: datetime
    spec_version: int
    reason: str
    attempt: int
    retry: str


class Source(NamedTuple):
    """Where a request may lease from. A queue that has had no job yet has no id."""

    queue_id: int | None
    is_valid: bool


class Look(NamedTuple):
    """What a queue has for those who wait. `handlers`: of attempts that were put back and are ready."""

    queue_id: int
    tenant_id: int
    name: str
    is_ready: bool
    handlers: list[str]


async def queue(connection: Connection, tenant_id: int, name: str, key_id: int) -> Source:
    """The tenant's queue, and whether the API key is valid."""
    row = await _SQL["queue"].fetchrow(connection, tenant_id=tenant_id, name=name, key_id=key_id)
    assert row is not None
    return Source(*row)


async def look(connection: Connection, queues: Sequence[tuple[int, str]]) -> list[Look]:
    """What is there to lease in the queues of these tenants and names. Those that do not exist are left out."""
    tenant_ids, names = [tenant_id for tenant_id, _ in queues], [name for _, name in queues]
    return [Look(*row) for row in await _SQL["look"].fetch(connection, tenant_ids=tenant_ids, names=names)]


async def ended_keys(connection: Connection, keys: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
    """Those of these tenants' API keys that are not valid any more."""
    tenant_ids, key_ids = [tenant_id for tenant_id, _ in keys], [key_id for _, key_id in keys]
    rows = await _SQL["ended_keys"].fetch(connection, tenant_ids=tenant_ids, key_ids=key_ids)
    return {(row["tenant_id"], row["key_id"]) for row in rows}


async def answered(connection: Connection, keys: Sequence[tuple[int, str]]) -> set[tuple[int, str]]:
    """Those of these tenants' idempotency keys under which an answer is kept."""
    tenant_ids, texts = [tenant_id for tenant_id, _ in keys], [key for _, key in keys]
    rows = await _SQL["answered"].fetch(connection, tenant_ids=tenant_ids, keys=texts)
    return {(row["tenant_id"], row["key"]) for row in rows}


async def held(connection: Connection, tenant_id: int, worker: str, tokens: Sequence[Token]) -> dict[Token, Held]:
    """Those of these attempts that the tenant's worker holds."""
    rows = await _SQL["held"].fetch(connection, tenant_id=tenant_id, worker=worker, **_columns(tokens))
    return {(row["lane_id"], row["seq"]): Held(*row) for row in rows}


async def release(connection: Connection, worker: str, lane_ids: Iterable[int]) -> None:
    """Let go of a worker's leases, in these lanes, in which nothing is open."""
    await _SQL["release"].execute(connection, worker=worker, lane_ids=list(lane_ids))


async def leases(connection: Connection, worker: str, tokens: Sequence[Token]) -> list[int]:
    """The worker's leases that these attempts are in."""
    return [row["lease_id"] for row in await _SQL["leases"].fetch(connection, worker=worker, **_columns(tokens))]


async def extend_all(connection: Connection, worker: str, lease_time: timedelta) -> None:
    """Extend a worker's leases, none of them beyond what its attempts may take."""
    await _SQL["extend_all"].execute(connection, worker=worker, lease_seconds=lease_time.total_seconds())


async def cancelled(connection: Connection, worker: str) -> list[Token]:
    """Attempts in the worker's hands that were cancelled."""
    return [(row["lane_id"], row["seq"]) for row in await _SQL["cancelled"].fetch(connection, worker=worker)]


async def lost(connection: Connection, worker: str, tokens: Sequence[Token]) -> list[Token]:
    """Those of these attempts that the worker does not hold, or not any more."""
    rows = await _SQL["lost"].fetch(connection, worker=worker, **_columns(tokens))
    return [(row["lane_id"], row["seq"]) for row in rows]


def _columns(tokens: Sequence[Token]) -> dict[str, list[int]]:
    return {"lane_ids": [lane_id for lane_id, _ in tokens], "seqs": [seq for _, seq in tokens]}
