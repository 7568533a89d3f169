"""The statements of jobs: what they lock, what they take from indexes, and what they do when others are first."""

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from engine import AT, MINUTE, Holder, Planned, add_job, until_blocked
from evertick.domain.ids import partition_of
from evertick.domain.schedule.instants import from_us
from evertick.store import statements
from evertick.store.database import Pool, connect
from evertick.store.engine.lanes import lane_id_of
from evertick.store.jobs import job_lists, jobs, references
from evertick.store.jobs.jobs import EditRefusal, NewJob, NumbersTaken
from evertick.store.jobs.references import LaneKey
from evertick.store.statements import Statement
from evertick.store.tenants import tenants

HOUR = timedelta(hours=1)
RULE = b"a rule's digest."
PLACE = LaneKey("default", 7, 1)


def new_job(number: int, name: str, **changes: object) -> NewJob:
    return NewJob(
        number << 8 | 7,
        name,
        '{"n": 1}',
        "{}",
        None,
        None,
        "default",
        "{}",
        RULE,
        300,
        "UTC",
        "send",
        None,
        "{}",
        AT,
        AT,
        1,
        None,
    )._replace(**changes)  # type: ignore[arg-type]


async def plan_of(connection: asyncpg.Connection, statement: Statement) -> str:
    """The plan that is kept for all values."""
    await connection.execute(f"PREPARE kept AS {statement.text}")
    rows = await connection.fetch(f"EXPLAIN EXECUTE kept ({', '.join(['NULL'] * len(statement.parameters))})")
    await connection.execute("DEALLOCATE kept")
    return "\n".join(row[0] for row in rows)


async def test_numbers_are_never_given_twice(connection: asyncpg.Connection) -> None:
    now_at, first, _ = await jobs.numbers(connection, 1, 3)
    _, second, _ = await jobs.numbers(connection, 1, 2)
    assert len({*first, *second}) == 5
    assert now_at <= await connection.fetchval("SELECT clock_at()")


async def test_a_rule_is_added_once_whoever_adds_it(connection: asyncpg.Connection, pool: Pool) -> None:
    texts = {bytes([number]) * 16: f"rule {number}" for number in range(50)}
    turned = dict(reversed(texts.items()))
    await asyncio.gather(*(references.add_rules(pool, each) for each in (texts, turned, texts, turned)))
    added = "SELECT count(DISTINCT rule_id) FROM rules WHERE digest = ANY($1)"
    assert await connection.fetchval(added, list(texts)) == 50


async def test_the_id_of_a_rule_is_the_first_63_bits_of_its_digest(connection: asyncpg.Connection) -> None:
    for digest in (bytes(range(1, 17)), b"\xff" * 16, b"\x00" * 15 + b"\x01"):
        await references.add_rules(connection, {digest: "rule"})
        rule_id = await connection.fetchval("SELECT rule_id FROM rules WHERE digest = $1", digest)
        assert rule_id == int.from_bytes(digest[:8]) >> 1


async def test_a_rule_whose_id_another_one_has_is_missing_rather_than_wrong(connection: asyncpg.Connection) -> None:
    await references.add_lanes(connection, 1, [PLACE])
    await references.add_rules(connection, {RULE: "rule"})
    alike = RULE[:8] + b"elsewise"
    await references.add_rules(connection, {alike: "another rule"})
    assert await jobs.create(connection, 1, AT, [new_job(1, "a", digest=alike)]) is None
    assert await connection.fetchval("SELECT count(*) FROM jobs") == 0


async def test_a_rule_that_someone_is_adding_is_waited_for(connection: asyncpg.Connection, database_url: str) -> None:
    other = await connect(database_url)
    try:
        transaction = connection.transaction()
        await transaction.start()
        await references.add_rules(connection, {b"x": "rule"})
        adding = asyncio.create_task(references.add_rules(other, {b"x": "rule"}))
        await until_blocked(connection, other)
        await transaction.commit()
        await adding
        assert await other.fetchval("SELECT count(*) FROM rules WHERE digest = $1", b"x") == 1
    finally:
        await other.close()


