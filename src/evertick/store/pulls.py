"""Workers that pull over HTTP: what they hold. Called by the use cases."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from evertick.store import statements
from evertick.store.outcomes import Token
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
