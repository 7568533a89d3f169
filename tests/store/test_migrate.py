import asyncio
import re
from collections.abc import AsyncIterator

import asyncpg
import pytest

import postgres
from engine import PATIENCE_SECONDS
from evertick.store import migrate
from evertick.store.database import connect
from evertick.store.migrate import Applied, Migration, SchemaMismatch, check_schema, migrations, pending
from evertick.store.migration_plan import statements


@pytest.fixture
async def empty_url(postgres_server: postgres.Server) -> AsyncIterator[str]:
    async with postgres_server.database(empty=True) as url:
        yield url


@pytest.fixture
async def empty(empty_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await connect(empty_url)
    yield connection
    await connection.close()


async def test_of_two_who_migrate_at_once_one_does_it(empty_url: str) -> None:
    connections = [await connect(empty_url) for _ in range(2)]
    done = await asyncio.gather(*(migrate.migrate(connection) for connection in connections))
    assert sorted(done) == [0, len(migrations())]
    for connection in connections:
        await check_schema(connection)
        await connection.close()


async def test_each_applied_migration_is_told_by_name_and_never_applied_again(empty: asyncpg.Connection) -> None:
    told: list[str] = []
    assert await migrate.migrate(empty, told.append) == len(told) > 0
    assert told == [migration.name for migration in migrations()]
    assert await migrate.migrate(empty, told.append) == 0
    assert len(told) == len(migrations())


async def test_a_migration_that_fails_leaves_nothing_behind(empty: asyncpg.Connection) -> None:
    broken = [Migration("0001_good", "CREATE TABLE good ()"), Migration("0002_bad", "CREATE TABLE bad (")]
    with pytest.raises(asyncpg.PostgresSyntaxError):
        await migrate.migrate(empty, known=broken)
    assert await empty.fetchval("SELECT to_regnamespace('evertick') IS NULL")


async def test_nobody_waits_for_long_behind_a_migration_that_cannot_lock_a_table(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "LOCK_MS", 200)
    monkeypatch.setattr(migrate, "PAUSE_SECONDS", 0.1)
    migrating, reporting, other = [await connect(database_url) for _ in range(3)]
    step = Migration(
        "9999_next", "ALTER TABLE gaps ADD COLUMN next integer; ALTER TABLE tenants ADD COLUMN next integer"
    )
    told: list[str] = []
    async with reporting.transaction():
        await reporting.execute("SELECT FROM tenants")
        done = asyncio.create_task(migrate.migrate(migrating, told.append, known=[*migrations(), step]))
        while not await other.fetchval("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"):
            assert not done.done()
        # It has locked this table, and waits for the other one.
        await other.fetch("SELECT FROM gaps", timeout=PATIENCE_SECONDS)
        assert told == []
    assert await done == 1
    assert told == ["9999_next"]
    for connection in (migrating, reporting, other):
        await connection.close()


async def test_sessions_of_an_application_with_the_same_role_find_their_own_tables_as_before(
    empty: asyncpg.Connection, empty_url: str
) -> None:
    await migrate.migrate(empty)
    plain = await asyncpg.connect(empty_url)
    assert await plain.fetchval("SHOW search_path") == '"$user", public'
    await plain.close()


async def test_an_empty_database_is_refused_and_the_message_says_what_to_run(empty: asyncpg.Connection) -> None:
    with pytest.raises(SchemaMismatch, match=r"lacks 0001_initial.*: run `evertick migrate`"):
        await check_schema(empty)


async def test_jobs_that_keep_a_migration_from_being_applied_are_named(empty: asyncpg.Connection) -> None:
    await migrate.migrate(empty, known=migrations()[:3])
    await empty.execute("SET search_path = evertick")
    await empty.execute(
        "INSERT INTO jobs (job_id, tenant_id, created_at, updated_at, spec_version, name, queue, status)"
        " SELECT n, 1, now(), now(), 1, 'nightly ' || n, 'kafka', CASE WHEN n = 1 THEN 'deleted' ELSE 'active' END"
        "::job_status FROM generate_series(1, 13) AS n"
    )
    await empty.execute("INSERT INTO queues (tenant_id, name) VALUES (1, 'kafka')")
    for act in (migrate.migrate, check_schema):
        with pytest.raises(SchemaMismatch, match=r"'nightly 10' of tenant 'default' in 'kafka'.*and 2 more") as refused:
            await act(empty)
        assert "'nightly 1' " not in str(refused.value)
        assert "other queues" in str(refused.value)
    await empty.execute("UPDATE jobs SET queue = 'mine'")
    assert await migrate.migrate(empty) == len(migrations()) - 3


async def test_a_database_of_a_newer_evertick_is_used_beside_it(connection: asyncpg.Connection) -> None:
    newest = migrations()[-1].name
    await connection.execute("INSERT INTO migrations (name, digest, needs) VALUES ('9999_future', '', $1)", newest)
    await check_schema(connection)
    assert await migrate.migrate(connection) == 0


async def test_a_database_that_needs_a_newer_evertick_is_refused(connection: asyncpg.Connection) -> None:
    await connection.execute(
        "INSERT INTO migrations (name, digest, needs)"
        " VALUES ('9998_future', '', NULL), ('9999_future', '', '9998_future')"
    )
    for act in (check_schema, migrate.migrate):
        with pytest.raises(SchemaMismatch, match="has 9998_future, 9999_future of a newer Evertick: upgrade this one"):
            await act(connection)


async def test_a_table_of_migrations_that_an_older_evertick_made_is_read_and_completed(
    connection: asyncpg.Connection,
) -> None:
    await connection.execute("ALTER TABLE migrations DROP COLUMN needs")
    await check_schema(connection)
    assert await migrate.migrate(connection) == 0
    step = Migration("9999_next", "-- Removes what versions before 0002_api use.\n-- needs: 0002_api\nSELECT 1")
    assert await migrate.migrate(connection, known=[*migrations(), step]) == 1
    assert await connection.fetchval("SELECT needs FROM migrations WHERE name = '9999_next'") == "0002_api"
    await check_schema(connection)


async def test_a_migration_that_was_applied_with_another_text_is_refused(connection: asyncpg.Connection) -> None:
    await connection.execute("UPDATE migrations SET digest = 'other' WHERE name = '0001_initial'")
    for act in (check_schema, migrate.migrate):
        with pytest.raises(SchemaMismatch, match="0001_initial was applied to the database with another text"):
            await act(connection)


def test_only_what_was_not_applied_is_pending() -> None:
    old, new = Migration("0001_old", "SELECT 1"), Migration("0002_new", "SELECT 2")
    assert pending([old, new], []) == [old, new]
    assert pending([old, new], [Applied(old.name, old.digest, None)]) == [new]


def test_steps_of_two_versions_that_know_nothing_of_each_other_are_not_mixed() -> None:
    ours, theirs = Migration("0001_ours", "SELECT 1"), Applied("0001_theirs", "", None)
    with pytest.raises(SchemaMismatch, match="has 0001_theirs of a newer Evertick"):
        pending([ours], [theirs])


REMOVES = re.compile(
    r"\b(DROP(?! (INDEX|NOT NULL|CONSTRAINT (IF EXISTS )?\w+_check))|RENAME)\b"
    r"|\bALTER (COLUMN )?\w+ (TYPE|SET NOT NULL)\b|\bADD COLUMN \w+ [^,]*NOT NULL(?![^,]*(DEFAULT|GENERATED))"
)
COMMENT = re.compile(r"--[^\n]*")
MADE_ANEW = re.compile(r"\bDROP COLUMN (\w+)(?=.*\bADD COLUMN \1\b)", re.DOTALL)
FIRST_RELEASE = ("0001_initial", "0002_api")


def _removals(migration: Migration) -> list[str]:
    """Statements after which a version that does not know them may fail."""
    plain = [MADE_ANEW.sub("", COMMENT.sub("", statement)).strip() for statement in statements(migration.text)]
    return [statement for statement in plain if REMOVES.search(statement) and not statement.startswith("CREATE")]


@pytest.mark.parametrize("migration", migrations(), ids=lambda migration: migration.name)
def test_a_migration_that_removes_something_says_what_a_version_must_know(migration: Migration) -> None:
    known = [each.name for each in migrations() if each.name < migration.name]
    assert migration.needs in {None, *known, migration.name}
    assert migration.name in FIRST_RELEASE or migration.needs or _removals(migration) == [], (
        "an older version may use what this removes: add `-- needs: …`, see docs/deploy.md"
    )


@pytest.mark.parametrize(
    ("text", "removes"),
    [
        ("ALTER TABLE jobs DROP COLUMN name", True),
        ("ALTER TABLE jobs RENAME COLUMN name TO title", True),
        ("ALTER TABLE jobs ALTER COLUMN name SET NOT NULL", True),
        ("ALTER TABLE jobs ADD COLUMN title text NOT NULL", True),
        ("ALTER TABLE jobs ADD COLUMN title text NOT NULL DEFAULT ''", False),
        ("ALTER TABLE jobs DROP CONSTRAINT jobs_title_check, ALTER COLUMN title DROP NOT NULL", False),
        ("ALTER TABLE jobs DROP COLUMN title, ADD COLUMN title text NOT NULL GENERATED ALWAYS AS (name)", False),
        ("-- DROP nothing\nALTER TABLE jobs ADD COLUMN title text", False),
        ("-- drops\nCREATE FUNCTION drop() RETURNS void LANGUAGE sql AS 'DROP TABLE jobs'", False),
    ],
)
def test_what_an_older_version_may_miss_is_seen(text: str, removes: bool) -> None:  # noqa: FBT001
    assert bool(_removals(Migration("0003_new", text))) is removes


def test_a_server_that_is_too_old_is_refused() -> None:
    with pytest.raises(SchemaMismatch, match="PostgreSQL 14 is too old: Evertick needs 15 or newer"):
        migrate.refuse_old(140_019)
    migrate.refuse_old(150_000)
