"""Archived runs over HTTP: the same list, the same links, and clear problems where the archive cannot be read."""

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from api.callers import Caller, Callers, is_problem
from archives import directory_archive, files_in
from evertick.api.server import ApiServer
from evertick.client import AsyncClient
from evertick.config.settings import Settings
from evertick.domain.ids import Prefix, format_id
from evertick.roles.janitor.archiving import Archiving
from evertick.store.database import Pool
from roles.aged_tables import AgedTables, Job

HISTORY = timedelta(days=90)


@pytest.fixture
async def server(database_url: str, tmp_path: Path) -> AsyncIterator[ApiServer]:
    server = ApiServer(database_url, Settings(port=0, archive_url=tmp_path.as_uri()), connections=8)
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def job(connection: asyncpg.Connection, pool: Pool, tmp_path: Path) -> Job:
    """A job with two runs on an archived day and two of yesterday."""
    aged = AgedTables(connection)
    job = await aged.job(age=2 * HISTORY)
    old_at = (await aged.now() - timedelta(days=100)).replace(hour=12)
    for first_at in (old_at, (await aged.now() - timedelta(days=1)).replace(hour=12)):
        for minute in range(2):
            await aged.head(job, await aged.attempt(job, first_at + timedelta(minutes=minute), ended=True))
    async with directory_archive(tmp_path) as archive:
        assert await Archiving(pool, archive, HISTORY).archive_days() == 1
    return job


async def walked(admin: Caller, path: str) -> list[dict[str, Any]]:
    """All entries of a list, by its links."""
    found: list[dict[str, Any]] = []
    while True:
        answer = await admin.get(path)
        found += answer.json()
        if "Link" not in answer.headers:
            return found
        path = answer.headers["Link"].partition(">")[0].removeprefix("<").removeprefix("/api/v1")


async def test_links_lead_from_live_to_archived_runs(admin: Caller, job: Job) -> None:
    job_id = format_id(Prefix.JOB, job.job_id)
    found: list[dict[str, Any]] = []
    for path in ("/runs", f"/jobs/{job_id}/runs"):
        assert len(await walked(admin, f"{path}?limit=1")) == 2
        found = await walked(admin, f"{path}?limit=1&archive=true")
        times = [datetime.fromisoformat(run["scheduled_at"]) for run in found]
        assert len(times) == 4
        assert times == sorted(times, reverse=True)
        assert {tuple(run) for run in found} == {tuple(found[0])}, "all have the same form"
    old = found[-1]["run_id"]
    assert is_problem(await admin.get(f"/runs/{old}"), 404, "not-found")
    assert len((await admin.get(f"/runs/{old}?archive=true")).json()["attempts"]) == 1


async def test_the_client_reads_archived_runs(server: ApiServer, admin: Caller, callers: Callers, job: Job) -> None:
    key = (await admin.post("/api-keys", json={"role": "viewer"})).json()["api_key"]
    async with AsyncClient(server.address, key) as client:
        runs = [run async for run in client.runs.list(archive=True)]
        assert len(runs) == 4
        assert (await client.runs.get(runs[-1].run_id, archive=True)).status == "success"
        assert len([run async for run in client.jobs.runs(runs[0].job_id, archive=True)]) == 4


async def test_an_archive_that_cannot_be_read_is_a_problem(admin: Caller, job: Job, tmp_path: Path) -> None:
    for path in files_in(tmp_path):
        (tmp_path / path).unlink()
    answer = await admin.get("/runs?archive=true&limit=100")
    assert is_problem(answer, 503, "unavailable")
    assert "Retry-After" in answer.headers
    assert (await admin.get("/runs")).status_code == 200


async def test_a_server_without_an_archive_says_so(database_url: str, pool: Pool) -> None:
    server = ApiServer(database_url, Settings(port=0), connections=8)
    await server.start()
    callers = Callers(server.address, pool)
    admin = await callers.make("admin")
    assert is_problem(await admin.get("/runs?archive=true"), 409, "wrong-state")
    await callers.close()
    await server.stop()
