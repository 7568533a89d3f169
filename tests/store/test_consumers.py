"""Attempts that a broker has accepted: who holds them, who may end them, and what a fast consumer meets."""

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from engine import LEASE, Holder, Planned, add_job, ending_of, lease, until_blocked
from evertick.domain.attempt import Token
from evertick.store.engine import consumers, gates, lanes, outcomes, pulls
from evertick.store.engine.consumers import HandOver
from evertick.store.engine.lanes import Leased

TENANT = 1
ANYBODY = "1/(consumer)"
REPORTED = '{"target": {"type": "kafka", "completion": "reported"}}'
GATE = 4711


async def published(
    holder: Holder, worker: str = "dispatcher", count: int = 2, *, gated: bool = False, spec: str = REPORTED
) -> list[Leased]:
    """Attempts that a dispatcher holds: in one lease, or, of a job with a key, each in a lease of its own."""
    connection = holder.connection
    gate_id, limit = (GATE, 1) if gated else (None, None)
    jobs = [await add_job(connection, gate_id=gate_id, gate_limit=limit) for _ in range(1 if gated else count)]
    await connection.execute("UPDATE job_versions SET spec = $1, handler = NULL", spec)
    await holder.fire(*[Planned(job) for job in jobs])
    if not gated:
        return await lease(connection, *jobs, worker=worker)
    await gates.let_in(connection, [GATE])
    free = await lanes.lease_free(
        *(connection, [jobs[0].queue_id], [""], worker), most=1, lease_time=LEASE, tenant_id=None
    )
    return await lanes.read(connection, free)


def handed(leased: Leased, seconds: float = 60) -> HandOver:
    return HandOver(leased.lane_id, leased.seq, TENANT, seconds)


async def claim(
    connection: asyncpg.Connection, *leased: Leased, worker: str = "1/a", tenant: int = TENANT
) -> set[Token]:
    return await consumers.claim(connection, tenant, worker, [each.token for each in leased], LEASE)


async def reportable(connection: asyncpg.Connection, leased: Leased, worker: str = "1/a", tenant: int = TENANT) -> bool:
    return leased.token in await consumers.reportable(connection, tenant, worker, [leased.token])


async def holder_of(connection: asyncpg.Connection, leased: Leased) -> tuple[str | None, int, int]:
    """Who holds an attempt, and in how many seconds its lease expires and ends."""
    row = await connection.fetchrow(
        "SELECT worker, round(extract(epoch FROM expires_at - clock_at()))::integer,"
        " round(extract(epoch FROM ends_at - clock_at()))::integer"
        " FROM leases WHERE lane_id = $1 AND $2 BETWEEN first_seq AND last_seq ORDER BY last_seq - first_seq LIMIT 1",
        *leased.token,
    )
    assert row is not None
    return tuple(row)


@pytest.mark.parametrize("gated", [False, True])
async def test_what_was_handed_over_is_held_for_any_consumer_until_its_timeout(
    connection: asyncpg.Connection, holder: Holder, *, gated: bool
) -> None:
    first, *others = await published(holder, gated=gated)
    assert await consumers.hand_over(connection, "dispatcher", [handed(first, 3600)]) == set()
    assert await holder_of(connection, first) == (ANYBODY, 3600, 3600)
    # Else the last attempt of a run would be put back when it is lost, as one that never began.
    assert await connection.fetchval("SELECT started FROM leases WHERE ends_at IS NOT NULL") == [first.seq]
    for other in others:
        assert (await holder_of(connection, other))[0] == "dispatcher"
    assert await lanes.extend(connection, "dispatcher", LEASE, [first.lease_id]) == {each.lease_id for each in others}


async def test_a_hand_over_that_is_repeated_changes_nothing(connection: asyncpg.Connection, holder: Holder) -> None:
    first, _ = await published(holder)
    await consumers.hand_over(connection, "dispatcher", [handed(first, 3600)])
    assert await consumers.hand_over(connection, "dispatcher", [handed(first)]) == {first.token}
    assert await holder_of(connection, first) == (ANYBODY, 3600, 3600)


async def test_only_the_holder_hands_over_and_only_what_is_open(connection: asyncpg.Connection, holder: Holder) -> None:
    first, second = await published(holder)
    assert await consumers.hand_over(connection, "another", [handed(first)]) == {first.token}
    await outcomes.record(connection, "elsewhere", [ending_of(second, "cancelled")], [])
    assert await consumers.hand_over(connection, "dispatcher", [handed(second)]) == {second.token}
    assert await connection.fetchval("SELECT count(*) FROM leases") == 1


