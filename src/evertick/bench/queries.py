"""The statements of measurements: progress, results, sizes, preparation."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import NamedTuple

from evertick.store import statements
from evertick.store.database import Pool, Session, connect, lacks_privilege
from evertick.store.statements import Connection, row_count

_SLOW_SECONDS = 3600
"""Timeout of statements that read whole tables."""


class WrittenRows(NamedTuple):
    """How many rows of each table were written."""

    attempts: int
    outcomes: int


class Leases(NamedTuple):
    """Whether anything is leased, when the earliest lease expires, and the database's time."""

    is_any: bool
    expires_at: datetime | None
    now_at: datetime


class RunStatistics(NamedTuple):
    """`duplicates` are starts after a run's first start. `lags_ms` are the percentiles 50, 95, 99 and 100."""

    runs: int
    succeeded: int
    duplicates: int
    first_started_at: datetime | None
    last_finished_at: datetime | None
    lags_ms: list[float] | None


class Sizes(NamedTuple):
    """Bytes, with indexes."""

    jobs: int
    job_versions: int
    timers: int


class Footprint(NamedTuple):
    """Bytes, with indexes, of tables that grow with each run and of tables that must not grow."""

    attempts: int
    outcomes: int
    timers: int
    lanes: int
    leases: int


class Skipped(NamedTuple):
    reason: str
    ticks: int


class Backlog(NamedTuple):
    """Attempts that wait to be leased, timers that are due, and how long the oldest of them has been due."""

    ready: int
    overdue: int
    oldest_seconds: float


class TransactionCount(NamedTuple):
    transactions: int
    now_at: datetime


class ServerInfo(NamedTuple):
    """The version, and the settings as JSON."""

    version: str
    settings: str


_SQL = statements.load("measurements", "evertick.bench")
_RUNS = _SQL["runs"].rows(RunStatistics)
_SKIPPED = _SQL["skipped"].rows(Skipped)
_GAPS = _SQL["gaps"].values(int)
_QUEUE_JOBS = _SQL["queue_jobs"].values(int)

written_rows = _SQL["counters"].rows(WrittenRows).one
leases = _SQL["leases"].rows(Leases).one
is_ready = _SQL["is_ready"].values(bool).one
"""Whether any attempt waits to be leased."""
held = _SQL["held"].values(int).one
"""How many partitions have a holder."""
backlog = _SQL["backlog"].rows(Backlog).one
_ADD_TENANTS = _SQL["add_tenants"].values(int)
sizes = _SQL["sizes"].rows(Sizes).one
footprint = _SQL["footprint"].rows(Footprint).one
activity = _SQL["activity"].rows(TransactionCount).one
server = _SQL["server"].rows(ServerInfo).one


async def runs(
    pool: Pool, queue: str, from_at: datetime, until_at: datetime, tenant_ids: Sequence[int] | None = None
) -> RunStatistics:
    """The runs of a queue, by default of all tenants, whose fire times are in [from_at, until_at)."""
    return await _RUNS.one(pool, _SLOW_SECONDS, queue=queue, from_at=from_at, until_at=until_at, tenant_ids=tenant_ids)


async def skipped(
    pool: Pool, queue: str, from_at: datetime, until_at: datetime, tenant_ids: Sequence[int] | None = None
) -> dict[str, int]:
    """How many ticks of a queue in [from_at, until_at) did not run, by reason."""
    rows = await _SKIPPED.all(pool, queue=queue, from_at=from_at, until_at=until_at, tenant_ids=tenant_ids)
    return {row.reason: row.ticks for row in rows}


async def gaps(pool: Pool, from_at: datetime, until_at: datetime) -> int:
    """How many ticks in [from_at, until_at) did not run."""
    return await _GAPS.one(pool, _SLOW_SECONDS, from_at=from_at, until_at=until_at)


async def queue_jobs(pool: Pool, queue: str) -> int:
    return await _QUEUE_JOBS.one(pool, _SLOW_SECONDS, queue=queue)


async def make_due(
    connection: Connection, queue: str, partition: int, fire_at: datetime, tenant_ids: Sequence[int] | None = None
) -> int:
    """Make the jobs of a queue in a partition, by default of all tenants, due at an instant. Returns how many."""
    status = await _SQL["make_due"].execute(
        connection, queue=queue, partition=partition, fire_at=fire_at, tenant_ids=tenant_ids
    )
    return row_count(status)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Session]:
    """A connection besides the pool, which has few."""
    connection = await connect(url)
    try:
        yield connection
    finally:
        await connection.close()


async def add_tenants(pool: Pool, count: int) -> list[int]:
    """New tenants, by their ids. Ids are random, so a few may have to be drawn again."""
    added: list[int] = []
    while len(added) < count:
        added += await _ADD_TENANTS.all(pool, count=count - len(added))
    return added


@asynccontextmanager
async def held_snapshot(url: str) -> AsyncIterator[None]:
    """Hold a snapshot: vacuum cannot remove rows that die meanwhile."""
    async with connected(url) as session, session.transaction(isolation="repeatable_read", readonly=True):
        await _SQL["hold_snapshot"].execute(session)
        yield


async def vacuum_and_checkpoint(pool: Pool) -> None:
    """Run VACUUM and CHECKPOINT, so that they do not run during the measurement."""
    await pool.execute(_SQL["vacuum"].text, timeout=_SLOW_SECONDS)
    try:
        await pool.execute(_SQL["checkpoint"].text, timeout=_SLOW_SECONDS)
    except Exception as error:
        if not lacks_privilege(error):  # without the privilege, the server checkpoints on its own schedule
            raise