async def test_lanes_are_what_their_ids_say(connection: asyncpg.Connection) -> None:
    for _ in range(2):
        await references.add_lanes(connection, 1, [LaneKey("mail", 255, 2)])
    queue_id = await connection.fetchval("SELECT queue_id FROM queues WHERE tenant_id = 1 AND name = 'mail'")
    (lane,) = await connection.fetch("SELECT lane_id, queue_id, partition, priority, head FROM lanes")
    assert tuple(lane) == (lane_id_of(queue_id, 255, 2), queue_id, 255, 2, 0)


async def test_the_id_of_a_queue_is_not_given_again_when_its_commit_was_lost(connection: asyncpg.Connection) -> None:
    ids = set()
    for number in range(20):
        await references.add_lanes(connection, 1, [PLACE._replace(queue=f"queue-{number}")])
        ids.add(await connection.fetchval("DELETE FROM queues RETURNING queue_id"))
    assert len(ids) == 20


@pytest.mark.parametrize("lost", ["rules", "queues", "lanes"])
async def test_nothing_is_written_while_something_is_missing_that_it_refers_to(
    connection: asyncpg.Connection, lost: str
) -> None:
    await references.add_rules(connection, {RULE: "rule"})
    await references.add_lanes(connection, 1, [PLACE])
    created = await jobs.create(connection, 1, AT, [new_job(1, "a")])
    assert created == {1 << 8 | 7}
    await connection.execute(f"DELETE FROM {lost}")
    assert await jobs.create(connection, 1, AT, [new_job(2, "b")]) is None
    assert await jobs.edit(connection, 1, new_job(1, "c"), 2, AT) is EditRefusal.INCOMPLETE
    for table in ("jobs", "job_versions", "timers"):
        assert await connection.fetchval(f"SELECT count(*) FROM {table}") == 1
    assert await connection.fetchval("SELECT name FROM jobs") == "a"


async def test_a_queue_of_another_tenant_is_no_substitute(connection: asyncpg.Connection) -> None:
    await references.add_rules(connection, {RULE: "rule"})
    await references.add_lanes(connection, 2, [PLACE])
    assert await jobs.create(connection, 1, AT, [new_job(1, "a")]) is None


async def test_a_number_that_another_job_has_is_not_taken_for_a_name_that_is_taken(
    connection: asyncpg.Connection,
) -> None:
    await references.add_rules(connection, {RULE: "rule"})
    await references.add_lanes(connection, 1, [PLACE])
    await jobs.create(connection, 1, AT, [new_job(1, "a")])
    with pytest.raises(NumbersTaken):
        await jobs.create(connection, 1, AT, [new_job(1, "b")])


async def test_only_jobs_whose_name_is_free_are_created_and_nothing_of_the_others(
    connection: asyncpg.Connection,
) -> None:
    await references.add_rules(connection, {RULE: "rule"})
    await references.add_lanes(connection, 1, [PLACE])
    assert await jobs.create(connection, 1, AT, [new_job(1, "a")]) == {1 << 8 | 7}
    batch = [new_job(2, "a"), new_job(3, "b"), new_job(4, "b"), new_job(5, "c", fire_at=None, due_at=None)]
    assert await jobs.create(connection, 1, AT, batch) == {3 << 8 | 7, 5 << 8 | 7}
    versions, timers = [
        [row[0] for row in await connection.fetch(f"SELECT job_id >> 8 FROM {table} ORDER BY 1")]
        for table in ("job_versions", "timers")
    ]
    assert (versions, timers) == ([1, 3, 5], [1, 3])
    assert await jobs.create(connection, 1, AT, []) == set()


async def test_a_statement_that_creates_thousands_does_not_compare_each_with_each(
    connection: asyncpg.Connection,
) -> None:
    plan = await plan_of(connection, statements.load("jobs")["create"])
    assert "Nested Loop" not in plan