async def test_what_was_handed_over_runs_until_it_is_reported(connection: asyncpg.Connection, holder: Holder) -> None:
    first, second = await published(holder)
    await consumers.hand_over(connection, "dispatcher", [handed(first), handed(second)])
    await outcomes.record(connection, "dispatcher", [], [first.lease_id])
    assert await connection.fetchval("SELECT array_agg(DISTINCT worker) FROM leases") == [ANYBODY]
    waiting = await add_job(connection)
    await holder.fire(Planned(waiting))
    await connection.execute("UPDATE queues SET max_running = 2")
    rooms = {waiting.queue_id: 10}
    assert await lanes.estimate_rooms(connection, rooms, None) == {}
    await outcomes.record(connection, "a", [ending_of(first)], [])
    await consumers.release(connection, [first.token])
    assert await lanes.estimate_rooms(connection, rooms, None) == {waiting.queue_id: 1}
    assert (await holder_of(connection, second))[0] == ANYBODY


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("is_handed_over", [False, True])
async def test_any_consumer_reports_before_and_after_the_hand_over(
    connection: asyncpg.Connection, holder: Holder, *, gated: bool, is_handed_over: bool
) -> None:
    leased, *_ = await published(holder, gated=gated)
    if is_handed_over:
        await consumers.hand_over(connection, "dispatcher", [handed(leased)])
    assert await reportable(connection, leased)
    assert not await reportable(connection, leased, "2/a", tenant=2)


@pytest.mark.parametrize("spec", ['{"target": {"type": "kafka"}}', '{"target": {"type": "http", "url": "x"}}', "{}"])
async def test_what_is_not_to_be_reported_is_the_dispatchers_alone(
    connection: asyncpg.Connection, holder: Holder, spec: str
) -> None:
    leased, _ = await published(holder, spec=spec)
    assert not await reportable(connection, leased)
    assert await claim(connection, leased) == set()


async def test_what_was_never_leased_or_was_put_back_has_no_consumer(
    connection: asyncpg.Connection, holder: Holder
) -> None:
    leased, other = await published(holder)
    await lanes.put_back(connection, "dispatcher", [lanes.PutBack(*leased.token, "")])
    await connection.execute("UPDATE lanes SET head = $1", other.seq - 1)
    for each in (leased, other):
        assert not await reportable(connection, each)
        assert await claim(connection, each) == set()


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("is_handed_over", [False, True])
async def test_the_first_heartbeat_claims_and_no_other_consumer_may_follow(
    connection: asyncpg.Connection, holder: Holder, *, gated: bool, is_handed_over: bool
) -> None:
    leased, *_ = await published(holder, gated=gated)
    if is_handed_over:
        await consumers.hand_over(connection, "dispatcher", [handed(leased)])
    assert await claim(connection, leased) == {leased.token}
    assert await holder_of(connection, leased) == ("1/a", 30, 60)
    assert await claim(connection, leased, worker="1/b") == set()
    assert not await reportable(connection, leased, "1/b")
    assert leased.token in await pulls.held(connection, TENANT, "1/a", [leased.token])
    assert await consumers.hand_over(connection, "dispatcher", [handed(leased)]) == {leased.token}
    assert await holder_of(connection, leased) == ("1/a", 30, 60)


async def test_a_token_of_no_lane_is_nobodys(connection: asyncpg.Connection) -> None:
    for token in [(2**62, 1), (1, 2**62), (1, 1)]:
        assert await consumers.claim(connection, TENANT, "1/a", [token], LEASE) == set()
        assert await consumers.reportable(connection, TENANT, "1/a", [token]) == {}


async def test_another_tenants_consumer_claims_nothing(connection: asyncpg.Connection, holder: Holder) -> None:
    leased, _ = await published(holder)
    assert await claim(connection, leased, worker="2/a", tenant=2) == set()


async def test_heartbeats_extend_a_claim_up_to_its_end(connection: asyncpg.Connection, holder: Holder) -> None:
    leased, _ = await published(holder)
    await consumers.hand_over(connection, "dispatcher", [handed(leased, 20)])
    await claim(connection, leased)
    assert await holder_of(connection, leased) == ("1/a", 20, 20)
    lease_ids = await pulls.leases(connection, "1/a", [leased.token])
    await lanes.extend(connection, "1/a", timedelta(hours=1), lease_ids)
    await pulls.extend_all(connection, "1/a", timedelta(hours=1))
    assert await holder_of(connection, leased) == ("1/a", 20, 20)
    assert await pulls.lost(connection, "1/a", [leased.token]) == []


@pytest.mark.parametrize("event", ["its end", "an outcome"])
async def test_what_is_past_its_end_or_over_is_lost_to_its_consumer(
    connection: asyncpg.Connection, holder: Holder, event: str
) -> None:
    leased, _ = await published(holder)
    await claim(connection, leased)
    if event == "its end":
        await connection.execute("UPDATE leases SET ends_at = clock_at() - interval '1 s' WHERE ends_at IS NOT NULL")
    else:
        await outcomes.record(connection, "dispatcher", [ending_of(leased, "failed")], [])
    assert await pulls.lost(connection, "1/a", [leased.token]) == [leased.token]
    assert await claim(connection, leased) == set()


