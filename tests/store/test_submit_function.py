"""The function `evertick.submit` in the database: the same rows as from Python, clear refusals, few rights."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from engine import PATIENCE_SECONDS
from evertick.domain.ids import Prefix, parse_id, parse_run_id
from evertick.store.database import Pool, connect
from evertick.store.maintenance.retention import sweep_rules
from evertick.usecases.context import TenantContext
from evertick.usecases.jobs.create import create
from evertick.usecases.jobs.submit import prepare, with_references
from hooked_pool import Run, hooked

AT = datetime(2999, 1, 1, 12, 30, 0, 250_000, tzinfo=UTC)
ROWS = """SELECT to_jsonb(job) AS job, to_jsonb(version) AS version, to_jsonb(timer) AS timer, rule.canonical,
                 queue.name AS queue, EXISTS (SELECT FROM lanes WHERE lanes.queue_id = timer.queue_id) AS has_lanes
            FROM jobs job
            JOIN job_versions version USING (job_id)
            JOIN timers timer USING (job_id)
            JOIN rules rule ON rule.rule_id = timer.rule_id AND rule.rule_id = version.rule_id
            JOIN queues queue ON queue.queue_id = timer.queue_id
           WHERE job.name = $1"""
OWN = {"job_id", "created_at", "updated_at", "effective_at", "partition", "name"}


async def rows(connection: asyncpg.Connection, name: str) -> dict[str, Any]:
    """All that is stored of a job, but for what differs between any two."""
    (row,) = await connection.fetch(ROWS, name)
    found = dict(row)
    for table in ("job", "version", "timer"):
        found[table] = {key: value for key, value in json.loads(found[table]).items() if key not in OWN}
    del found["version"]["spec"]["name"]
    return found


@pytest.mark.parametrize(
    ("payload", "queue", "fields"),
    [
        (None, "default", {}),
        ({"customer": "c1", "lines": [1, 2.5, None]}, "billing", {"max_retries": 0, "timeout_seconds": 7}),
        (
            ["ü", {"deep": {"er": True}}],
            "billing",
            {
                "retry_backoff": "fixed",
                "retry_delay_seconds": 7200.5,
                "priority": "high",
                "labels": {"team": "growth"},
                "retain_seconds": 60,
            },
        ),
        (0, "default", {"retry_delay_seconds": 1, "retry_max_delay_seconds": 3, "priority": "low"}),
    ],
)
async def test_its_rows_are_those_that_python_writes(
    pool: Any, connection: asyncpg.Connection, payload: Any, queue: str, fields: dict[str, Any]
) -> None:
    target = {"type": "worker", "queue": queue, "handler": "greet"}
    schedule = AT.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    await create(
        TenantContext(pool, 1), {**fields, "name": "python", "schedule": schedule, "target": target, "payload": payload}
    )
    await connection.execute(
        "SELECT submit('greet', $1::text::jsonb, queue => $2, at => $3, name => 'sql', fields => $4::text::jsonb)",
        None if payload is None else json.dumps(payload),
        queue,
        AT,
        json.dumps(fields),
    )
    assert await rows(connection, "sql") == await rows(connection, "python")
    bytes_of = "SELECT version_bytes(payload::text, spec::text) FROM job_versions ORDER BY job_id DESC LIMIT 1"
    assert await connection.fetchval("SELECT bytes FROM storage_changes ORDER BY ctid DESC LIMIT 1") == (
        await connection.fetchval(bytes_of)
    )


async def test_the_rows_of_a_prepared_job_are_those_of_one_that_is_created(
    pool: Any, connection: asyncpg.Connection
) -> None:
    tenant = TenantContext(pool, 1)
    fields = {
        "schedule": AT.isoformat(),
        "target": {"type": "worker", "queue": "billing", "handler": "greet"},
        "payload": {"account": "ü", "number": 2**70},
        "concurrency_key": "{{payload.account}}",
        "idempotency_key_template": "{{name}}",
        "alert_after_failures": 2,
        "missed_window": "SKIP",
        "labels": {"team": "growth"},
    }
    await create(tenant, {**fields, "name": "created"})
    created_at = await connection.fetchval("SELECT created_at FROM tenants")
    job = await prepare(tenant, created_at, {**fields, "name": "prepared"})
    write = "SELECT submit_prepared($1::text::jsonb)"
    assert await connection.fetchval(write, job.document) == "incomplete"  # it has lanes of its own
    job = await with_references(tenant, job)
    assert await connection.fetchval(write, job.document) == "created"
    assert await rows(connection, "prepared") == await rows(connection, "created")


async def test_what_the_janitor_marks_before_a_prepared_job_refers_to_it_is_added_again(
    pool: Any, connection: asyncpg.Connection
) -> None:
    marks = iter(["rules", "queues"])

    async def mark_and_find(find: Run, _: Any) -> Any:
        if table := next(marks, None):
            await connection.execute(f"UPDATE {table} SET unused_at = now()")
        return await find()

    tenant = TenantContext(hooked(pool, "references.referred", mark_and_find), 1)
    created_at = await connection.fetchval("SELECT created_at FROM tenants")
    job = await prepare(tenant, created_at, {"schedule": "now", "target": {"type": "worker", "handler": "greet"}})
    job = await with_references(tenant, job)
    assert next(marks, None) is None
    assert await connection.fetchval("SELECT submit_prepared($1::text::jsonb)", job.document) == "created"
    assert await connection.fetchval("SELECT count(*) FROM rules WHERE unused_at IS NOT NULL") == 0


async def test_it_tells_the_ids_and_when_the_run_is_due(connection: asyncpg.Connection) -> None:
    (now,) = await connection.fetch("SELECT * FROM submit('greet')")
    (later,) = await connection.fetch("SELECT * FROM submit('greet', delay => '3 days')")
    assert later["fire_at"] - now["fire_at"] > timedelta(days=2, hours=23)
    for told in (now, later):
        key = parse_run_id(told["run_id"])
        assert key.job_id == parse_id(Prefix.JOB, told["job_id"])
        (stored,) = await connection.fetch(
            "SELECT name, microseconds(fire_at) AS us FROM jobs JOIN timers USING (job_id) WHERE job_id = $1",
            key.job_id,
        )
        assert tuple(stored) == (f"greet-{told['job_id'].removeprefix('job_')}", key.fire_at_us)


@pytest.mark.parametrize("handler", ["greet", "g" * 255])
async def test_a_job_without_a_name_is_named_as_by_python(
    pool: Any, connection: asyncpg.Connection, handler: str
) -> None:
    await create(TenantContext(pool, 1), {"schedule": "now", "target": {"type": "worker", "handler": handler}})
    await connection.execute("SELECT submit($1)", handler)
    python, sql = await connection.fetch(
        "SELECT name, spec ->> 'name' AS of_spec, base32_of(job_id) AS number FROM job_versions ORDER BY effective_at"
    )
    assert sql["name"].removesuffix(sql["number"]) == python["name"].removesuffix(python["number"]) != sql["name"]
    assert sql["of_spec"] == sql["name"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("''", "handler: must be 1 to 255 visible characters"),
        ("'a b'", "handler: must be"),
        ("'greet', queue => 'No Queue'", "queue: must be 1 to 63"),
        ("'greet', queue => 'http'", "queue: 'http' is reserved"),
        ("'greet', name => ' x'", "name: must be"),
        ("'greet', delay => '1 h', at => now()", "at: and delay exclude each other"),
        ("'greet', delay => '-1 s'", "delay: must not be negative"),
        ("'greet', at => now() - interval '2 h'", "at: is past, by more than its grace of an hour"),
        ("'greet', at => '9999-01-01'", "at: leads beyond the year 9989"),
        ("'greet', tenant => 'nobody'", "tenant: there is none named 'nobody'"),
        ("'greet', fields => '{\"max_retrys\": 5}'", "max_retrys: is none of the fields"),
        ("'greet', fields => '{\"max_retries\": 5000}'", "max_retries: must be from 0 to 1000"),
        ("'greet', fields => '{\"max_retries\": 1.5}'", "max_retries: must be a whole number"),
        ("'greet', fields => '{\"timeout_seconds\": \"5\"}'", "timeout_seconds: must be a number"),
        ("'greet', fields => '{\"priority\": \"urgent\"}'", "priority: must be one of high, normal, low"),
        ("'greet', fields => '{\"retry_max_delay_seconds\": 1}'", "retry_max_delay_seconds: must be at least"),
        ("'greet', fields => '{\"labels\": {\"team\": 7}}'", "labels: 'team' must be a string"),
        ("'greet', fields => '[]'", "fields: must be an object"),
        ("'greet', to_jsonb(repeat('x', 70000))", "payload: has at most 65536 bytes, not 70002"),
        ("'greet', (repeat('[', 65) || repeat(']', 65))::jsonb", "payload: is nested deeper than 64 levels"),
        ("'greet', ('1' || repeat('0', 1000))::jsonb", "payload: has a number of more than 1000 digits"),
    ],
)
async def test_a_wrong_argument_is_named(connection: asyncpg.Connection, arguments: str, says: str) -> None:
    with pytest.raises(asyncpg.InvalidParameterValueError) as refused:
        await connection.execute(f"SELECT submit({arguments})")
    assert str(refused.value).startswith(says)


async def test_a_name_that_is_taken_violates_uniqueness(connection: asyncpg.Connection) -> None:
    await connection.execute("SELECT submit('greet', name => 'daily')")
    with pytest.raises(asyncpg.UniqueViolationError, match="name: 'daily' is taken by another job"):
        await connection.execute("SELECT submit('greet', name => 'daily')")


async def test_a_plain_role_with_two_grants_can_submit_and_nothing_else(
    database_url: str, connection: asyncpg.Connection
) -> None:
    role = f"shop_{connection.get_server_pid()}"
    await connection.execute(f"CREATE ROLE {role}")
    try:
        await connection.execute(f"GRANT USAGE ON SCHEMA evertick TO {role}")
        plain = await asyncpg.connect(database_url)
        await plain.execute(f"SET SESSION AUTHORIZATION {role}")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await plain.execute("SELECT evertick.submit('greet')")
        await connection.execute(f"GRANT EXECUTE ON FUNCTION evertick.submit TO {role}")
        # A temporary table of the caller is not taken for one of ours.
        await plain.execute("CREATE TEMP TABLE jobs (job_id bigint); CREATE TEMP TABLE tenants (name text)")
        await plain.execute("SELECT evertick.submit('greet')")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await plain.execute("SELECT FROM evertick.jobs")
        await plain.close()
        assert await connection.fetchval("SELECT count(*) FROM timers") == 1
    finally:
        await connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


async def test_two_transactions_that_are_first_on_a_queue_do_not_block_each_other_for_good(database_url: str) -> None:
    first, second = [await connect(database_url) for _ in range(2)]
    async with asyncio.timeout(PATIENCE_SECONDS):
        async with first.transaction():
            await first.execute("SELECT submit('greet', queue => 'new')")
            async with asyncio.TaskGroup() as group:
                group.create_task(second.execute("SELECT submit('greet', queue => 'new')"))
                await first.execute("SELECT submit('greet', queue => 'new') FROM generate_series(1, 300)")
                await first.execute("COMMIT; BEGIN")
    assert await first.fetchval("SELECT count(*) FROM timers") == 302
    for connection in (first, second):
        await connection.close()


async def test_first_submits_do_not_wait_for_each_other(connection: asyncpg.Connection, database_url: str) -> None:
    other = await connect(database_url)
    async with connection.transaction(), other.transaction():
        await connection.execute("SELECT submit('greet', queue => 'first')")
        await other.execute("SET LOCAL lock_timeout = '60s'")
        await other.execute("SELECT submit('greet', queue => 'second')")
    await other.close()
    assert await connection.fetchval("SELECT count(*) FROM jobs") == 2


async def test_the_rule_of_one_offs_is_there_from_the_start_and_is_never_removed(
    pool: Pool, connection: asyncpg.Connection
) -> None:
    for hours in (0, 2):
        await sweep_rules(pool, datetime.now(UTC) + timedelta(hours=hours), 0, 1000)
    rules = await connection.fetch("SELECT canonical::jsonb -> 'spec' ->> 'kind' AS kind, unused_at FROM rules")
    assert [tuple(row) for row in rules] == [("one_off", None)]
