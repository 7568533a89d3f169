"""Leases that are wrong are repaired in parts, however many leases there are."""

from engine import Holder, Planned, add_job, ending_of, lease
from evertick.store.engine import lanes, orphans, outcomes
from evertick.store.engine.lanes import PutBack

PARTITIONS = (1, 7)


async def put_back(holder: Holder, count: int) -> None:
    """So many attempts with a free lease each."""
    job = await add_job(holder.connection, partition=1)
    await holder.fire_ticks(Planned(job, policy="ALLOW", limit=100), count)
    leased = await lease(holder.connection, job)
    await lanes.put_back(holder.connection, "w", [PutBack(each.lane_id, each.seq, "handle") for each in leased])
    await holder.connection.execute("DELETE FROM leases WHERE worker IS NOT NULL")


async def test_free_leases_of_ended_attempts_go_part_by_part(holder: Holder) -> None:
    await put_back(holder, 7)
    job = await add_job(holder.connection)
    await holder.fire(Planned(job))
    (held,) = await lease(holder.connection, job)
    await holder.connection.execute(
        "INSERT INTO outcomes (lane_id, seq, finished_at, result, is_final)"
        " SELECT lane_id, first_seq, clock_at(), 'cancelled', true FROM leases WHERE worker IS NULL LIMIT 5"
    )
    await outcomes.record(holder.connection, "w", [ending_of(held)], [])
    after = parts = 0
    while parts == 0 or after:
        after = await orphans.drop_ended(holder.connection, PARTITIONS, after=after, most=3)
        parts += 1
    assert parts == 3
    assert await holder.connection.fetchval("SELECT count(*) FROM leases WHERE worker IS NULL") == 2


async def test_leases_from_before_the_clock_was_set_back_run_from_now_on_part_by_part(holder: Holder) -> None:
    await put_back(holder, 7)
    await holder.connection.execute("UPDATE leases SET expires_at = expires_at + interval '1 h'")
    after = 0
    moved: list[int] = []
    while not moved or after:
        after, count = await orphans.rebase(holder.connection, PARTITIONS, after=after, most=3)
        moved.append(count)
    assert moved == [3, 3, 1]
    assert await holder.connection.fetchval("SELECT max(expires_at) <= clock_at() FROM leases")
    assert await orphans.rebase(holder.connection, PARTITIONS, after=0, most=100) == (0, 0)
    await holder.connection.execute("UPDATE leases SET expires_at = expires_at + interval '1 h'")
    assert await orphans.rebase(holder.connection, [7], after=0, most=100) == (0, 0), "another node's partitions"
