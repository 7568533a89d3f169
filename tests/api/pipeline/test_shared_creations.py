"""Requests that come while others' jobs are being written share a transaction, and do not notice."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import httpx

from api.callers import JOB, Caller, is_problem
from api.processes import served
from engine import until
from evertick.runtime.concurrency import MAX_CONCURRENT

Asking = asyncio.Task[httpx.Response]


def ask(caller: Caller, name: str, key: str | None = None, **fields: object) -> Asking:
    headers = {} if key is None else {"Idempotency-Key": key}
    return asyncio.create_task(caller.post("/jobs", json={**JOB, "name": name, **fields}, headers=headers))


@asynccontextmanager
async def held_up(connection: asyncpg.Connection, caller: Caller) -> AsyncIterator[list[Asking]]:
    """As many transactions as may be are stuck before their commit: all who ask now will share the next one."""
    await caller.create(name="so that rules, queues and lanes are there")
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))"
    async with connection.transaction():
        await connection.execute("LOCK TABLE audit_log IN EXCLUSIVE MODE")
        stuck = []
        for number in range(MAX_CONCURRENT):
            stuck.append(ask(caller, f"stuck {number}"))

            async def is_stuck(wanted: int = number + 1) -> bool:
                return bool(await connection.fetchval(waiting) == wanted)

            await until(is_stuck)
        yield stuck


async def arrived(caller: Caller) -> None:
    """Until what was sent before this has been read: an answered request went the same way."""
    for _ in range(3):
        assert (await caller.get("/jobs")).status_code == 200


async def test_those_who_share_a_transaction_get_the_answers_that_they_would_get_alone(
    admin: Caller, connection: asyncpg.Connection
) -> None:
    async with held_up(connection, admin) as stuck:
        asked = [
            ask(admin, "good", key="k"),
            ask(admin, "taken twice"),
            ask(admin, "taken twice"),
            ask(admin, "never", schedule="0 0 30 2 *"),
        ]
        await arrived(admin)
    good, *twice, never = await asyncio.gather(*asked)
    assert {answer.status_code for answer in await asyncio.gather(*stuck)} == {201}
    assert good.status_code == 201
    assert (await admin.get(good.headers["location"].removeprefix("/api/v1"))).json() == good.json()
    assert sorted(answer.status_code for answer in twice) == [201, 409]
    is_problem(never, 422, "invalid-input")
    again = await ask(admin, "good", key="k")
    assert (again.content, again.headers["idempotency-replayed"]) == (good.content, "true")
    written = await connection.fetch("SELECT xmin::text, name FROM jobs WHERE name IN ('good', 'taken twice')")
    assert len({row["xmin"] for row in written}) == 1, "they did not share one"


async def test_one_that_the_database_refuses_fails_alone_and_the_others_are_told_of_the_jobs_that_they_have(
    admin: Caller, connection: asyncpg.Connection
) -> None:
    await connection.execute("ALTER TABLE idempotency_keys ADD CHECK (key <> 'poison')")
    async with held_up(connection, admin) as stuck:
        asked = [ask(admin, "good", key="k"), ask(admin, "bad", key="poison"), ask(admin, "also good")]
        await arrived(admin)
    good, poison, also_good = await asyncio.gather(*asked)
    await asyncio.gather(*stuck)
    is_problem(poison, 500, "internal")
    for answer in (good, also_good):
        assert (await admin.get(answer.headers["location"].removeprefix("/api/v1"))).json() == answer.json()
    assert (await ask(admin, "good", key="k")).content == good.content


async def test_a_server_killed_with_a_shared_transaction_leaves_nothing_of_it(
    admin: Caller, connection: asyncpg.Connection, database_url: str, tmp_path: Path
) -> None:
    assert admin.key is not None
    with served(database_url, tmp_path / "log") as process:
        doomed = Caller(process.address, admin.key)
        async with held_up(connection, doomed) as stuck:
            asked = [ask(doomed, "a", key="k"), ask(doomed, "b")]
            await arrived(doomed)
            process.kill()
            for answer in await asyncio.gather(*stuck, *asked, return_exceptions=True):
                assert isinstance(answer, httpx.TransportError)
        await doomed.aclose()
    assert [job["name"] for job in (await admin.get("/jobs")).json()] == ["so that rules, queues and lanes are there"]

    async def is_created() -> bool:
        return (await ask(admin, "a", key="k")).status_code == 201

    await until(is_created)
