"""Lookups are shared among all who ask for a name, and shared out among tenants."""

import asyncio
from collections import Counter

import pytest

from evertick.domain.attempt import NotStarted, Succeeded
from evertick.targets.egress.resolution import MAX_PER_TENANT, Lookups, TooManyLookups
from targets.receivers import LONG, OK, Log, attempt, delivering, serving

MINE, THEIRS = 1, 2


class NameServer:
    """Names that begin with `slow` are answered once it is released."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.released = asyncio.Event()

    async def __call__(self, name: str) -> list[str]:
        self.asked[name] += 1
        if name.startswith("slow"):
            await self.released.wait()
        if name.startswith("unknown"):
            raise OSError(name)
        return ["127.0.0.1"]


async def turn(times: int = 20) -> None:
    """Let all tasks go as far as they can."""
    for _ in range(times):
        await asyncio.sleep(0)


async def test_a_name_is_looked_up_once_for_all_who_ask_at_the_time() -> None:
    look_up = Lookups(server := NameServer())
    waiting = [asyncio.create_task(look_up("slow.test", tenant)) for tenant in (MINE, THEIRS) * 5]
    await turn()
    server.released.set()
    assert await asyncio.gather(*waiting) == [["127.0.0.1"]] * 10
    assert server.asked["slow.test"] == 1
    await look_up("slow.test", MINE)
    assert server.asked["slow.test"] == 2


async def test_a_failure_is_told_to_all_and_not_remembered() -> None:
    look_up = Lookups(server := NameServer())
    for _ in range(2):
        with pytest.raises(OSError, match="unknown"):
            await look_up("unknown.test", MINE)
    assert server.asked["unknown.test"] == 2


async def test_who_stops_waiting_takes_nobody_along() -> None:
    look_up = Lookups(server := NameServer())
    first, second = (asyncio.create_task(look_up("slow.test", MINE)) for _ in range(2))
    await turn()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    server.released.set()
    assert await second == ["127.0.0.1"]


async def test_a_tenant_has_so_many_under_way_and_the_others_theirs() -> None:
    look_up = Lookups(server := NameServer(), most_per_tenant=2, wait_seconds=0)
    stuck = [asyncio.create_task(look_up(f"slow-{number}.test", MINE)) for number in range(2)]
    await turn()
    with pytest.raises(TooManyLookups):
        await look_up("fast.test", MINE)
    assert await look_up("fast.test", THEIRS) == ["127.0.0.1"]
    server.released.set()
    await asyncio.gather(*stuck)
    assert await look_up("other.test", MINE) == ["127.0.0.1"]


async def test_a_lookup_that_all_have_left_still_counts_until_it_ends() -> None:
    look_up = Lookups(server := NameServer(), most_per_tenant=1, wait_seconds=0)
    left = asyncio.create_task(look_up("slow.test", MINE))
    await turn()
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    with pytest.raises(TooManyLookups):
        await look_up("fast.test", MINE)
    server.released.set()
    await turn()
    assert await look_up("fast.test", MINE) == ["127.0.0.1"]


async def test_a_name_that_waits_for_its_turn_gets_it_when_another_is_answered() -> None:
    look_up = Lookups(server := NameServer(), most_per_tenant=1, wait_seconds=LONG)
    first = asyncio.create_task(look_up("slow.test", MINE))
    await turn()
    second = asyncio.create_task(look_up("fast.test", MINE))
    await turn()
    assert "fast.test" not in server.asked
    server.released.set()
    assert (await first, await second) == (["127.0.0.1"], ["127.0.0.1"])


async def test_a_tenant_with_500_names_that_hang_delays_no_other_tenant() -> None:
    async with serving(Log(OK)) as port, delivering(resolve=(server := NameServer())) as delivery:
        stuck = [
            asyncio.create_task(delivery.deliver(attempt(f"http://slow-{n}.test:{port}/", tenant_id=MINE), LONG))
            for n in range(500)
        ]
        await turn()
        theirs = await delivery.deliver(attempt(f"http://fast.test:{port}/", tenant_id=THEIRS), LONG)
        assert theirs == Succeeded("ok", 200)
        assert not any(task.done() for task in stuck)
        assert len(server.asked) == MAX_PER_TENANT + 1
        done, _ = await asyncio.wait(stuck, return_when=asyncio.FIRST_COMPLETED)
        assert {type(task.result()) for task in done} == {NotStarted}
        server.released.set()
        assert Succeeded("ok", 200) in await asyncio.gather(*stuck)
