"""What a scheduler keeps of rules while several of its loops read them."""

import asyncio
from collections.abc import Mapping
from typing import Any

import asyncpg
import pytest

from engine import add_job
from evertick.roles.scheduler import state
from evertick.roles.scheduler.planning import LOOP_STEPS
from evertick.roles.scheduler.state import RuleCache
from evertick.store.database import Pool
from hooked_pool import Run, hooked


async def test_what_is_loaded_is_known_though_another_loop_filled_the_cache_meanwhile(
    pool: Pool, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "MAX_RULES", 3)
    first, second, *others = [(await add_job(connection, f"{minute} * * * *")).rule_id for minute in range(5)]
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def wait_for_the_second(read: Run, values: Mapping[str, Any]) -> object:
        if values["rule_ids"] == [second]:
            asked.set()
            await go_on.wait()
        return await read()

    slow = hooked(pool, "references.rules", wait_for_the_second)
    cache = RuleCache()
    await cache.load(slow, {first})
    loading = asyncio.create_task(cache.load(slow, {first, second}))
    await asked.wait()
    await cache.load(slow, others)  # too many: the first is dropped
    assert first not in cache.known
    go_on.set()
    await loading
    assert {first, second} <= cache.known.keys()
    assert cache.unreadable == {}


async def test_of_more_rules_than_fit_those_stay_that_were_used_last(
    pool: Pool, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "MAX_RULES", 3)
    rule_ids = [(await add_job(connection, f"{minute} * * * *")).rule_id for minute in range(30)]
    often, *others = rule_ids
    asked: list[int] = []

    async def noted(read: Run, values: Mapping[str, Any]) -> object:
        asked.extend(values["rule_ids"])
        return await read()

    cache, noting = RuleCache(), hooked(pool, "references.rules", noted)
    for other in others:
        await cache.load(noting, {often, other})
        cache.note_steps(other, LOOP_STEPS + 1)
        assert len(cache.known) <= 3
        assert cache.costly <= cache.known.keys()
    assert asked.count(often) == 1
    await cache.load(noting, rule_ids)
    assert set(rule_ids) <= cache.known.keys(), "what is asked for at once is there, however much it is"
