"""Long polls in numbers: what those cost that wait in vain, who is served, who is turned away."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import asyncpg
import pytest

from api.callers import TARGET, Caller, Callers, is_problem
from engine import PATIENCE_SECONDS, until
from evertick.api import long_polls
from evertick.api.long_polls import LongPolls
from evertick.api.poll_turns import PollSpec
from evertick.api.server import ApiServer
from evertick.config.settings import Settings
from evertick.runtime.concurrency import TenantLimit
from evertick.store.database import Pool

WAIT_SECONDS = 30
TRIES = ("lanes.lease", "lanes.lease_free", "pulls.queue")


@asynccontextmanager
async def _served(url: str, pool: Pool, **options: Any) -> AsyncIterator[Callers]:
    server = ApiServer(url, Settings(port=0, **options), connections=4)
    await server.start()
    callers = Callers(server.address, pool)
    try:
        yield callers
    finally:
        await callers.close()
        await server.stop()


def _poll(caller: Caller, worker: str = "w", queue: str = "billing", **more: Any) -> "asyncio.Task[Any]":
    body = {"worker_id": worker, "wait_seconds": WAIT_SECONDS, **more}
    return asyncio.create_task(caller.post(f"/queues/{queue}/lease", json=body))


async def _until_all(statements: Counter[str], name: str, more: int) -> None:
    wanted = statements[name] + more

    async def are_done() -> bool:
        return statements[name] >= wanted

    await until(are_done)


async def _end(*polls: "asyncio.Task[Any]") -> None:
    for poll in polls:
        poll.cancel()
    await asyncio.wait(polls)


async def test_polls_that_wait_in_vain_cost_one_look_however_many_they_are(
    admin: Caller, statements: Counter[str]
) -> None:
    for queue in range(4):
        await admin.create(target={**TARGET, "queue": f"q{queue}"})
    polls = [_poll(admin, queue=f"q{number % 5}") for number in range(60)]  # one queue has never had a job
    await admin.until_polls(60)
    await _until_all(statements, "pulls.look", 1)
    before = statements.copy()
    await _until_all(statements, "pulls.look", 3)
    spent = statements - before
    assert sum(spent[name] for name in TRIES) == 0
    assert sum(spent[name] for name in spent if name.startswith("pulls.")) <= 8
    await _end(*polls)


async def test_a_crowd_that_comes_at_once_to_an_empty_queue_tries_a_few_times(
    admin: Caller, statements: Counter[str]
) -> None:
    await admin.create()
    polls = [_poll(admin) for _ in range(80)]
    await admin.until_polls(80)
    assert statements["lanes.lease"] <= 40
    await _end(*polls)


async def test_the_poll_that_has_waited_longest_gets_the_turn_though_it_came_back_last(
    database_url: str, pool: Pool
) -> None:
    """Over HTTP the order is open: polls that try at the same time race for the work."""
    polls = LongPolls(database_url, pool, per_tenant=4, in_total=4)
    disconnected = asyncio.get_running_loop().create_future()
    with ExitStack() as stack:
        oldest_first = [stack.enter_context(polls.added(PollSpec(1, "q", None, "k"))) for _ in range(4)]
        for poll in oldest_first:
            poll.use_turn()
        waiting = [asyncio.create_task(poll.wait(disconnected, WAIT_SECONDS)) for poll in reversed(oldest_first)]
        await asyncio.sleep(0)
        for served in range(1, 5):
            oldest_first[-1].pass_turn()
            assert [poll.has_turn for poll in oldest_first] == [True] * served + [False] * (4 - served)
        await asyncio.gather(*waiting)


@pytest.mark.usefixtures("scheduler")
async def test_much_work_at_once_reaches_all_who_wait(admin: Caller, statements: Counter[str]) -> None:
    await admin.create(schedule="manual")
    polls = [_poll(admin, f"w{number}", max=1) for number in range(20)]
    await admin.until_polls(20)
    before = statements["lanes.lease"]
    await admin.post("/jobs:batch", json=[{"schedule": "now", "target": TARGET} for _ in range(20)])
    answers = await asyncio.gather(*polls)
    assert [len(answer.json()["attempts"]) for answer in answers] == [1] * 20
    assert statements["lanes.lease"] - before <= 20 * 8, "few try in vain"


@pytest.mark.usefixtures("scheduler")
async def test_work_that_nobody_announced_is_found_by_those_alone_who_have_its_handler(
    admin: Caller, connection: asyncpg.Connection, statements: Counter[str]
) -> None:
    await admin.create(schedule="now")
    (attempt,) = await admin.lease(worker="first")
    other, right = _poll(admin, "other", handlers=["another"]), _poll(admin, "right", handlers=["send_invoice"])
    await admin.until_polls(2)
    await _until_all(statements, "pulls.look", 1)
    before = statements["lanes.lease_free"]
    await connection.execute("UPDATE leases SET worker = NULL, handler = 'send_invoice', expires_at = clock_at()")
    assert [each["token"] for each in (await right).json()["attempts"]] == [attempt["token"]]
    assert statements["lanes.lease_free"] == before + 1
    assert not other.done()
    await _end(other)


@pytest.mark.usefixtures("scheduler")
async def test_a_repeated_poll_gets_the_answer_that_another_server_gave_to_the_first(
    admin: Caller, database_url: str, pool: Pool
) -> None:
    await admin.create(schedule="manual")
    async with _served(database_url, pool) as elsewhere:
        again = elsewhere.of(admin.key)
        body = {"worker_id": "w", "wait_seconds": WAIT_SECONDS}
        path, headers = "/queues/billing/lease", {"Idempotency-Key": "one"}
        polls = [asyncio.create_task(caller.post(path, json=body, headers=headers)) for caller in (admin, again)]
        await admin.until_polls(2)  # the servers are in one process, and count together
        await admin.create(schedule="now")
        first, second = await asyncio.gather(*polls)
        assert len(first.json()["attempts"]) == 1
        assert first.content == second.content


async def test_a_tenant_has_so_many_polls_and_no_more(database_url: str, pool: Pool) -> None:
    async with _served(database_url, pool, max_long_polls_per_tenant=2) as callers:
        one, other = await callers.make("worker"), await callers.make("worker", await callers.tenant())
        polls = [_poll(one), _poll(one, queue="another")]
        await one.until_polls(2)
        refused = await _poll(one)
        assert is_problem(refused, 429, "over-quota")["quota"] == "long_polls"
        assert int(refused.headers["retry-after"]) > 0
        polls.append(_poll(other))
        await one.until_polls(3)
        assert not any(poll.done() for poll in polls)
        await _end(polls[0])
        await one.until_polls(2)
        polls.append(_poll(one))
        await one.until_polls(3)
        await _end(*polls)


async def test_where_all_places_are_taken_a_newcomer_gets_that_of_the_tenant_with_the_most(
    database_url: str, pool: Pool
) -> None:
    async with _served(database_url, pool, max_long_polls=3) as callers:
        crowd, newcomer = await callers.make("worker"), await callers.make("worker", await callers.tenant())
        polls = []
        for number in range(3):
            polls.append(_poll(crowd))
            await crowd.until_polls(number + 1)
        is_problem(await _poll(crowd), 429, "over-quota")
        late = _poll(newcomer)
        assert (await polls[0]).json()["attempts"] == []
        await crowd.until_polls(3)
        assert [poll.done() for poll in (*polls, late)] == [True, False, False, False]
        await _end(*polls[1:], late)


@pytest.mark.usefixtures("scheduler")
async def test_a_poll_gets_no_work_after_its_key_was_revoked(
    admin: Caller, callers: Callers, connection: asyncpg.Connection
) -> None:
    await admin.create(schedule="manual")
    worker = await callers.make("worker")
    poll = _poll(worker, "revoked")
    await admin.until_polls(1)
    # By another process: this one is not told.
    await connection.execute("UPDATE api_keys SET revoked_at = clock_at() WHERE role = 'worker'")
    await admin.create(schedule="now")
    is_problem(await poll, 401, "unauthenticated")
    (attempt,) = await admin.lease()
    assert attempt["attempt"] == 1
    assert await connection.fetchval("SELECT count(*) FROM leases WHERE worker LIKE '%revoked'") == 0


@pytest.mark.usefixtures("scheduler")
async def test_work_is_offered_to_the_next_when_the_first_has_lost_its_key(
    admin: Caller,
    callers: Callers,
    connection: asyncpg.Connection,
    statements: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await admin.create(schedule="manual")
    first = _poll(await callers.make("worker"), "revoked")
    await admin.until_polls(1)
    second = _poll(admin)
    await admin.until_polls(2)
    monkeypatch.setattr(long_polls, "CHECK_SECONDS", 3600.0)
    await _until_all(statements, "pulls.ended_keys", 1)  # the last look that helps
    await connection.execute("UPDATE api_keys SET revoked_at = clock_at() WHERE role = 'worker'")
    await admin.create(schedule="now")
    is_problem(await first, 401, "unauthenticated")
    assert len((await second).json()["attempts"]) == 1


async def test_a_turn_that_a_poll_had_when_it_was_dismissed_goes_to_another(database_url: str, pool: Pool) -> None:
    polls = LongPolls(database_url, pool, per_tenant=2, in_total=2)
    gone = asyncio.get_running_loop().create_future()
    with polls.added(PollSpec(1, "q", None, "k")) as first, polls.added(PollSpec(1, "q", None, "k")) as second:
        assert first.has_turn
        second.use_turn()
        waiting = asyncio.create_task(second.wait(gone, WAIT_SECONDS))
        await asyncio.sleep(0)
        assert not second.has_turn
        with polls.added(PollSpec(2, "q", None, "k")):
            assert first.is_ended
            assert second.has_turn
        await waiting


async def test_a_known_key_that_was_revoked_elsewhere_leases_nothing(
    callers: Callers, connection: asyncpg.Connection
) -> None:
    worker = await callers.make("worker")
    assert await worker.lease(wait_seconds=0) == []
    await connection.execute("UPDATE api_keys SET revoked_at = clock_at() WHERE role = 'worker'")
    is_problem(await _poll(worker, wait_seconds=0), 401, "unauthenticated")


async def test_polls_end_with_their_key_though_there_is_no_work(
    admin: Caller, callers: Callers, connection: asyncpg.Connection
) -> None:
    worker = await callers.make("worker")
    polls = [_poll(worker), _poll(worker)]
    await admin.until_polls(2)
    await connection.execute("UPDATE api_keys SET expires_at = clock_at() WHERE role = 'worker'")
    for poll in polls:
        is_problem(await poll, 401, "unauthenticated")


@pytest.mark.parametrize(
    ("table", "waits"),
    [
        ("lanes", lambda caller: _poll(caller, wait_seconds=0)),
        ("outcomes", lambda caller: asyncio.create_task(caller.post("/workers/w/heartbeat", json={}))),
    ],
)
async def test_leases_reports_and_probes_do_not_wait_for_each_other(
    admin: Caller, callers: Callers, pool: Pool, table: str, waits: "Callable[[Caller], asyncio.Task[Any]]"
) -> None:
    await admin.create(schedule="manual")
    flooding = [await callers.make("worker", await callers.tenant()) for _ in range(3)]
    await pool.execute(
        "INSERT INTO queues (tenant_id, name) SELECT tenant_id, 'billing' FROM tenants WHERE NOT is_host"
    )
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        waiting = [waits(caller) for caller in flooding for _ in range(8)]

        blocked = "SELECT count(*) >= 4 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        await until(lambda: pool.fetchval(blocked))
        if table == "lanes":
            assert (await admin.post("/workers/v/heartbeat", json={})).status_code == 200
        else:
            assert await admin.lease("mistyped", wait_seconds=0) == []
        assert (await admin.get(f"{callers.address}/readyz")).status_code == 200
        assert (await callers.of(admin.key).get("/api-keys")).status_code == 200
        assert not any(each.done() for each in waiting)
    await asyncio.gather(*waiting)


async def test_one_tenants_calls_wait_behind_its_own() -> None:
    limit, order = TenantLimit(2), list[str]()
    are_in, leave = asyncio.Event(), asyncio.Event()

    async def use(tenant_id: int, name: str) -> None:
        async with limit.slot(tenant_id):
            order.append(name)
            if len(order) == 3:
                are_in.set()
            await leave.wait()

    uses = [asyncio.create_task(use(*each)) for each in ((1, "a"), (1, "b"), (1, "c"), (2, "d"))]
    await asyncio.wait_for(are_in.wait(), PATIENCE_SECONDS)
    assert order == ["a", "b", "d"]
    leave.set()
    await asyncio.gather(*uses)
    assert order == ["a", "b", "d", "c"]
    assert not limit
