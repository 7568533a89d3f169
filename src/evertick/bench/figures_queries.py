"""Figures of a measurement: how far it is, what the ledgers say afterwards, what server it ran on."""

import json
from datetime import datetime
from typing import Any, NamedTuple

from evertick.store import statements
from evertick.store.database import Pool, lacks_privilege
from evertick.store.statements import Connection, Statement

_SQL = statements.load("figures", "evertick.bench")
_PATIENCE_SECONDS = 3600
"""What reads whole tables may take as long as they are large."""


class Counters(NamedTuple):
    """How many of each were written."""

    attempts: int
    outcomes: int


class Leases(NamedTuple):
    """Whether anything is leased, when the earliest lease expires, and the database's time."""

    is_any: bool
    expires_at: datetime | None
    now_at: datetime


class Runs(NamedTuple):
    """What the ledgers say. `duplicates` are starts beyond a run's first; `lags_ms` are percentiles 50, 95, 99, 100."""

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


class Activity(NamedTuple):
    transactions: int
    now_at: datetime


class Server(NamedTuple):
    version: str
    settings: dict[str, str]


async def counters(connection: Connection) -> Counters:
    row = await _SQL["counters"].fetchrow(connection)
    assert row is not None
    return Counters(*row)


async def leases(connection: Connection) -> Leases:
    row = await _SQL["leases"].fetchrow(connection)
    assert row is not None
    return Leases(*row)


async def is_ready(connection: Connection) -> bool:
    """Whether any attempt waits to be leased."""
    found: bool = await _SQL["is_ready"].fetchval(connection)
    return found


async def held(connection: Connection) -> int:
    """How many partitions have a holder."""
    count: int = await _SQL["held"].fetchval(connection)
    return count


async def runs(pool: Pool, queue: str, from_at: datetime, until_at: datetime) -> Runs:
    """The runs of a queue whose fire times are in [from_at, until_at)."""
    return Runs(*await _patiently(pool, _SQL["runs"], queue=queue, from_at=from_at, until_at=until_at))


async def gaps(pool: Pool, from_at: datetime, until_at: datetime) -> int:
    """How many ticks in the stretch did not run."""
    count: int = (await _patiently(pool, _SQL["gaps"], from_at=from_at, until_at=until_at))["ticks"]
    return count


async def queue_jobs(pool: Pool, queue: str) -> int:
    count: int = (await _patiently(pool, _SQL["queue_jobs"], queue=queue))["count"]
    return count


async def sizes(connection: Connection) -> Sizes:
    row = await _SQL["sizes"].fetchrow(connection)
    assert row is not None
    return Sizes(*row)


async def activity(connection: Connection) -> Activity:
    row = await _SQL["activity"].fetchrow(connection)
    assert row is not None
    return Activity(*row)


async def server(connection: Connection) -> Server:
    row = await _SQL["server"].fetchrow(connection)
    assert row is not None
    return Server(row["version"], json.loads(row["settings"]))


async def tidy(pool: Pool) -> None:
    """Do now what vacuum and checkpoints would do in the middle of a measurement."""
    await pool.execute(_SQL["vacuum"].text, timeout=_PATIENCE_SECONDS)
    try:
        await pool.execute(_SQL["checkpoint"].text, timeout=_PATIENCE_SECONDS)
    except Exception as error:
        if not lacks_privilege(error):  # else the server makes one by its own schedule
            raise


async def _patiently(pool: Pool, statement: Statement, **values: Any) -> Any:
    row = await pool.fetchrow(statement.text, *statement.arguments(values), timeout=_PATIENCE_SECONDS)
    assert row is not None
    return row
