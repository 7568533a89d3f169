"""The rules that a scheduler knows, however many there are and whoever else asks."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from engine import AT
from evertick.contract.job import timing_of
from evertick.contract.job_reading import read_spec
from evertick.domain.job.definition import define
from evertick.roles.scheduler import rule_cache
from evertick.roles.scheduler.rule_cache import RuleCache
from evertick.store import references as rules

NOWHERE: Any = None


def canonical() -> str:
    spec = read_spec({"schedule": "@hourly", "target": {"type": "worker", "handler": "h"}})
    return define(timing_of(spec), 1, AT, AT).canonical


async def test_what_is_asked_for_is_known_though_somebody_else_let_go_of_it_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rule_cache, "MOST", 3)
    first_asked, go_on = asyncio.Event(), asyncio.Event()

    async def read(_: object, rule_ids: Iterable[int]) -> dict[int, str]:
        found = dict.fromkeys(rule_ids, canonical())
        if found.keys() == {2}:
            first_asked.set()
            await go_on.wait()
        return found

    monkeypatch.setattr(rules, "rules", read)
    book = RuleCache()
    await book.learn(NOWHERE, {1})
    learning = asyncio.create_task(book.learn(NOWHERE, {1, 2}))
    await first_asked.wait()
    await book.learn(NOWHERE, {3, 4, 5})  # too many: all others are let go of
    assert 1 not in book.known
    go_on.set()
    await learning
    assert {1, 2} <= book.known.keys()
    assert book.unreadable == {}
