"""Attempts that were never started go back to be leased again, and leave nothing behind."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import asyncpg

from engine import LEASE, Holder, Planned, add_job, ending_of, lease, until_blocked
from evertick.domain.attempt import Token
from evertick.store.engine import lanes, outcomes, pulls
from evertick.store.engine.lanes import Leased, PutBack

HOUR = timedelta(hours=1)


async def leased_by(holder: Holder, worker: str = "w", count: int = 3, queue: str = "default") -> list[Leased]:
    """Attempts of so many jobs, all in one lease."""
    jobs = [await add_job(holder.connection, queue=queue) for _ in range(count)]
    await holder.fire(*[Planned(job) for job in jobs])
    return await lease(holder.connection, *jobs, worker=worker)


def back(leased: Leased, delay: timedelta = timedelta(0), deferrals: int = 1) -> PutBack:
    return PutBack(leased.lane_id, leased.seq, leased.handler or "", delay, deferrals)


def token(leased: Leased) -> Token:
    return leased.lane_id, leased.seq


async def lease_free(
    connection: asyncpg.Connection,
    leased: Leased,
    worker: str = "v",
    *,
    handlers: Sequence[str] | None = ("handle",),
    most: int = 10,
    tenant_id: int | None = None,
) -> list[Leased]:
    ranges = await lanes.lease_free(
        connection,
        [lanes.queue_of(leased.lane_id)],
        handlers,
        worker,
        most=most,
        lease_time=LEASE,
        tenant_id=tenant_id,
    )
    return await lanes.read(connection, ranges)


async def test_what_was_put_back_is_leased_again_as_it_was(connection: asyncpg.Connection, holder: Holder) -> None:
    first, second, third = await leased_by(holder)
    assert await lanes.put_back(connection, "w", [back(second, deferrals=4)]) == set()
    [again] = await lease_free(connection, first)
    assert again == second._replace(lease_id=again.lease_id, deferrals=4)
    assert again.lease_id != second.lease_id
    assert await connection.fetchval("SELECT count(*) FROM timers WHERE kind <> 'tick'") == 0
    for table, rows in (("outcomes", 0), ("attempts", 3), ("leases", 2), ("open_runs", 0)):
        assert await connection.fetchval(f"SELECT count(*) FROM {table}") == rows
    done = [ending_of(first), ending_of(third)]
    await outcomes.record(connection, "w", done, [first.lease_id])
    await outcomes.record(connection, "v", [ending_of(again)], [again.lease_id])
    assert await connection.fetchval("SELECT count(*) FROM leases") == 0


async def test_a_heartbeat_keeps_what_its_worker_put_back_and_leased_again(
    connection: asyncpg.Connection, holder: Holder
) -> None:
    """The first attempt of a range: its own lease begins where that of the range does."""
    first, second, _ = await leased_by(holder)
    await lanes.put_back(connection, "w", [back(first)])
    [again] = await lease_free(connection, first, "w")
    for newest in (again, second):  # whichever lease was written last
        await connection.execute("UPDATE leases SET expires_at = clock_at() WHERE lease_id = $1", newest.lease_id)
        assert await pulls.leases(connection, "w", [token(first)]) == [again.lease_id]
        await lanes.note_progress(connection, "w", {token(first): "half"})
        noted = await connection.fetchval("SELECT progress FROM leases WHERE lease_id = $1", again.lease_id)
        assert noted is not None
        await connection.execute("UPDATE leases SET progress = NULL")
        assert await pulls.leases(connection, "w", [token(second)]) == [second.lease_id]


async def test_what_was_leased_again_may_be_put_back_again(connection: asyncpg.Connection, holder: Holder) -> None:
    [leased] = await leased_by(holder, count=1)
    for worker in ("w", "v", "u"):
        assert await lanes.put_back(connection, worker, [back(leased)]) == set()
        assert await connection.fetchval("SELECT array_agg(worker) FROM leases") == [None]
        [again] = await lease_free(connection, leased, "v" if worker == "w" else "u")
        assert token(again) == token(leased)


async def test_what_waits_is_not_ready_before_its_delay_is_over(connection: asyncpg.Connection, holder: Holder) -> None:
    leased, _, _ = await leased_by(holder)
    await lanes.put_back(connection, "w", [back(leased, HOUR)])
    assert await lease_free(connection, leased) == []
    await connection.execute("UPDATE leases SET expires_at = now() WHERE worker IS NULL")
    assert [token(each) for each in await lease_free(connection, leased)] == [token(leased)]


async def test_only_who_has_the_handler_leases_it(connection: asyncpg.Connection, holder: Holder) -> None:
    leased, webhook, _ = await leased_by(holder)
    await lanes.put_back(connection, "w", [back(leased), back(webhook)._replace(handler="")])
    assert await lease_free(connection, leased, handlers=["other"]) == []
    assert [token(each) for each in await lease_free(connection, leased, handlers=["other", "handle"])] == [
        token(leased)
    ]
    assert [token(each) for each in await lease_free(connection, leased, handlers=[""])] == [token(webhook)]


async def test_who_has_any_handler_leases_all(connection: asyncpg.Connection, holder: Holder) -> None:
    attempts = await leased_by(holder)
    await lanes.put_back(
        connection, "w", [back(each)._replace(handler=name) for each, name in zip(attempts, "abb", strict=True)]
    )
    found = await lease_free(connection, attempts[0], handlers=None)
    assert {token(each) for each in found} == {token(each) for each in attempts}


async def test_only_the_tenants_own_queues_are_leased_from(connection: asyncpg.Connection, holder: Holder) -> None:
    leased, _, _ = await leased_by(holder)
    await lanes.put_back(connection, "w", [back(leased)])
    assert await lease_free(connection, leased, tenant_id=2) == []
    assert len(await lease_free(connection, leased, tenant_id=1)) == 1


async def test_no_more_than_asked_for_those_that_waited_longest_first(
    connection: asyncpg.Connection, holder: Holder
) -> None:
    attempts = await leased_by(holder)
    await lanes.put_back(connection, "w", [back(each) for each in attempts])
    for number, each in enumerate(attempts):
        await connection.execute(
            "UPDATE leases SET expires_at = now() - $2 * interval '1 s' WHERE first_seq = $1 AND last_seq = $1",
            each.seq,
            number,
        )
    assert [token(each) for each in await lease_free(connection, attempts[0], most=1)] == [token(attempts[2])]
    assert len(await lease_free(connection, attempts[0], most=9)) == 2


async def test_two_who_lease_at_once_share_what_is_free(
    connection: asyncpg.Connection, second: asyncpg.Connection, holder: Holder
) -> None:
    attempts = await leased_by(holder)
    await lanes.put_back(connection, "w", [back(each) for each in attempts])
    async with connection.transaction():
        mine = await lease_free(connection, attempts[0], "v", most=1)
        theirs = await lease_free(second, attempts[0], "u", most=9)
    assert len(mine) == 1
    assert {token(each) for each in theirs} == {token(each) for each in attempts} - {token(mine[0])}


async def test_only_the_holder_puts_back(connection: asyncpg.Connection, holder: Holder) -> None:
    leased, other, _ = await leased_by(holder)
    assert await lanes.put_back(connection, "v", [back(leased)]) == {token(leased)}
    await lanes.put_back(connection, "w", [back(leased)])
    await lease_free(connection, leased, "v")
    assert await lanes.put_back(connection, "w", [back(leased), back(other)]) == {token(leased)}


async def test_what_has_ended_is_not_put_back(connection: asyncpg.Connection, holder: Holder) -> None:
    leased, _, _ = await leased_by(holder)
    await outcomes.record(connection, "elsewhere", [ending_of(leased, "cancelled")], [])
    assert await lanes.put_back(connection, "w", [back(leased)]) == {token(leased)}
    assert await lease_free(connection, leased) == []


async def test_what_was_cancelled_while_it_was_free_is_told_apart(
    connection: asyncpg.Connection, holder: Holder
) -> None:
    leased, _, _ = await leased_by(holder)
    await lanes.put_back(connection, "w", [back(leased)])
    await outcomes.record(connection, "elsewhere", [ending_of(leased, "cancelled")], [])
    assert [each.is_over for each in await lease_free(connection, leased)] == [True]


async def test_a_holder_and_a_reaper_do_not_both_have_an_attempt(
    connection: asyncpg.Connection, second: asyncpg.Connection, watcher: asyncpg.Connection, holder: Holder
) -> None:
    leased, other, _ = await leased_by(holder)
    await connection.execute("UPDATE leases SET expires_at = now() - interval '1 s'")
    async with connection.transaction():
        await connection.execute("SELECT FROM leases FOR UPDATE")  # the reaper is at it
        putting = asyncio.create_task(lanes.put_back(second, "w", [back(leased)]))
        await until_blocked(watcher, second)
        await connection.execute("UPDATE leases SET worker = 'reaper'")
    assert await putting == {token(leased)}
    assert await lanes.put_back(connection, "reaper", [back(leased), back(other)]) == set()


async def test_what_was_put_back_is_not_reaped_with_the_lease_it_was_in(
    connection: asyncpg.Connection, holder: Holder
) -> None:
    free, taken, kept = await leased_by(holder)
    await lanes.put_back(connection, "w", [back(free, HOUR), back(taken)])
    await lease_free(connection, taken, "v")
    await connection.execute("UPDATE leases SET expires_at = now() - interval '1 s' WHERE worker = 'w'")
    lost = await outcomes.reap(connection, "reaper", [7], lease_time=LEASE, most=10)
    assert [(each.lane_id, each.seq) for each in lost] == [token(kept)]
    await connection.execute("UPDATE leases SET expires_at = now() - interval '1 s' WHERE worker = 'v'")
    lost = await outcomes.reap(connection, "reaper", [7], lease_time=LEASE, most=10)
    assert [(each.lane_id, each.seq, each.deferrals) for each in lost] == [(*token(taken), 1)]


async def test_a_start_is_marked_while_the_lease_is_the_workers(connection: asyncpg.Connection, holder: Holder) -> None:
    first, second, third = await leased_by(holder)
    given = [(first.lease_id, first.seq), (third.lease_id, third.seq)]
    assert await lanes.mark_started(connection, "v", given) == set()
    assert await lanes.mark_started(connection, "w", given[:1]) == {token(first)}
    assert await lanes.mark_started(connection, "w", given[1:]) == {token(third)}
    await connection.execute("UPDATE leases SET expires_at = now() - interval '1 s'")
    lost = await outcomes.reap(connection, "reaper", [7], lease_time=LEASE, most=10)
    assert {each.seq: each.is_marked for each in lost} == {first.seq: True, second.seq: False, third.seq: True}
    assert await lanes.mark_started(connection, "w", given) == set()


async def test_what_is_over_or_anothers_must_not_be_started(connection: asyncpg.Connection, holder: Holder) -> None:
    over, parted, mine = await leased_by(holder)
    await outcomes.record(connection, "elsewhere", [ending_of(over, "cancelled")], [])
    await lanes.put_back(connection, "w", [back(parted)])
    given = [(each.lease_id, each.seq) for each in (over, parted, mine)]
    assert await lanes.mark_started(connection, "w", given) == {token(mine)}


async def test_what_was_put_back_has_not_been_started(connection: asyncpg.Connection, holder: Holder) -> None:
    [leased] = await leased_by(holder, count=1)
    await lanes.mark_started(connection, "w", [(leased.lease_id, leased.seq)])
    await lanes.put_back(connection, "w", [back(leased)])
    await lease_free(connection, leased, "v")
    await connection.execute("UPDATE leases SET expires_at = now() - interval '1 s'")
    [lost] = await outcomes.reap(connection, "reaper", [7], lease_time=LEASE, most=10)
    assert (lost.worker, lost.is_marked) == ("v", False)
