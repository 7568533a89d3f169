"""The rules that a scheduler knows, however many there are and whoever else asks."""

import asyncio
from typing import cast

import pytest

from engine import AT
from evertick.domain.job.definition import define
from evertick.domain.job.fields import read_spec
from evertick.roles.scheduler import rule_cache
from evertick.roles.scheduler.rule_cache import RuleCache
from evertick.store.statements import Connection


class Table:
    """Stands for the database: has every rule, and waits before it answers for the second."""

    def __init__(self) -> None:
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()

    async def fetch(self, _: str, rule_ids: list[int]) -> list[dict[str, object]]:
        if rule_ids == [2]:
            self.asked.set()
            await self.go_on.wait()
        return [{"rule_id": rule_id, "canonical": canonical()} for rule_id in rule_ids]


def canonical() -> str:
    spec = read_spec({"schedule": "@hourly", "target": {"type": "worker", "handler": "h"}})
    return define(spec, 1, AT, AT).canonical


async def test_what_is_loaded_is_known_though_the_cache_was_cleared_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule_cache, "MAX_RULES", 3)
    table = Table()
    connection = cast("Connection", table)
    cache = RuleCache()
    await cache.load(connection, {1})
    loading = asyncio.create_task(cache.load(connection, {1, 2}))
    await table.asked.wait()
    await cache.load(connection, {3, 4, 5})  # too many: the cache is cleared
    assert 1 not in cache.known
    table.go_on.set()
    await loading
    assert {1, 2} <= cache.known.keys()
    assert cache.unreadable == {}
