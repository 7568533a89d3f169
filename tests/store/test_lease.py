import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise

import asyncpg
import pytest

from engine import AT, LEASE, MINUTE, Holder, Job, Planned, add_job, add_timer, lease
from evertick.store.database import Pool
from evertick.store.engine import lanes
from evertick.store.engine.lanes import Leased, PutBack
from evertick.store.maintenance import diagnostics
from evertick.store.tenants import tenants

JOBS = 8


async def one_lane(
    connection: asyncpg.Connection, jobs: Sequence[Job], rotation: int = 0, first_priority: int = 0
) -> set[int]:
    """The jobs in the lane that comes first."""
    leased = await lanes.read(
        connection,
        await lanes.lease(
            connection,
            sorted({job.queue_id for job in jobs}),
            "w",
            lanes=1,
            most_per_lane=9,
            rotation=rotation,
            lease_time=LEASE,
            tenant_id=None,
            first_priority=first_priority,
        ),
    )
    return {each.job_id for each in leased}


async def ready(connection: asyncpg.Connection, most_per_lane: int = 100) -> list[tuple[str, int, datetime]]:
    queues = await diagnostics.ready_queues(connection, most_per_lane)
    return [(each.queue, each.attempts, each.oldest_at) for each in queues]


def tokens(leased: Sequence[Leased]) -> list[tuple[int, int]]:
    return [(each.lane_id, each.seq) for each in leased]


async def test_a_lease_covers_the_next_range_of_its_lane(connection: asyncpg.Connection, holder: Holder) -> None:
    jobs = [await add_job(connection) for _ in range(5)]
    await holder.fire(*[Planned(job) for job in jobs])
    first, rest = await lease(connection, *jobs, most=3), await lease(connection, *jobs, most=3)
    assert [each.job_id for each in first + rest] == [job.job_id for job in jobs]
    assert len({each.lease_id for each in first}) == len({each.lease_id for each in rest}) == 1
    rows = await connection.fetch(
        "SELECT lane_id, first_seq, last_seq, partition, worker FROM leases ORDER BY first_seq"
    )
    assert [tuple(row) for row in rows] == [
        (jobs[0].lane_id, part[0].seq, part[-1].seq, 7, "w") for part in (first, rest)
    ]
    assert await connection.fetchval("SELECT head FROM lanes") == rest[-1].seq
    assert await lease(connection, *jobs) == []


async def test_an_attempt_comes_with_all_that_running_it_needs(connection: asyncpg.Connection, holder: Holder) -> None:
    job = await add_job(connection)
    await holder.fire(Planned(job, reason="late"))
    [leased] = await lease(connection, job)
    assert (leased.job_id, leased.fire_at, leased.reason, leased.attempt) == (job.job_id, AT, "late", 1)
    assert (leased.name, leased.handler, leased.timezone) == (f"job {job.job_id}", "handle", "UTC")
    assert (leased.timeout_seconds, leased.payload, leased.is_over) == (60, '{"n": 1}', False)


async def test_a_run_that_was_asked_for_may_have_a_payload_of_its_own(
    connection: asyncpg.Connection, holder: Holder
) -> None:
    job = await add_job(connection)
    for fire_at, has_payload in ((AT, True), (AT + MINUTE, False)):
        await add_timer(connection, job, "manual", fire_at, "manual")
        await connection.execute(
            "INSERT INTO requested_runs VALUES ($1, $2, now(), NULL, $3, '[2]')", job.job_id, fire_at, has_payload
        )
        await holder.fire(Planned(job, fire_at, kind="manual"))
    assert [each.payload for each in await lease(connection, job)] == ["[2]", '{"n": 1}']


@pytest.mark.parametrize(("first", "expected"), [(0, "012"), (1, "102"), (2, "201")])
async def test_the_priority_whose_turn_it_is_comes_first_and_then_high_before_low(
    connection: asyncpg.Connection, holder: Holder, first: int, expected: str
) -> None:
    low, normal, high = [
        await add_job(connection, priority=priority, partition=partition)
        for priority, partition in ((2, 1), (1, 2), (0, 3))
    ]
    jobs = [low, high, normal]
    await holder.fire(*[Planned(job) for job in jobs])
    order = [await one_lane(connection, jobs, first_priority=first) for _ in jobs]
    by_priority = [high, normal, low]
    assert order == [{by_priority[int(each)].job_id} for each in expected]


@pytest.mark.parametrize(("rotation", "first"), [(0, 3), (3, 3), (4, 100), (101, 250), (251, 3)])
async def test_lanes_are_drawn_in_rotation(
    connection: asyncpg.Connection, holder: Holder, rotation: int, first: int
) -> None:
    jobs = {partition: await add_job(connection, partition=partition) for partition in (3, 100, 250)}
    await holder.fire(*[Planned(job) for job in jobs.values()])
    assert await one_lane(connection, list(jobs.values()), rotation) == {jobs[first].job_id}


