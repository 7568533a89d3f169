import asyncio
from datetime import timedelta

import asyncpg

from engine import LIFETIME, until_blocked
from evertick.domain.assignment import Member
from evertick.store.engine import members

EVERYTHING = range(256)


async def beat(connection: asyncpg.Connection, node: str, region: str = "") -> members.HeartbeatReply:
    return await members.heartbeat(connection, Member(node, region), "1.2", LIFETIME)


async def fall_silent(connection: asyncpg.Connection, node: str) -> None:
    await connection.execute("UPDATE nodes SET seen_at = seen_at - $2::interval WHERE node = $1", node, LIFETIME)


async def test_a_heartbeat_tells_the_time_and_who_else_lives(connection: asyncpg.Connection) -> None:
    assert (await beat(connection, "a")).others == ()
    await beat(connection, "c", "west")
    told = await beat(connection, "b")
    assert told.others == (Member("a"), Member("c", "west"))
    assert abs(await connection.fetchval("SELECT clock_at()") - told.now_at) < timedelta(seconds=10)


async def test_who_has_been_silent_for_too_long_is_dead_until_it_beats_again(connection: asyncpg.Connection) -> None:
    await beat(connection, "a")
    await beat(connection, "b")
    await fall_silent(connection, "a")
    assert (await beat(connection, "b")).others == ()
    await beat(connection, "a")
    assert (await beat(connection, "b")).others == (Member("a"),)


async def test_a_heartbeat_says_how_much_a_node_fires(connection: asyncpg.Connection) -> None:
    await members.heartbeat(connection, Member("a"), "1.2", LIFETIME, fired_per_second=3.5)
    await beat(connection, "b")
    assert [row.fired_per_second for row in await members.members(connection, LIFETIME)] == [3.5, None]
    await members.heartbeat(connection, Member("a"), "1.2", LIFETIME, fired_per_second=0.0)
    assert [row.fired_per_second for row in await members.members(connection, LIFETIME)] == [0.0, None]


async def test_a_node_may_move_to_another_region(connection: asyncpg.Connection) -> None:
    await beat(connection, "a", "east")
    await beat(connection, "a", "west")
    assert (await beat(connection, "b")).others == (Member("a", "west"),)


async def test_what_nobody_holds_is_taken_with_a_new_epoch(connection: asyncpg.Connection) -> None:
    await beat(connection, "a")
    taken = await members.take(connection, "a", [3, 200], LIFETIME)
    assert taken == await members.held(connection, "a") == {3: 1, 200: 1}


async def test_what_the_living_hold_is_not_taken(connection: asyncpg.Connection) -> None:
    await beat(connection, "a")
    await members.take(connection, "a", [3], LIFETIME)
    assert await members.take(connection, "b", [3, 4], LIFETIME) == {4: 1}
    assert await members.held(connection, "a") == {3: 1}


async def test_what_the_dead_hold_is_taken_from_them(connection: asyncpg.Connection) -> None:
    await beat(connection, "a")
    await members.take(connection, "a", [3, 4], LIFETIME)
    await fall_silent(connection, "a")
    assert await members.take(connection, "b", [3], LIFETIME) == {3: 2}
    assert await members.held(connection, "a") == {4: 1}


async def test_what_is_held_by_a_node_that_is_no_member_is_taken(connection: asyncpg.Connection) -> None:
    await members.take(connection, "a", [3], LIFETIME)  # it never beat
    assert await members.take(connection, "b", [3], LIFETIME) == {3: 2}


async def test_a_node_that_takes_its_own_again_gets_a_new_epoch(connection: asyncpg.Connection) -> None:
    await beat(connection, "a")
    epochs = [(await members.take(connection, "a", [3], LIFETIME))[3] for _ in range(3)]
    assert epochs == [1, 2, 3]


async def outages(connection: asyncpg.Connection, *partitions: int) -> set[int]:
    return set(await members.outages(connection, partitions))


async def test_a_partition_has_an_outage_if_nobody_held_it_for_long(connection: asyncpg.Connection) -> None:
    await beat(connection, "a")
    await members.take(connection, "a", [1, 2, 3, 4], LIFETIME)
    assert await outages(connection, 1, 2, 3, 4) == {1, 2, 3, 4}  # nobody ever held them
    await connection.execute("UPDATE partitions SET outage_at = NULL")
    await members.release(connection, "a", [1, 2])
    await connection.execute("UPDATE partitions SET released_at = released_at - interval '2 min' WHERE partition = 2")
    await members.take(connection, "b", [1, 2], LIFETIME)
    assert await outages(connection, 1, 2) == {2}
    await connection.execute("UPDATE nodes SET seen_at = seen_at - interval '20 s'")
    await members.take(connection, "b", [3], timedelta(seconds=10))
    await connection.execute("UPDATE nodes SET seen_at = seen_at - interval '2 min'")
    await members.take(connection, "b", [4], timedelta(seconds=10))
    assert await outages(connection, 3, 4) == {4}


