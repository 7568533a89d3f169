import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from click.testing import CliRunner

import postgres
from evertick.cli.main import app
from evertick.store.database import connect
from evertick.store.migrate import migrate, migrations


@pytest.fixture
async def empty_url(postgres_server: postgres.Server) -> AsyncIterator[str]:
    async with postgres_server.database(empty=True) as url:
        yield url


def test_migrate_tells_each_step_and_then_that_nothing_is_left(empty_url: str) -> None:
    first = CliRunner().invoke(app, ["migrate", "--database-url", empty_url])
    assert first.exit_code == 0
    assert first.stdout.splitlines()[:-1] == [f"applied {migration.name}" for migration in migrations()]
    again = CliRunner().invoke(app, ["migrate", "--database-url", empty_url])
    assert again.exit_code == 0
    assert again.stdout.rstrip().endswith("is up to date: nothing to do.")


def test_the_plan_of_a_migration_is_sql_with_locks_and_changes_nothing(empty_url: str) -> None:
    for _ in range(2):
        planned = CliRunner().invoke(app, ["migrate", "--plan", "--database-url", empty_url])
        assert planned.exit_code == 0
        assert "\n-- 0001_initial, statement 1 of " in planned.stdout
        assert "CREATE TYPE job_status AS ENUM ('active', 'paused', 'deleted');\n" in planned.stdout
    CliRunner().invoke(app, ["migrate", "--database-url", empty_url])
    done = CliRunner().invoke(app, ["migrate", "--plan", "--database-url", empty_url])
    assert done.stdout.rstrip().endswith("is up to date: nothing to do.")


async def test_plan_and_doctor_name_the_jobs_that_keep_a_migration_from_being_applied(empty_url: str) -> None:
    connection = await connect(empty_url)
    await migrate(connection, known=migrations()[:3])
    await connection.execute(
        "INSERT INTO jobs (job_id, tenant_id, created_at, updated_at, spec_version, name, queue)"
        " VALUES (1, 1, now(), now(), 1, 'nightly', 'sqs')"
    )
    await connection.execute("INSERT INTO queues (tenant_id, name) VALUES (1, 'sqs')")
    await connection.close()
    planned, examined = [
        await asyncio.to_thread(CliRunner().invoke, app, [*command, "--database-url", empty_url])
        for command in (("migrate", "--plan"), ("doctor",))
    ]
    assert "-- NOT POSSIBLE YET: 0004_brokers cannot be applied" in planned.stdout
    assert "'nightly' of tenant 'default' in 'sqs'" in planned.stdout
    assert "'nightly' of tenant 'default' in 'sqs'" in examined.stdout


def test_the_doctor_says_of_each_thing_what_to_do_and_fails_where_there_is_a_problem(database_url: str) -> None:
    result = CliRunner().invoke(app, ["doctor", "--database-url", database_url])
    assert result.exit_code == 1
    lines = {line.split("  ")[0].strip(): line for line in result.stdout.splitlines()}
    assert "PostgreSQL 18" in lines["server"]
    assert "problem" in lines["partitions"]
    assert "To do: start `evertick scheduler`." in lines["partitions"]


def test_the_doctor_speaks_json(empty_url: str) -> None:
    result = CliRunner().invoke(app, ["doctor", "--database-url", empty_url, "--json"])
    assert result.exit_code == 1
    findings = {finding["name"]: finding for finding in json.loads(result.stdout)}
    assert findings["server"]["level"] == "ok"
    assert findings["server"]["todo"] is None
    assert findings["schema"] == {
        "name": "schema",
        "level": "problem",
        "what": f"the database lacks {', '.join(migration.name for migration in migrations())}",
        "todo": "run `evertick migrate`",
    }