async def test_an_outcome_during_the_hand_over_counts_and_leaves_a_lease_with_nothing_open(
    connection: asyncpg.Connection, second: asyncpg.Connection, holder: Holder
) -> None:
    leased, other = await published(holder)
    async with connection.transaction():
        await consumers.hand_over(connection, "dispatcher", [handed(leased)])
        assert await reportable(second, leased)  # which does not see the hand-over yet
        assert await outcomes.record(second, "a", [ending_of(leased)], []) == (set(), set())
    await connection.execute("UPDATE leases SET expires_at = clock_at() - interval '1 s'")
    lost = await outcomes.reap(connection, "reaper", [7], lease_time=LEASE, most=10)
    assert [each.seq for each in lost if each.lane_id is not None] == [other.seq]


async def test_an_outcome_that_is_about_to_commit_is_not_undone_by_the_hand_over(
    connection: asyncpg.Connection, second: asyncpg.Connection, holder: Holder
) -> None:
    leased, _ = await published(holder)
    async with second.transaction():
        await outcomes.record(second, "a", [ending_of(leased)], [])
        assert await consumers.hand_over(connection, "dispatcher", [handed(leased)]) == set()  # it cannot know
        await consumers.release(second, [leased.token])
    await consumers.release(connection, [leased.token])
    assert await connection.fetchval("SELECT array_agg(worker) FROM leases") == ["dispatcher"]
    assert await connection.fetchval("SELECT result FROM outcomes") == "success"


@pytest.mark.parametrize("gated", [False, True])
async def test_a_claim_waits_for_the_hand_over_and_then_has_its_end(
    connection: asyncpg.Connection,
    second: asyncpg.Connection,
    watcher: asyncpg.Connection,
    holder: Holder,
    *,
    gated: bool,
) -> None:
    leased, *_ = await published(holder, gated=gated)
    async with connection.transaction():
        await consumers.hand_over(connection, "dispatcher", [handed(leased, 10)])
        claiming = asyncio.create_task(claim(second, leased))
        await until_blocked(watcher, second)
    assert await claiming == {leased.token}
    assert await holder_of(connection, leased) == ("1/a", 10, 10)


@pytest.mark.parametrize("gated", [False, True])
async def test_a_hand_over_waits_for_the_claim_and_leaves_it(
    connection: asyncpg.Connection,
    second: asyncpg.Connection,
    watcher: asyncpg.Connection,
    holder: Holder,
    *,
    gated: bool,
) -> None:
    leased, *_ = await published(holder, gated=gated)
    async with connection.transaction():
        await claim(connection, leased)
        handing = asyncio.create_task(consumers.hand_over(second, "dispatcher", [handed(leased, 10)]))
        await until_blocked(watcher, second)
    assert await handing == {leased.token}
    assert await holder_of(connection, leased) == ("1/a", 30, 60)


async def test_of_two_consumers_that_claim_at_once_one_gets_it(
    connection: asyncpg.Connection, second: asyncpg.Connection, watcher: asyncpg.Connection, holder: Holder
) -> None:
    leased, _ = await published(holder)
    async with connection.transaction():
        assert await claim(connection, leased) == {leased.token}
        claiming = asyncio.create_task(claim(second, leased, worker="1/b"))
        await until_blocked(watcher, second)
    assert await claiming == set()


async def test_the_reaper_tells_what_was_not_reported_in_time_from_what_was_lost(
    connection: asyncpg.Connection, holder: Holder
) -> None:
    unclaimed, claimed, late, kept = await published(holder, count=4)
    await consumers.hand_over(connection, "dispatcher", [handed(each) for each in (unclaimed, claimed, late)])
    await claim(connection, claimed, late)
    await connection.execute(
        "UPDATE leases SET expires_at = clock_at() - interval '1 s',"
        " ends_at = CASE WHEN first_seq = $1 THEN ends_at ELSE clock_at() - interval '2 s' END"
        " WHERE ends_at IS NOT NULL",
        claimed.seq,
    )
    lost = await outcomes.reap(connection, "reaper", [7], lease_time=LEASE, most=10)
    assert {(each.seq, each.worker, each.is_past_end, each.is_marked) for each in lost} == {
        (unclaimed.seq, ANYBODY, True, True),
        (claimed.seq, "1/a", False, True),
        (late.seq, "1/a", True, True),
    }
    await connection.execute("UPDATE leases SET expires_at = clock_at() - interval '1 s' WHERE worker = 'dispatcher'")
    [lost_one] = await outcomes.reap(connection, "reaper", [7], lease_time=LEASE, most=10)
    assert (lost_one.seq, lost_one.is_past_end) == (kept.seq, False)