async def test_a_lane_with_nothing_new_is_passed_over(connection: asyncpg.Connection, holder: Holder) -> None:
    idle, busy = await add_job(connection, partition=3), await add_job(connection, partition=100)
    await holder.fire(Planned(busy))
    assert await one_lane(connection, [idle, busy]) == {busy.job_id}


async def test_only_the_asked_for_queues_are_drawn_from(connection: asyncpg.Connection, holder: Holder) -> None:
    mine, theirs = await add_job(connection, queue="mine"), await add_job(connection, queue="theirs")
    await holder.fire(Planned(mine), Planned(theirs))
    assert [each.job_id for each in await lease(connection, mine)] == [mine.job_id]
    assert [each.job_id for each in await lease(connection, theirs)] == [theirs.job_id]


async def test_two_who_lease_at_once_get_disjoint_ranges_and_neither_waits(
    connection: asyncpg.Connection, second: asyncpg.Connection, holder: Holder
) -> None:
    jobs = [await add_job(connection, partition=partition) for partition in (3, 3, 9, 9)]
    await holder.fire(*[Planned(job) for job in jobs])
    async with connection.transaction():
        first = await lanes.read(
            connection,
            await lanes.lease(
                connection,
                [jobs[0].queue_id],
                "w",
                lanes=1,
                most_per_lane=1,
                rotation=0,
                lease_time=LEASE,
                tenant_id=None,
            ),
        )
        others = await lease(second, *jobs, worker="v")
    rest = await lease(second, *jobs, worker="v")
    assert [each.job_id for each in first] == [jobs[0].job_id]
    assert [each.job_id for each in others] == [jobs[2].job_id, jobs[3].job_id]
    assert [each.job_id for each in rest] == [jobs[1].job_id]


async def test_a_lease_that_is_taken_back_is_there_for_the_next(
    connection: asyncpg.Connection, second: asyncpg.Connection, holder: Holder
) -> None:
    job = await add_job(connection)
    await holder.fire(Planned(job))
    transaction = connection.transaction()
    await transaction.start()
    taken = await lease(connection, job)
    assert await lease(second, job) == []
    await transaction.rollback()
    assert tokens(await lease(second, job)) == tokens(taken)


async def test_an_attempt_that_was_cancelled_while_it_waited_is_told_apart(
    connection: asyncpg.Connection, holder: Holder
) -> None:
    job = await add_job(connection)
    await holder.fire_ticks(Planned(job, policy="REPLACE"), 2)
    assert [each.is_over for each in await lease(connection, job)] == [True, False]


async def test_a_heartbeat_extends_what_is_ones_own_even_if_it_has_run_out(
    connection: asyncpg.Connection, holder: Holder
) -> None:
    jobs = [await add_job(connection) for _ in range(3)]
    await holder.fire(*[Planned(job) for job in jobs])
    mine, late, theirs = [(await lease(connection, *jobs, worker=who, most=1))[0].lease_id for who in "wwv"]
    await connection.execute("UPDATE leases SET expires_at = now() - interval '1 s' WHERE lease_id = $1", late)
    await connection.execute("UPDATE leases SET expires_at = now() + interval '1 s' WHERE lease_id <> $1", late)
    assert await lanes.extend(connection, "w", timedelta(hours=1)) == {mine, late}
    assert await lanes.extend(connection, "w", timedelta(hours=1), [theirs]) == set()
    rows = await connection.fetch("SELECT lease_id FROM leases WHERE expires_at > now() + interval '1 minute'")
    assert {row["lease_id"] for row in rows} == {mine, late}


async def test_what_ended_elsewhere_is_told(connection: asyncpg.Connection, holder: Holder) -> None:
    job = await add_job(connection)
    await holder.fire(Planned(job, policy="REPLACE"))
    [running] = await lease(connection, job)
    assert await lanes.ended_elsewhere(connection, tokens([running])) == []
    await holder.fire(Planned(job, AT + MINUTE, policy="REPLACE"))
    assert await lanes.ended_elsewhere(connection, [*tokens([running]), (1, 1)]) == tokens([running])


async def test_what_waits_in_each_queue_is_counted(connection: asyncpg.Connection, holder: Holder) -> None:
    jobs = [await add_job(connection, partition=partition) for partition in (3, 3, 9)]
    assert await ready(connection) == []
    await holder.fire(*[Planned(job) for job in jobs])
    assert await ready(connection) == [("default", 3, AT)]
    assert await ready(connection, most_per_lane=1) == [("default", 2, AT)]
    await lease(connection, *jobs, most=1)
    assert await ready(connection) == [("default", 1, AT)]


