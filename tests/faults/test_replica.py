"""A real standby for lists and figures: used while it is recent, and never needed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from api.callers import JOB, Caller, Callers
from engine import until
from evertick.api.server import ApiServer
from evertick.config.settings import Settings
from evertick.metrics.catalog import REPLICA_READS
from evertick.roles.scheduler import Scheduler
from evertick.store.database import open_pool
from evertick.usecases import doctor
from evertick.usecases.diagnosis import Diagnosis, Level
from faults.replication import Pair, replicated

pytestmark = pytest.mark.slow

MAX_LAG_SECONDS = 2.0
LISTS = ("/runs", "/dead-letters", "/audit-log", "/stats")


@asynccontextmanager
async def served(pair: Pair, settings: Settings) -> AsyncIterator[Caller]:
    """An API with a scheduler, and one of its callers."""
    server = ApiServer(pair.primary.url(), settings, connections=4)
    scheduler = Scheduler(pair.primary.url(), "node", heartbeat=timedelta(seconds=0.2))
    await scheduler.start()
    await server.start()
    pool = await open_pool(pair.primary.url(), max_size=1)
    callers = Callers(server.address, pool)
    try:
        yield await callers.make("admin")
    finally:
        await callers.close()
        await pool.close()
        await server.stop()
        await scheduler.stop()


async def answered_by(caller: Caller, path: str) -> str:
    """Which server has answered a list."""
    before = {name: REPLICA_READS.value(name) for name in ("replica", "primary")}
    answer = await caller.get(path)
    assert answer.status_code == 200, answer.text
    (name,) = (name for name, count in before.items() if REPLICA_READS.value(name) > count)
    return name


async def until_answered_by(caller: Caller, name: str) -> None:
    async def is_answered() -> bool:
        return await answered_by(caller, "/runs") == name

    await until(is_answered)


async def test_a_standby_answers_lists_while_it_is_recent(data_dir: Path) -> None:
    async with replicated(data_dir) as pair:
        settings = Settings(
            port=0,
            database_replica_url=pair.standby.url(),
            database_replica_max_lag_seconds=MAX_LAG_SECONDS,
        )
        async with served(pair, settings) as caller:
            await until_answered_by(caller, "replica")
            assert {path: await answered_by(caller, path) for path in LISTS} == dict.fromkeys(LISTS, "replica")
            await check_that_changes_are_seen_at_once(pair, caller)
            await check_a_standby_that_falls_behind(pair, caller, settings)
            pair.standby.kill()
            for _ in range(3):
                assert (await caller.get("/runs")).status_code == 200
            await until_answered_by(caller, "primary")
            assert (await diagnosed(pair, settings)).level is Level.WARNING


async def check_that_changes_are_seen_at_once(pair: Pair, caller: Caller) -> None:
    """A new job can be read, and its runs be listed, though the standby knows nothing of it."""
    await pair.standby.ask("SELECT pg_wal_replay_pause()")
    job = await caller.create(**JOB)
    assert (await caller.get(f"/jobs/{job['job_id']}")).status_code == 200
    assert (await caller.get(f"/jobs/{job['job_id']}/runs")).status_code == 200
    await pair.standby.ask("SELECT pg_wal_replay_resume()")


async def check_a_standby_that_falls_behind(pair: Pair, caller: Caller, settings: Settings) -> None:
    await until_answered_by(caller, "replica")
    assert (await diagnosed(pair, settings)).level is Level.OK
    await pair.standby.ask("SELECT pg_wal_replay_pause()")
    await until_answered_by(caller, "primary")
    assert "not used" in (await diagnosed(pair, settings)).what
    metrics = await caller.get(str(caller.base_url.copy_with(path="/metrics")))
    assert "evertick_replica_lag_seconds" in metrics.text
    await pair.standby.ask("SELECT pg_wal_replay_resume()")
    await until_answered_by(caller, "replica")


async def diagnosed(pair: Pair, settings: Settings) -> Diagnosis:
    async with await open_pool(pair.primary.url(), max_size=1) as pool:
        findings = await doctor.examine(pool, settings=settings)
    return next(finding for finding in findings if finding.name == "replica")
