"""Requests of one tenant that wait must not keep those of others from being answered."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from api.callers import JOB, Caller, Callers, is_problem
from engine import until
from evertick.api import server as serving
from evertick.api.problems import Kind, problem_of
from evertick.api.server import ApiServer
from evertick.store.database import Patience, Pool
from evertick.usecases.context import Tenant
from evertick.usecases.create import create
from evertick.usecases.joining import joined


async def test_requests_that_wait_for_one_row_leave_room_for_workers_and_probes(
    admin: Caller, callers: Callers, connection: asyncpg.Connection, pool: Pool
) -> None:
    job = await admin.create(name="hot")
    worker = await callers.make("worker", await callers.tenant())

    async def all_wait() -> bool:
        return bool(await pool.fetchval("SELECT count(*) >= 8 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))

    async with connection.transaction():
        await connection.execute("SELECT FROM jobs WHERE name = 'hot' FOR UPDATE")
        edits = [
            asyncio.create_task(admin.patch(f"/jobs/{job['job_id']}", json={"max_retries": number}))
            for number in range(12)
        ]
        await until(all_wait)
        began = time.monotonic()
        assert (await worker.post("/workers/w/heartbeat", json={})).status_code == 200
        assert (await worker.get(f"{callers.address}/readyz")).status_code == 200
        assert time.monotonic() - began < 1
        done, _ = await asyncio.wait(edits, return_when=asyncio.FIRST_COMPLETED)
        refused = done.pop().result()
        is_problem(refused, 503, "unavailable")
        assert int(refused.headers["retry-after"]) > 0
    await asyncio.gather(*edits)


async def test_a_tenant_does_not_wait_for_another_that_brings_the_same_new_schedule(
    admin: Caller, callers: Callers, pool: Pool
) -> None:
    other = await callers.make("editor", await callers.tenant())
    schedule = {"schedule": "17 3 * * *"}
    async with joined(Tenant(pool, 1)) as inside:
        await create(inside, {**JOB, "name": "taken"})
        waiting = asyncio.create_task(admin.post("/jobs", json={**JOB, **schedule, "name": "taken"}))
        await until(
            lambda: pool.fetchval("SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock')")
        )
        await other.create(**schedule)
        assert not waiting.done()
    is_problem(await waiting, 409, "name-taken")


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.DeadlockDetectedError("x"),
        asyncpg.LockNotAvailableError("x"),
        asyncpg.SerializationError("x"),
        asyncpg.QueryCanceledError("x"),
        asyncpg.InterfaceError("pool is closing"),
    ],
)
def test_what_others_or_a_stop_are_to_blame_for_may_be_tried_again(error: Exception) -> None:
    problem = problem_of(error, "some id")
    assert problem.kind is Kind.UNAVAILABLE
    assert problem.headers["Retry-After"]


class _Line:
    """The way to the database, which can freeze: whatever is on it stays there."""

    def __init__(self, url: str) -> None:
        parts, query = urlsplit(url), parse_qs(urlsplit(url).query)
        self._socket = f"{query['host'][0]}/.s.PGSQL.{query.get('port', ['5432'])[0]}"
        self._login = f"{parts.username or query['user'][0]}:{parts.password or ''}"
        self._database = parts.path
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.url = ""

    def freeze(self) -> None:
        self._flowing.clear()

    @asynccontextmanager
    async def open(self) -> AsyncIterator["_Line"]:
        async with await asyncio.start_server(self._serve, "127.0.0.1", 0) as listening:
            port = listening.sockets[0].getsockname()[1]
            self.url = f"postgresql://{self._login}@127.0.0.1:{port}{self._database}"
            yield self
            self._flowing.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_unix_connection(self._socket)
        await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer), return_exceptions=True)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            await self._flowing.wait()
            writer.write(data)
            await writer.drain()
        writer.close()


async def test_the_server_stops_though_the_line_to_the_database_is_frozen(
    database_url: str, admin: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "PATIENCE", Patience(connection_seconds=1, command_seconds=1, lock_seconds=1))
    monkeypatch.setattr(serving, "STOP_SECONDS", 0.5)
    async with _Line(database_url).open() as line:
        server = ApiServer(line.url, port=0, connections=2)
        await server.start()
        async with Caller(server.address, admin.key) as caller:
            assert (await caller.get("/jobs")).status_code == 200
            line.freeze()
            is_problem(await caller.get("/jobs"), 503, "unavailable")
        async with asyncio.timeout(20):
            await server.stop()
