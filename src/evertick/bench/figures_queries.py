"""Figures of a measurement: how far it is, what the ledgers say afterwards, what server it ran on."""

import json
from datetime import datetime
from typing import NamedTuple

from evertick.store import statements
from evertick.store.database import Pool, lacks_privilege
from evertick.store.statements import Connection

_WHOLE_TABLES_SECONDS = 3600
"""The time-out of statements that read whole tables."""


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


class _ServerRow(NamedTuple):
    version: str
    settings: str


_SQL = statements.load("figures", "evertick.bench")
_COUNTERS = _SQL["counters"].rows(Counters)
_LEASES = _SQL["leases"].rows(Leases)
_IS_READY = _SQL["is_ready"].values(bool)
_HELD = _SQL["held"].values(int)
_RUNS = _SQL["runs"].rows(Runs)
_GAPS = _SQL["gaps"].values(int)
_QUEUE_JOBS = _SQL["queue_jobs"].values(int)
_SIZES = _SQL["sizes"].rows(Sizes)
_ACTIVITY = _SQL["activity"].rows(Activity)
_SERVER = _SQL["server"].rows(_ServerRow)


async def counters(connection: Connection) -> Counters:
    return await _COUNTERS.one(connection)


async def leases(connection: Connection) -> Leases:
    return await _LEASES.one(connection)


async def is_ready(connection: Connection) -> bool:
    """Whether any attempt waits to be leased."""
    return await _IS_READY.one(connection)


async def held(connection: Connection) -> int:
    """How many partitions have a holder."""
    return await _HELD.one(connection)


async def runs(pool: Pool, queue: str, from_at: datetime, until_at: datetime) -> Runs:
    """The runs of a queue whose fire times are in [from_at, until_at)."""
    return await _RUNS.one(pool, _WHOLE_TABLES_SECONDS, queue=queue, from_at=from_at, until_at=until_at)


async def gaps(pool: Pool, from_at: datetime, until_at: datetime) -> int:
    """How many ticks in the stretch did not run."""
    return await _GAPS.one(pool, _WHOLE_TABLES_SECONDS, from_at=from_at, until_at=until_at)


async def queue_jobs(pool: Pool, queue: str) -> int:
    return await _QUEUE_JOBS.one(pool, _WHOLE_TABLES_SECONDS, queue=queue)


async def sizes(connection: Connection) -> Sizes:
    return await _SIZES.one(connection)


async def activity(connection: Connection) -> Activity:
    return await _ACTIVITY.one(connection)


async def server(connection: Connection) -> Server:
    row = await _SERVER.one(connection)
    return Server(row.version, json.loads(row.settings))


async def tidy(pool: Pool) -> None:
    """Do now what vacuum and checkpoints would do in the middle of a measurement."""
    await pool.execute(_SQL["vacuum"].text, timeout=_WHOLE_TABLES_SECONDS)
    try:
        await pool.execute(_SQL["checkpoint"].text, timeout=_WHOLE_TABLES_SECONDS)
    except Exception as error:
        if not lacks_privilege(error):  # else the server makes one by its own schedule
            raise
