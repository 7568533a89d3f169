import asyncio

import asyncpg

from engine import until_blocked
from evertick.domain.cluster_identity import Suspicion
from evertick.store.engine import identity

PLAIN = "evertick_plain_reader"
FUNCTIONS = ("pg_control_system()", "pg_walfile_name(pg_lsn)")


async def test_a_plain_role_reads_what_a_server_is_unless_it_is_refused(
    connection: asyncpg.Connection, second: asyncpg.Connection
) -> None:
    await connection.execute(f"CREATE ROLE {PLAIN}")
    try:
        await connection.execute(f"GRANT USAGE ON SCHEMA evertick TO {PLAIN}")
        await connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA evertick TO {PLAIN}")
        await second.execute(f"SET ROLE {PLAIN}")
        told = await identity.facts(second)
        assert told.system_identifier
        assert told.timeline == 1
        for function in FUNCTIONS:
            await connection.execute(f"REVOKE EXECUTE ON FUNCTION {function} FROM PUBLIC")
        refused = await identity.facts(second)
        assert (refused.system_identifier, refused.timeline) == (None, None)
        assert refused.database_oid == told.database_oid
    finally:
        await connection.execute(f"DROP OWNED BY {PLAIN}")
        await connection.execute(f"DROP ROLE {PLAIN}")


async def test_what_was_judged_by_facts_of_before_changes_nothing(connection: asyncpg.Connection) -> None:
    known = await identity.facts(connection)
    assert await identity.confirm(connection, known)
    assert not await identity.confirm(connection, known)
    assert not await identity.suspect(connection, known, Suspicion.RECOVERED)
    assert await identity.may_work(connection)
    current = await identity.facts(connection)
    other = current._replace(server_started_at=current.now_at)
    assert not await identity.confirm(connection, other)
    assert not await identity.suspect(connection, other, Suspicion.RECOVERED)


async def test_of_two_decisions_at_once_the_first_counts(
    connection: asyncpg.Connection, second: asyncpg.Connection, watcher: asyncpg.Connection
) -> None:
    await identity.confirm(connection, await identity.facts(connection))
    known = await identity.facts(connection)
    async with connection.transaction():
        assert await identity.suspect(connection, known, Suspicion.BEHIND)
        later = asyncio.create_task(identity.confirm(second, known))
        await until_blocked(watcher, second)
    assert not await later
    assert await identity.suspicion(connection) is Suspicion.BEHIND
    assert not await identity.may_work(connection)
