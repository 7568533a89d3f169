"""Gates: who is let in, beside firings, outcomes and other sessions."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import asyncpg
from hypothesis import HealthCheck, given, settings, strategies as st

from engine import (
    AGAIN,
    AT,
    MINUTE,
    Holder,
    Job,
    Planned,
    add_job,
    add_timer,
    ending_of,
    lease,
    lease_free,
    retry_timer,
)
from evertick.store.database import Pool
from evertick.store.engine import gates, lanes, orphans, outcomes, ready
from evertick.store.engine.outcomes import Ending
from evertick.store.maintenance import ledgers

SHARED, ORDERED = 17, -19
LONG_AGO = timedelta(0)


async def gated(connection: asyncpg.Connection, count: int, gate_id: int = SHARED, limit: int = 1) -> list[Job]:
    return [await add_job(connection, gate_id=gate_id, gate_limit=limit) for _ in range(count)]


async def fire(holder: Holder, jobs: Sequence[Job]) -> None:
    fired = await holder.fire(*[Planned(job) for job in jobs])
    assert fired.runs == len(jobs)


async def inside(connection: asyncpg.Connection) -> set[int]:
    rows = await connection.fetch("SELECT job_id FROM open_runs WHERE is_inside")
    return {row["job_id"] for row in rows}


async def test_what_has_fired_waits_and_what_is_let_in_can_be_leased(
    connection: asyncpg.Connection, holder: Holder
) -> None:
    jobs = await gated(connection, 3, limit=2)
    fired = await holder.fire(*[Planned(job) for job in jobs])
    assert (fired.runs, fired.lane_ids, fired.gate_ids) == (3, (), [SHARED])
    assert await lease(connection, *jobs) == await lease_free(connection, *jobs) == []
    lane_ids = await gates.let_in(connection, fired.gate_ids)
    leased = await lease_free(connection, *jobs)
    assert [each.job_id for each in leased] == [job.job_id for job in jobs[:2]]
    assert sorted(lane_ids) == sorted(each.lane_id for each in leased)
    assert {each.handler for each in leased} == {"handle"}


async def test_a_firing_without_gates_names_none(connection: asyncpg.Connection, holder: Holder) -> None:
    assert (await holder.fire(Planned(await add_job(connection)))).gate_ids == []


async def test_a_batch_tells_the_gates_of_timers_that_did_not_run(
    connection: asyncpg.Connection, holder: Holder
) -> None:
    (job,) = await gated(connection, 1)
    await fire(holder, [job])
    skipped = await holder.fire(Planned(job, AT + MINUTE))
    assert (skipped.runs, skipped.gate_ids) == (0, [SHARED])


@given(st.integers(0, 3), st.lists(st.integers(1, 4), max_size=6), st.integers(1, 3))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
async def test_the_first_that_has_to_wait_stops_all_behind_it(
    connection: asyncpg.Connection, already: int, limits: list[int], most: int
) -> None:
    await connection.execute("DELETE FROM open_runs; DELETE FROM leases")
    for number in range(already):
        await connection.execute("INSERT INTO open_runs VALUES ($1, $2, 1, $1, $3, true)", number - 9, AT, SHARED)
    jobs = [await add_job(connection, gate_id=SHARED, gate_limit=limit) for limit in limits]
    for place, job in enumerate(jobs):
        await connection.execute(
            "INSERT INTO open_runs VALUES ($1, $2, 1, $1, $3)", job.job_id, AT + place * MINUTE, SHARED
        )
    await gates.let_in(connection, [SHARED], most=most)
    expected = already
    for limit in limits[:most]:  # no attempts stand behind these rows, so that no lease is made and no second look
        if expected >= limit:
            break
        expected += 1
    assert len(await inside(connection)) == expected


async def test_two_sessions_let_in_no_more_than_one_would(
    connection: asyncpg.Connection, second: asyncpg.Connection, holder: Holder
) -> None:
    jobs = await gated(connection, 3)
    await fire(holder, jobs)
    busy: set[int] = set()
    async with connection.transaction():
        await gates.let_in(connection, [SHARED])
        assert await gates.let_in(second, [SHARED], busy=busy.update) == []
    assert busy == {SHARED}
    assert await gates.let_in(second, [SHARED]) == []
    assert len(await inside(connection)) == 1


async def test_sessions_that_lock_the_same_gates_do_not_deadlock(
    connection: asyncpg.Connection, second: asyncpg.Connection, holder: Holder
) -> None:
    ids = [5, -7, 3, 2**40, -(2**40)]
    for gate_id in ids:
        await fire(holder, await gated(connection, 2, gate_id))
    busy: set[int] = set()
    entered = await asyncio.gather(
        gates.let_in(connection, ids, busy=busy.update), gates.let_in(second, ids[::-1], busy=busy.update)
    )
    assert sum(map(len, entered)) + len(await gates.let_in(connection, busy)) == len(ids)


async def test_an_outcome_that_is_not_committed_leaves_no_place_yet(
    connection: asyncpg.Connection, second: asyncpg.Connection, holder: Holder
) -> None:
    jobs = await gated(connection, 2)
    await fire(holder, jobs)
    await gates.let_in(connection, [SHARED])
    (leased,) = await lease_free(connection, *jobs)
    left: set[int] = set()
    async with connection.transaction():
        await outcomes.record(connection, "w", [ending_of(leased)], [leased.lease_id], left=left.update)
        assert await gates.let_in(second, [SHARED]) == []
    assert left == {SHARED}
    assert len(await gates.let_in(second, left)) == 1


async def test_a_run_that_a_user_is_cancelling_is_not_let_in_and_nobody_waits_for_the_user(
    connection: asyncpg.Connection, second: asyncpg.Connection, holder: Holder
) -> None:
    jobs = await gated(connection, 2, ORDERED)
    await fire(holder, jobs)
    async with connection.transaction():
        await connection.execute("SELECT FROM open_runs WHERE job_id = $1 FOR UPDATE", jobs[0].job_id)
        assert await gates.let_in(second, [ORDERED]) == []
        await connection.execute("DELETE FROM open_runs WHERE job_id = $1", jobs[0].job_id)
    await gates.let_in(second, [ORDERED])
    assert await inside(connection) == {jobs[1].job_id}


async def test_a_run_that_was_fired_while_others_were_let_in_is_found_by_the_next_look(
    connection: asyncpg.Connection, second: asyncpg.Connection, holder: Holder
) -> None:
    jobs = await gated(connection, 2, limit=2)
    async with connection.transaction():
        fired = await holder.fire(*[Planned(job) for job in jobs])
        assert await gates.let_in(second, [SHARED]) == []
    assert len(await gates.let_in(second, fired.gate_ids)) == 2


async def test_a_retry_comes_first_in_its_gate(connection: asyncpg.Connection, holder: Holder) -> None:
    for gate_id, between in ((SHARED, 1), (ORDERED, 0)):
        jobs = await gated(connection, 3, gate_id)
        await fire(holder, jobs)
        await gates.let_in(connection, [gate_id])
        (leased,) = await lease_free(connection, *jobs)
        left: set[int] = set()
        ending = ending_of(leased, "failed", AGAIN)
        await outcomes.record(connection, "w", [ending], [leased.lease_id], left=left.update)
        assert left == ({gate_id} if between else set())
        assert len(await gates.let_in(connection, left)) == between
        fired = await holder.fire(await retry_timer(connection, jobs[0]))
        await gates.let_in(connection, fired.gate_ids)
        others = await lease_free(connection, *jobs)
        if between:
            assert [each.job_id for each in others] == [jobs[1].job_id]
            await outcomes.record(connection, "w", [ending_of(each) for each in others], [])
            await gates.let_in(connection, [gate_id])
            others = await lease_free(connection, *jobs)
        assert [(each.job_id, each.attempt) for each in others] == [(jobs[0].job_id, 2)]
        await connection.execute("DELETE FROM open_runs; DELETE FROM timers")


async def test_an_order_waits_for_what_fires_by_itself_only(connection: asyncpg.Connection, holder: Holder) -> None:
    waiting, earlier = await gated(connection, 2, ORDERED)
    await fire(holder, [waiting])
    await connection.execute("UPDATE timers SET due_at = 'infinity'")
    for kind, due, blocks in (
        ("manual", "clock_at()", True),
        ("manual", "clock_at() + interval '1 hour'", False),
        ("queued", "clock_at() + interval '1 hour'", True),
        ("queued", "'infinity'", False),
        ("retry", "clock_at()", False),
    ):
        await add_timer(connection, earlier, kind, AT - MINUTE, "manual", gate_id=ORDERED)
        await connection.execute(f"UPDATE timers SET due_at = {due} WHERE kind <> 'tick'")
        entered = await gates.let_in(connection, [ORDERED])
        assert (entered == []) is blocks, (kind, due)
        await connection.execute("DELETE FROM timers WHERE kind <> 'tick'")
        await connection.execute("UPDATE open_runs SET is_inside = false; DELETE FROM leases")
    await add_timer(connection, earlier, "queued", AT - MINUTE, "tick", gate_id=ORDERED)
    await connection.execute("INSERT INTO open_runs VALUES ($1, $2, 1, 1)", earlier.job_id, AT - MINUTE)
    assert len(await gates.let_in(connection, [ORDERED])) == 1, "it may wait for an open run of its job"


async def test_what_waits_at_a_gate_takes_no_room_of_its_queue(connection: asyncpg.Connection, holder: Holder) -> None:
    """Else a run could wait for an earlier timer of its order, and the timer for the room that the run takes."""
    jobs = await gated(connection, 3)
    await connection.execute("UPDATE queues SET max_ready = 2")
    await fire(holder, jobs)
    assert [depth.ready for depth in await ready.depths(connection)] == [0]
    await gates.let_in(connection, [SHARED])
    assert [depth.ready for depth in await ready.depths(connection)] == [1]
    assert await lanes.count_ready(connection, {jobs[0].queue_id: 9}, None, None) == {jobs[0].queue_id: 1}


async def test_what_waits_at_a_gate_is_load_that_new_work_is_refused_for(
    connection: asyncpg.Connection, holder: Holder
) -> None:
    await fire(holder, await gated(connection, 3))
    assert await ready.load(connection, 2) == (3, [1])
    await gates.let_in(connection, [SHARED])
    assert (await ready.load(connection, 2)).ready == 3


async def test_an_attempt_that_waits_at_its_gate_is_no_orphan_and_one_that_lost_its_lease_is(
    connection: asyncpg.Connection, holder: Holder
) -> None:
    jobs = await gated(connection, 2)
    await fire(holder, jobs)

    async def orphaned() -> list[int]:
        checked = await orphans.check(connection, range(256), {}, most_per_lane=99, age=LONG_AGO)
        return [seq for each in checked for seq in each.orphans]

    assert await orphaned() == []
    await gates.let_in(connection, [SHARED])
    assert await orphaned() == []
    await connection.execute("DELETE FROM leases")
    seq = await connection.fetchval("SELECT seq FROM open_runs WHERE is_inside")
    assert await orphaned() == [seq]


async def test_a_day_of_history_is_kept_while_an_attempt_of_it_waits_at_a_gate(
    connection: asyncpg.Connection, pool: Pool, holder: Holder
) -> None:
    jobs = await gated(connection, 2)
    await fire(holder, jobs)

    async def unfinished() -> int:
        now_at = await lanes.clock(connection)
        return sum(not day.is_finished for day in await ledgers.expired_days(pool, now_at + timedelta(days=2)))

    for _ in jobs:
        assert await unfinished() == 1
        await gates.let_in(connection, [SHARED])
        leased = await lease_free(connection, *jobs)
        await outcomes.record(connection, "w", [ending_of(each) for each in leased], [leased[0].lease_id])
    assert await unfinished() == 0


async def test_ten_thousand_runs_that_wait_cost_a_look_what_two_do(
    connection: asyncpg.Connection, holder: Holder
) -> None:
    (job,) = await gated(connection, 1)
    await fire(holder, [job])
    await gates.let_in(connection, [SHARED])
    await connection.execute(
        "INSERT INTO open_runs SELECT $1, $2::timestamptz + n * interval '1 ms', 1, n, $3"
        " FROM generate_series(1, 10000) AS n",
        *(job.job_id, AT, SHARED),
    )
    await connection.execute("ANALYZE open_runs")
    count = "SELECT pg_stat_get_xact_tuples_returned(i) + pg_stat_get_xact_tuples_fetched(i)"
    async with connection.transaction():
        assert await gates.let_in(connection, [SHARED]) == []
        read = await connection.fetchval(f"{count} FROM (SELECT 'open_runs_at_gate'::regclass AS i) AS named")
        assert read < 10
    found = await gates.waiting(connection, range(256), after=gates.FIRST_GATE, most=9)
    assert [gate.gate_id for gate in found] == [SHARED]


async def test_a_sweep_goes_on_after_the_last_gate_and_tells_which_are_of_its_partitions(
    connection: asyncpg.Connection,
) -> None:
    ids = [-300, -1, 5, 256, 2**60]
    for gate_id in [*ids, *ids]:
        await connection.execute(
            "INSERT INTO open_runs SELECT coalesce(max(job_id), 0) + 1, $1, 1, 1, $2 FROM open_runs", AT, gate_id
        )
    await connection.execute("INSERT INTO open_runs VALUES (99, $1, 1, 1, 77, true), (98, $1, 1, 1, NULL, false)", AT)
    first = await gates.waiting(connection, [5, 0], after=gates.FIRST_GATE, most=3)
    rest = await gates.waiting(connection, [5, 0], after=first[-1].gate_id, most=3)
    assert [tuple(gate) for gate in first + rest] == [
        (-300, False),
        (-1, False),
        (5, True),
        (256, True),
        (2**60, True),
    ]


async def test_more_than_one_look_takes_are_let_in_one_after_the_other(
    connection: asyncpg.Connection, holder: Holder
) -> None:
    jobs = await gated(connection, 5, limit=9)
    await fire(holder, jobs)
    assert len(await gates.let_in(connection, [SHARED], most=2)) == 5


async def test_a_run_of_a_deleted_job_leaves_its_gate_when_its_attempt_fails(
    connection: asyncpg.Connection, holder: Holder
) -> None:
    for gate_id in (SHARED, ORDERED):
        (job,) = await gated(connection, 1, gate_id)
        await fire(holder, [job])
        await gates.let_in(connection, [gate_id])
        (leased,) = await lease_free(connection, job)
        await connection.execute("UPDATE jobs SET status = 'deleted' WHERE job_id = $1", job.job_id)
        left: set[int] = set()
        ending: Ending = ending_of(leased, "failed", AGAIN)
        await outcomes.record(connection, "w", [ending], [leased.lease_id], left=left.update)
        assert left == {gate_id}
        assert await connection.fetchval("SELECT count(*) FROM open_runs") == 0
