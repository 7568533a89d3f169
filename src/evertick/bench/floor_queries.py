"""Writes the rows of runs by binary COPY and one UPDATE for each batch, the cheapest way in Postgres.

The tables of attempts and outcomes are like a day's partition, with all indexes. The timers are the real table.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from evertick.config.settings import DATABASE_SCHEMA
from evertick.store import statements
from evertick.store.database import Session
from evertick.store.statements import Connection, row_count

_SQL = statements.load("floor", "evertick.bench")


class FloorAttempt(NamedTuple):
    """All columns of `attempts`."""

    lane_id: int
    seq: int
    job_id: int
    fire_at: datetime
    due_at: datetime
    spec_version: int
    epoch: int
    reason: str
    attempt: int
    is_listed: bool


class FloorOutcome(NamedTuple):
    """All columns of `outcomes`."""

    lane_id: int
    seq: int
    started_at: datetime
    finished_at: datetime
    result: str
    code: int | None
    is_final: bool
    worker: str
    error: str | None
    excerpt: str | None
    output: str | None
    held_ms: int | None


class FloorTimer(NamedTuple):
    """All columns of `timers`."""

    job_id: int
    fire_at: datetime
    due_at: datetime
    tenant_id: int
    rule_id: int
    last_lane: int | None
    last_seq: int | None
    gate_id: int | None
    queue_id: int
    spec_version: int
    kind: str
    reason: str | None
    partition: int
    attempt: int
    priority: int


_TABLES = {FloorAttempt: "floor_attempts", FloorOutcome: "floor_outcomes", FloorTimer: "timers"}


async def make_tables(connection: Connection) -> None:
    await _SQL["make_attempts"].execute(connection)
    await _SQL["make_outcomes"].execute(connection)


async def empty_tables(connection: Connection) -> None:
    await _SQL["empty"].execute(connection)


async def copy(connection: Connection, rows: Sequence[FloorAttempt | FloorOutcome | FloorTimer]) -> int:
    """Append rows to their table. Returns how many were written."""
    table, columns = _TABLES[type(rows[0])], rows[0]._fields
    status = await connection.copy_records_to_table(table, records=rows, columns=columns, schema_name=DATABASE_SCHEMA)
    return row_count(status)


async def move(connection: Connection, fired: Sequence[FloorAttempt], next_at: datetime) -> int:
    """Update the timers of these attempts, which share a fire time. Returns how many there were."""
    status = await _SQL["move"].execute(
        connection,
        fire_at=fired[0].fire_at,
        next_at=next_at,
        job_ids=[row.job_id for row in fired],
        lane_ids=[row.lane_id for row in fired],
        seqs=[row.seq for row in fired],
    )
    return row_count(status)


async def fire(session: Session, rows: Sequence[FloorAttempt], next_at: datetime) -> int:
    """Update timers and copy attempts in one transaction. Returns how many runs have both."""
    async with session.transaction():
        moved = await move(session, rows, next_at)
        return min(moved, await copy(session, rows))
