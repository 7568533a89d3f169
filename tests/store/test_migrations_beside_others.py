"""What a migration makes processes of the version before wait for: tables that it rewrites, or builds an index on."""

import asyncpg

import postgres
from evertick.store.database import connect
from evertick.store.migrate import migrate, migrations

FILES = """
SELECT file.oid::bigint AS id, file.relfilenode::bigint AS content, used.oid::bigint AS table_id,
       coalesce(pg_partition_root(used.oid), used.oid)::regclass::text AS table_name
  FROM pg_class used
  LEFT JOIN pg_index index ON index.indrelid = used.oid
  JOIN pg_class file ON file.oid IN (used.oid, index.indexrelid)
 WHERE used.relnamespace = to_regnamespace('evertick') AND used.relkind = 'r'
"""
WAITED_FOR = {
    "0002_api": {"leases", "tenants"},
    "0004_brokers": {"queues"},
    "0010_dashboard": {"jobs"},  # changes of jobs wait: about 0.3 s with a million
    "0019_newest_versions_first": {"leases"},
}
"""Small tables, and what is said to be worth it. What takes long on a large table has to be done in another way."""


async def _files(connection: asyncpg.Connection) -> dict[int, asyncpg.Record]:
    """The tables and their indexes, each with what tells whether it was written anew."""
    return {row["id"]: row for row in await connection.fetch(FILES)}


async def test_a_migration_neither_rewrites_a_table_in_use_nor_builds_an_index_on_it(
    postgres_server: postgres.Server,
) -> None:
    steps = migrations()
    written: dict[str, set[str]] = {}
    async with postgres_server.database(empty=True) as url:
        connection = await connect(url)
        before = await _files(connection)
        for number, step in enumerate(steps, 1):
            await migrate(connection, known=steps[:number])
            after = await _files(connection)
            in_use = {row["table_id"] for row in before.values()}
            if new := {
                row["table_name"] for row in after.values() if row["table_id"] in in_use and row not in before.values()
            }:
                written[step.name] = new
            before = after
        await connection.close()
    assert written == WAITED_FOR