async def test_what_is_fired_while_many_lease_is_leased_once_and_in_order(pool: Pool) -> None:
    """The prefix property: no lease passes over an attempt that becomes visible later."""
    jobs = [await add_job(pool, partition=partition, priority=partition % 2) for partition in (3, 3, 5, 6) * 2]
    holder = Holder(pool)
    await holder.take(*range(256))
    firing_ended = asyncio.Event()

    async def fire() -> None:
        for minute in range(40):
            await holder.fire(*[Planned(job, AT + minute * MINUTE, policy="ALLOW", limit=10**6) for job in jobs])
        firing_ended.set()

    async def draw(worker: str, most: int) -> list[Leased]:
        drawn: list[Leased] = []
        while True:
            is_last = firing_ended.is_set()
            leased = await lease(pool, *jobs, worker=worker, most=most)
            drawn += leased
            if is_last and not leased:
                return drawn

    drawing = asyncio.gather(*[draw(f"w{most}", most) for most in (1, 3, 7, 100)])
    await fire()
    shares = await drawing
    drawn = [leased for share in shares for leased in share]
    fired = await pool.fetch("SELECT lane_id, seq FROM attempts ORDER BY lane_id, seq")
    assert len(fired) == 40 * JOBS
    assert sorted(tokens(drawn)) == [tuple(row) for row in fired]
    ranges = await pool.fetch("SELECT lane_id, first_seq, last_seq FROM leases ORDER BY lane_id, first_seq")
    for one, next_one in pairwise(ranges):
        assert one["lane_id"] < next_one["lane_id"] or one["last_seq"] < next_one["first_seq"]


async def test_a_lease_whose_answer_got_lost_is_not_extended(connection: asyncpg.Connection, holder: Holder) -> None:
    jobs = [await add_job(connection) for _ in range(2)]
    await holder.fire(*[Planned(job) for job in jobs])
    known, _ = [(await lease(connection, *jobs, worker="w", most=1))[0].lease_id for _ in range(2)]
    assert await lanes.extend(connection, "w", timedelta(hours=1), [known]) == {known}


async def test_only_the_lanes_that_were_named_are_leased_from(connection: asyncpg.Connection, holder: Holder) -> None:
    named, other = await add_job(connection, partition=3), await add_job(connection, partition=4)
    await holder.fire(Planned(named), Planned(other))
    leased = await lanes.read(
        connection,
        await lanes.lease(
            connection,
            [named.queue_id],
            "w",
            lanes=9,
            most_per_lane=9,
            rotation=0,
            lease_time=LEASE,
            tenant_id=None,
            only=[named.lane_id, named.lane_id, named.lane_id + 4096],
        ),
    )
    assert [each.job_id for each in leased] == [named.job_id]
    assert [each.job_id for each in await lease(connection, other)] == [other.job_id]


async def test_queues_of_another_tenant_are_not_leased_from_whatever_id_is_asked_for(
    connection: asyncpg.Connection, holder: Holder
) -> None:
    """After a fail-over that lost commits, a worker's queue id may be another tenant's by now."""
    mine, theirs = await add_job(connection, tenant_id=1), await add_job(connection, tenant_id=2)
    await holder.fire(Planned(mine), Planned(theirs))
    ranges = await lanes.lease(
        connection,
        [mine.queue_id, theirs.queue_id],
        "w",
        lanes=9,
        most_per_lane=9,
        rotation=0,
        lease_time=LEASE,
        tenant_id=1,
    )
    assert [(each.job_id, each.tenant_id) for each in await lanes.read(connection, ranges)] == [(mine.job_id, 1)]
    assert [(each.job_id, each.tenant_id) for each in await lease(connection, theirs)] == [(theirs.job_id, 2)]


async def test_what_was_put_back_waits_in_its_queue_when_it_is_ready(
    connection: asyncpg.Connection, holder: Holder
) -> None:
    jobs = [await add_job(connection) for _ in range(3)]
    await holder.fire(*[Planned(job) for job in jobs])
    now, later, _ = await lease(connection, *jobs)
    await lanes.put_back(
        connection,
        "w",
        [
            PutBack(now.lane_id, now.seq, "handle"),
            PutBack(later.lane_id, later.seq, "handle", timedelta(hours=1)),
        ],
    )
    assert [(queue, attempts) for queue, attempts, _ in await ready(connection)] == [("default", 1)]
    activity = await tenants.activity(connection, 1, 100)
    assert (activity.running, activity.ready) == (1, 2)


async def test_lease_ids_are_not_given_out_in_turn(connection: asyncpg.Connection, holder: Holder) -> None:
    jobs = [await add_job(connection) for _ in range(3)]
    await holder.fire(*[Planned(job) for job in jobs])
    ids = [(await lease(connection, job, most=1))[0].lease_id for job in jobs]
    assert len({lease_id >> 20 for lease_id in ids}) == 3


async def test_a_lane_has_one_id_in_sql_and_in_python(connection: asyncpg.Connection) -> None:
    for *address, is_gated in ((1, 0, 0, False), (2**31 - 1, 255, 2, True), (2**31 - 1, 255, 2, False)):
        lane_id = lanes.lane_id_of(*address, is_gated=is_gated)
        assert await connection.fetchval("SELECT lane_id_of($1, $2, $3, $4)", *address, is_gated) == lane_id
        row = await connection.fetchrow(
            "SELECT lane_queue($1), lane_partition($1), lane_priority($1), lane_is_gated($1)", lane_id
        )
        assert row is not None
        assert list(row) == [*address, is_gated]
        assert [lanes.queue_of(lane_id), lanes.partition_of(lane_id)] == address[:2]
