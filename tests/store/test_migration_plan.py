"""What `evertick migrate --plan` says of each statement, compared with what PostgreSQL does."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

import postgres
from evertick.store.database import connect
from evertick.store.migrate import Migration, migrations, waiting_migrations
from evertick.store.migration_plan import NO_LOCK, UNKNOWN, lock_of, statements, steps


@pytest.fixture
async def empty(postgres_server: postgres.Server) -> AsyncIterator[asyncpg.Connection]:
    async with postgres_server.database(empty=True) as url:
        connection = await connect(url)
        yield connection
        await connection.close()


TABLES = """
CREATE TABLE parent (id bigint PRIMARY KEY, day integer);
CREATE TABLE kept (id bigint, other bigint);
ALTER TABLE kept ADD CONSTRAINT positive CHECK (id > 0) NOT VALID;
CREATE TABLE parts (id bigint) PARTITION BY RANGE (id);
CREATE TABLE loose (id bigint);
CREATE INDEX kept_other ON kept (other);
CREATE TYPE colour AS ENUM ('red');
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$;
"""
TABLE_NAMES = ("parent", "kept", "parts", "loose")
ATTACH = "ALTER TABLE parts ATTACH PARTITION loose FOR VALUES FROM (1) TO (2)"
STRENGTH = [
    "AccessShareLock",
    "RowShareLock",
    "RowExclusiveLock",
    "ShareUpdateExclusiveLock",
    "ShareLock",
    "ShareRowExclusiveLock",
    "ExclusiveLock",
    "AccessExclusiveLock",
]
LOCKS = """
SELECT relation::bigint AS table, mode FROM pg_locks
 WHERE pid = pg_backend_pid() AND relation = ANY($1::oid[])
"""
STATEMENTS = [
    "CREATE TABLE fresh (id bigint)",
    "CREATE UNLOGGED TABLE IF NOT EXISTS fresh (id bigint)",
    "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (1) TO (2)",
    "CREATE INDEX kept_id ON kept (id) WHERE id > 7",
    "CREATE UNIQUE INDEX kept_id ON kept (id)",
    "CREATE INDEX kept_collation ON kept (id)",
    "CREATE INDEX ON kept (id)",
    "CREATE TRIGGER noting BEFORE INSERT ON kept FOR EACH ROW EXECUTE FUNCTION note()",
    "CREATE TYPE size AS ENUM ('small')",
    "CREATE SEQUENCE numbers",
    "CREATE OR REPLACE FUNCTION one() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
    "ALTER TYPE colour ADD VALUE 'blue'",
    "ALTER TABLE kept ADD COLUMN added text",
    "ALTER TABLE ONLY kept ADD COLUMN added text NOT NULL DEFAULT ''",
    "alter table kept alter column id set not null",
    "ALTER TABLE kept VALIDATE CONSTRAINT positive",
    "ALTER TABLE kept ALTER COLUMN id SET STATISTICS 1000",
    "ALTER TABLE kept SET (fillfactor = 50, autovacuum_enabled = true)",
    "ALTER TABLE kept SET (fillfactor = 50), ADD COLUMN added text",
    "ALTER TABLE kept ADD CONSTRAINT of_parent FOREIGN KEY (other) REFERENCES parent (id)",
    ATTACH,
    "DROP TABLE kept",
    "DROP TABLE IF EXISTS kept",
    "TRUNCATE kept",
    "COMMENT ON TABLE kept IS 'kept; for long'",
    "INSERT INTO kept VALUES (1, 2)",
    "UPDATE kept SET other = 1",
    "DELETE FROM kept",
]


async def test_the_locks_are_those_that_postgresql_takes(empty: asyncpg.Connection) -> None:
    await empty.execute("SET search_path = public; " + TABLES)
    tables = {await empty.fetchval("SELECT $1::regclass::oid", name): name for name in TABLE_NAMES}
    taken = {}
    for statement in STATEMENTS:
        transaction = empty.transaction()
        await transaction.start()
        await empty.execute(statement)
        locks = [(STRENGTH.index(row["mode"]), tables[row["table"]]) for row in await empty.fetch(LOCKS, list(tables))]
        taken[statement] = {(STRENGTH[mode], table) for mode, table in locks if mode == max(locks)[0]}
        await transaction.rollback()
    # The partition is locked in full: nothing uses it yet.
    taken[ATTACH] = {("ShareUpdateExclusiveLock", "parts")}
    said = {statement: lock_of(statement) for statement in STATEMENTS}
    assert {statement for statement in said if said[statement] == NO_LOCK} == {
        statement for statement in taken if not taken[statement]
    }
    for statement, strongest in taken.items():
        if strongest:
            words = said[statement].partition(":")[0].removeprefix("locks ").split()
            assert ("".join(word.capitalize() for word in words[1:]) + "Lock", words[0]) in strongest, statement


@pytest.mark.parametrize("statement", ["DO $$ BEGIN END $$", "SELECT add_day('2026-01-01')", "VACUUM kept"])
def test_what_cannot_be_read_from_the_text_is_said_to_be_unknown(statement: str) -> None:
    assert lock_of(statement) == UNKNOWN


def test_statements_are_separated_outside_of_texts_and_comments() -> None:
    text = """
    -- First; not a statement.
    CREATE TABLE a (b text DEFAULT 'x;y', "c;d" text); /* none; here */
    DO $body$ BEGIN PERFORM 1; END $body$;
    -- the end;
    """
    first, second = statements(text)
    assert first.startswith("-- First; not a statement.\n")
    assert first.endswith('"c;d" text)')
    assert second == "/* none; here */\n    DO $body$ BEGIN PERFORM 1; END $body$"


def test_a_table_that_the_plan_creates_is_not_in_use() -> None:
    waiting = [
        Migration("0001_a", "CREATE TABLE fresh (id bigint); CREATE INDEX fresh_id ON fresh (id);"),
        Migration("0002_b", "CREATE INDEX kept_id ON kept (id); ALTER TABLE fresh ADD COLUMN more text"),
    ]
    assert [(step.migration, step.lock) for step in steps(waiting)] == [
        ("0001_a", NO_LOCK),
        ("0001_a", NO_LOCK),
        ("0002_b", "locks kept SHARE: writes wait"),
        ("0002_b", NO_LOCK),
    ]


async def test_the_statements_of_the_plan_are_those_of_the_migrations(empty: asyncpg.Connection) -> None:
    plan = list(steps(await waiting_migrations(empty)))
    assert [migration.name for migration in migrations()] == list(dict.fromkeys(step.migration for step in plan))
    assert await empty.fetchval("SELECT to_regnamespace('evertick') IS NULL"), "nothing was touched"
    await empty.execute("CREATE SCHEMA evertick; SET search_path = evertick")
    for step in plan:
        await empty.execute(step.statement)
    assert await empty.fetchval("SELECT count(*) FROM tenants") == 1