async def test_who_comes_back_after_an_outage_gives_up_what_it_held_as_of_its_last_heartbeat(
    connection: asyncpg.Connection,
) -> None:
    await beat(connection, "a")
    await members.take(connection, "a", [3], LIFETIME)
    await connection.execute("UPDATE partitions SET outage_at = NULL")
    await connection.execute("UPDATE nodes SET seen_at = seen_at - interval '50 s'")
    await beat(connection, "a")
    assert await members.held(connection, "a") == {3: 1}
    await connection.execute("UPDATE nodes SET seen_at = seen_at - interval '70 s'")
    await members.heartbeat(connection, Member("a"), "1.2", LIFETIME, outage=timedelta(minutes=2))
    assert await members.held(connection, "a") == {3: 1}
    await connection.execute("UPDATE nodes SET seen_at = seen_at - interval '70 s'")
    await beat(connection, "a")
    assert await members.held(connection, "a") == {}
    await beat(connection, "a")
    await members.take(connection, "a", [3], LIFETIME)
    assert await outages(connection, 3) == {3}


async def test_a_heartbeat_after_an_outage_does_not_wait_for_a_firing(
    connection: asyncpg.Connection, second: asyncpg.Connection
) -> None:
    await beat(connection, "a")
    await members.take(connection, "a", [3, 4], LIFETIME)
    await connection.execute("UPDATE nodes SET seen_at = seen_at - interval '70 s'")
    async with second.transaction():
        await second.execute("SELECT FROM partitions WHERE partition = 3 FOR SHARE")
        await beat(connection, "a")
    assert await members.held(connection, "a") == {3: 1}


async def test_of_two_who_take_at_once_one_gets_each_partition(
    connection: asyncpg.Connection, second: asyncpg.Connection, watcher: asyncpg.Connection
) -> None:
    await beat(connection, "a")
    await beat(second, "b")
    async with connection.transaction():
        mine = await members.take(connection, "a", [3, 4], LIFETIME)
        taking = asyncio.create_task(members.take(second, "b", [4, 5], LIFETIME))
        await until_blocked(watcher, second)
    assert (mine, await taking) == ({3: 1, 4: 1}, {5: 1})


async def test_two_who_take_the_same_in_opposite_orders_do_not_deadlock(
    connection: asyncpg.Connection, second: asyncpg.Connection
) -> None:
    await beat(connection, "a")
    await beat(second, "b")
    for _ in range(10):
        one, other = await asyncio.gather(
            members.take(connection, "a", EVERYTHING, LIFETIME), members.take(second, "b", EVERYTHING[::-1], LIFETIME)
        )
        assert len(one | other) == len(EVERYTHING)
        assert one.keys().isdisjoint(other)
        await members.release(connection, "a", EVERYTHING)
        await members.release(connection, "b", EVERYTHING)


async def test_what_is_released_is_free_for_the_next_and_its_epoch_grows_on(connection: asyncpg.Connection) -> None:
    await beat(connection, "a")
    await members.take(connection, "a", [3, 4, 5], LIFETIME)
    await members.release(connection, "b", [3])  # not its own
    await members.release(connection, "a", [4, 9])
    assert await members.held(connection, "a") == {3: 1, 5: 1}
    assert await members.take(connection, "b", [3, 4, 5], LIFETIME) == {4: 2}


async def test_a_node_that_leaves_holds_nothing_and_is_no_member(connection: asyncpg.Connection) -> None:
    await beat(connection, "a")
    await beat(connection, "b")
    await members.take(connection, "a", EVERYTHING, LIFETIME)
    await members.leave(connection, "a")
    assert await members.held(connection, "a") == {}
    assert (await beat(connection, "b")).others == ()
    assert set((await members.take(connection, "b", EVERYTHING, LIFETIME)).values()) == {2}


async def test_people_see_who_lives_and_what_each_holds(connection: asyncpg.Connection) -> None:
    await beat(connection, "a", "east")
    await beat(connection, "b")
    await members.take(connection, "a", range(200), LIFETIME)
    await members.take(connection, "b", range(200, 250), LIFETIME)
    assert await members.unheld(connection, LIFETIME) == 6
    await fall_silent(connection, "b")
    rows = await members.members(connection, LIFETIME)
    assert [(row.node, row.region, row.version, row.is_alive, row.partitions) for row in rows] == [
        ("a", "east", "1.2", True, 200),
        ("b", "", "1.2", False, 50),
    ]
    assert await members.unheld(connection, LIFETIME) == 56


async def test_nodes_of_yesterday_are_forgotten_once_they_hold_nothing(connection: asyncpg.Connection) -> None:
    for node in ("a", "b", "c"):
        await beat(connection, node)
    await members.take(connection, "a", [3], LIFETIME)
    await connection.execute("UPDATE nodes SET seen_at = seen_at - interval '25 h' WHERE node <> 'c'")
    await members.forget(connection)
    assert [row.node for row in await members.members(connection, LIFETIME)] == ["a", "c"]
