"""Evertick's tables in a schema of another name, beside those of an application."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import asyncpg
import pytest

import postgres
from engine import PATIENCE_SECONDS, until
from evertick import App, InvalidInput
from evertick.domain.states import RunStatus
from evertick.sdk.submitting import Submitted
from evertick.store import statements
from evertick.store.database import connect, open_pool
from evertick.store.engine import lanes
from evertick.store.engine.members import only_janitor
from evertick.store.location import Location
from evertick.store.migrate import SchemaMismatch, check_schema, migrate
from evertick.store.tenants import idempotency

LOCK_GATE = statements.load("gates")["lock"]


async def test_two_schemas_of_one_database_know_nothing_of_each_other(postgres_server: postgres.Server) -> None:
    async with postgres_server.database(empty=True) as url:
        first, second = [await connect(Location(url, schema=schema)) for schema in ("evertick", "jobs_of_shop")]
        await migrate(first)
        with pytest.raises(SchemaMismatch, match="lacks"):
            await check_schema(second)
        await migrate(second)
        await check_schema(second)
        await first.execute("UPDATE tenants SET weight = 7")
        assert await second.fetchval("SELECT weight FROM tenants") == 1
        for connection in (first, second):
            await connection.close()


async def test_two_schemas_of_one_database_do_not_wait_for_each_other(postgres_server: postgres.Server) -> None:
    async with postgres_server.database(empty=True) as url, AsyncExitStack() as stack:
        pools = []
        for schema in ("evertick", "jobs_of_shop"):
            pool = await stack.enter_async_context(await open_pool(Location(url, schema=schema), max_size=3))
            async with pool.acquire() as session:
                await migrate(session)
                await session.execute("UPDATE tenants SET running_quota = 7")
                await session.execute(
                    "INSERT INTO queues (queue_id, tenant_id, name, max_running) VALUES (7, 1, 'q', 7)"
                )
            pools.append(pool)
        # Each has its locks while the other one takes its own; a second session of the same schema does not get them.
        for pool in pools:
            assert await stack.enter_async_context(only_janitor(pool))
            async with only_janitor(pool) as is_ours:
                assert not is_ours
        for pool in pools:
            session = await stack.enter_async_context(pool.acquire())
            await stack.enter_async_context(session.transaction())
            assert await idempotency.begin(session, 1, ["key"]) == {"key"}
            assert not (await lanes.lock_rooms(session, {7: 1}, None)).is_cut
            assert await session.fetch(LOCK_GATE.text, [7])
            assert not await pool.fetch(LOCK_GATE.text, [7])
        # A migration of one schema goes on while that of the other one is under way.
        held = await stack.enter_async_context(pools[0].acquire())
        await stack.enter_async_context(held.transaction())
        await held.execute("SELECT pg_advisory_xact_lock($1)", int.from_bytes(b"evertick", "big"))
        async with asyncio.timeout(PATIENCE_SECONDS), pools[1].acquire() as session:
            assert await migrate(session) == 0


@pytest.mark.parametrize("schema", ["shop_jobs", "order"])  # the latter is a reserved word
async def test_an_app_runs_in_a_schema_of_another_name_beside_a_table_of_the_application(
    postgres_server: postgres.Server, schema: str
) -> None:
    async with postgres_server.database(empty=True) as url:
        own = await asyncpg.connect(url)
        await own.execute("CREATE TABLE jobs (title text)")
        app = App(database_url=url, schema=schema)

        @app.handler()
        async def greet(name: str) -> None: ...

        async with app.running():
            submitted = await app.submit(greet, {"name": "world"})
            await until(lambda: has_succeeded(submitted))
            async with own.transaction():
                await app.submit(greet, {"name": "world"}, connection=own)
        assert await own.fetchval(f'SELECT count(*) FROM "{schema}".jobs') == 2
        await own.close()


def test_the_schema_in_which_others_may_create_is_refused() -> None:
    with pytest.raises(InvalidInput, match="schema: must not be public: other roles may create functions there"):
        App(schema="public")


async def has_succeeded(submitted: Submitted[Any]) -> bool:
    return await submitted.status() is RunStatus.SUCCESS