async def test_how_a_job_stands_is_told_after_the_firing_that_was_waited_for(
    connection: asyncpg.Connection, database_url: str
) -> None:
    holder = Holder(connection)
    await holder.take(7)
    job = await add_job(connection, fire_at=AT)
    other = await connect(database_url)
    try:
        firing = connection.transaction()
        await firing.start()
        await holder.fire(Planned(job))
        standing = asyncio.create_task(_standing(other, job.job_id))
        await until_blocked(connection, other)
        late = await connection.fetchval("SELECT clock_at()")
        await firing.commit()
        found = await standing
    finally:
        await other.close()
    assert (found.fire_at, found.last_lane) == (AT + MINUTE, job.lane_id)
    assert found.now_at > late


async def _standing(connection: asyncpg.Connection, job_id: int) -> jobs.LockedJob:
    async with connection.transaction():
        assert await jobs.lock(connection, 1, job_id)
        return await jobs.locked(connection, job_id)


async def test_a_list_of_jobs_reads_the_index_of_its_tenant(connection: asyncpg.Connection) -> None:
    plan = await plan_of(connection, statements.load("job_lists")["page"])
    assert "jobs_of_tenant" in plan
    assert "Sort" not in plan
    assert "jobs_by_name" in await plan_of(connection, statements.load("jobs")["named"])


async def test_tenants_are_added_once_and_found(connection: asyncpg.Connection) -> None:
    added = await tenants.add(connection, "growth", weight=3)
    assert added is not None
    assert await tenants.add(connection, "growth", weight=1) is None
    assert await tenants.find(connection, added.tenant_id) == added == await tenants.named(connection, "growth")
    assert [tenant.name for tenant in await tenants.all_tenants(connection)] == ["default", "growth"]
    assert (await tenants.find(connection, 99), await tenants.named(connection, "x")) == (None, None)


async def test_jobs_that_are_due_together_are_all_listed_page_by_page(connection: asyncpg.Connection) -> None:
    made = [(await add_job(connection, fire_at=AT, partition=number % 3)).job_id for number in range(11)]
    late = (await add_job(connection, fire_at=AT + HOUR)).job_id
    for job_id in reversed(made):  # in the index they follow each other as they were written
        await connection.execute("UPDATE timers SET due_at = $2 WHERE job_id = $1", job_id, AT + MINUTE)
    seen: list[int] = []
    place = from_us(0), -1
    while page := await job_lists.next_by_run(connection, 1, queue=None, after_at=place[0], after_id=place[1], most=2):
        seen += [each.job_id for each in page]
        due_us, last_id = map(int, page[-1].position.split("."))
        place = from_us(due_us), last_id
    assert seen == [*sorted(made, key=lambda job_id: (partition_of(job_id), job_id)), late]


async def test_a_page_of_many_jobs_that_are_due_together_reads_those_of_one_partition(
    connection: asyncpg.Connection,
) -> None:
    queue_id = (await add_job(connection, fire_at=AT + HOUR)).queue_id
    await connection.execute(
        "INSERT INTO timers (job_id, fire_at, due_at, tenant_id, rule_id, queue_id, spec_version, kind, partition,"
        " priority) SELECT 1000000 + n, $1, $1, 1, 1, $2, 1, 'tick', (1000000 + n) & 255, 1"
        " FROM generate_series(1, 51200) AS n",
        AT + MINUTE,
        queue_id,
    )
    await connection.execute(
        "INSERT INTO lanes (lane_id, queue_id, partition, priority)"
        " SELECT lane_id_of($1, n, 1), $1, n, 1 FROM generate_series(0, 255) AS n ON CONFLICT DO NOTHING",
        queue_id,
    )
    async with connection.transaction():
        page = await job_lists.next_by_run(connection, 1, queue=None, after_at=from_us(0), after_id=-1, most=51)
        further = await job_lists.next_by_run(
            connection, 1, queue=None, after_at=AT + MINUTE, after_id=page[-1].job_id, most=51
        )
        read = await connection.fetchval(
            "SELECT sum(idx_tup_fetch + coalesce(seq_tup_read, 0)) FROM pg_stat_xact_user_tables"
            " WHERE relname LIKE 'timers%'"
        )
    assert {partition_of(each.job_id) for each in (*page, *further)} == {0}
    assert len({each.job_id for each in (*page, *further)}) == 102
    assert read < 2 * (256 * 4 + 51200 // 256 + 51), "a few of each lane, and all of one partition"
