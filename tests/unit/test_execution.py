"""What a worker holds is counted down to nothing, even if it leased an attempt twice."""

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from evertick.domain.attempt import Attempt, Token
from evertick.executor.execution import Execution
from evertick.executor.handlers.registry import Handlers
from evertick.executor.held_leases import HeldLeases
from evertick.executor.source import EndedAttempt
from evertick.executor.sources.database.queues import NamedQueues
from evertick.executor.sources.database.source import DatabaseSource
from evertick.runtime.clock import DatabaseClock
from evertick.store.engine.lanes import Leased

AT = datetime(2026, 6, 9, 12, tzinfo=UTC)
LAST_TRY = '{"max_retries": 0, "backoff": "fixed", "delay_seconds": 1, "max_delay_seconds": 1}'


class OneLeaseIsOurs(DatabaseSource):
    """A source that confirms the start of attempts under the second lease alone."""

    async def mark_started(self, attempts: Sequence[Attempt]) -> set[Token]:
        return {each.token for each in attempts if each.lease_id == 2}


async def test_an_attempt_that_was_leased_again_while_its_first_lease_waited_for_its_mark_ends_twice() -> None:
    handlers, held_leases, clock = Handlers(), HeldLeases(30.0), DatabaseClock()
    ran, ended = list[str](), list[int]()

    async def handle() -> None:
        ran.append("once")

    def end(attempt: Attempt, outcome: EndedAttempt | None) -> None:
        ended.append(attempt.lease_id)
        assert (outcome is not None) == (attempt.lease_id == 2)

    handlers.add("handle", handle)
    clock.observe(AT)
    source = OneLeaseIsOurs("postgresql://nowhere", NamedQueues(["default"], None))
    execution = Execution(
        source, handlers, clock, held_leases, ended=end, refused=lambda _: None, concurrency=4, threads=0
    )
    held_leases.hold([1, 2], time.monotonic())
    attempts = [
        Leased(
            1, 5, lease_id, 4, AT, AT, 1, "tick", 1, "job", "handle", "UTC", None, 60, LAST_TRY, None, None, None, False
        )
        for lease_id in (1, 2)
    ]
    held_leases.add(attempts, time.monotonic())
    execution.add(attempts)
    async with asyncio.timeout(5):
        await execution.idle.wait()
    assert sorted(ended) == [1, 2]
    assert ran == ["once"]
    assert execution.held == 0


@pytest.mark.parametrize(("cost", "most"), [(1.0, 4), (0.5, 8), (2.0, 2)])
async def test_no_more_tasks_than_allowed_are_started_in_one_turn_of_the_event_loop(cost: float, most: int) -> None:
    handlers, held_leases, clock = Handlers(), HeldLeases(30.0), DatabaseClock()
    turn, started = 0, list[int]()

    async def handle() -> None:
        started.append(turn)

    handlers.add("handle", handle)
    clock.observe(AT)
    execution = Execution(
        *(DatabaseSource("postgresql://nowhere", NamedQueues(["default"], None)), handlers, clock, held_leases),
        ended=lambda *_: None,
        refused=lambda _: None,
        concurrency=100,
        threads=0,
        starts_at_once=4,
        start_cost=lambda _: cost,
    )
    held_leases.hold([1], time.monotonic())
    retry = LAST_TRY.replace('"max_retries": 0', '"max_retries": 3')
    attempts = [
        Leased(1, seq, 1, 4, AT, AT, 1, "tick", 1, "job", "handle", "UTC", None, 60, retry, None, None, None, False)
        for seq in range(10)
    ]
    held_leases.add(attempts, time.monotonic())
    execution.add(attempts)
    while not execution.idle.is_set():
        await asyncio.sleep(0)
        turn += 1
    assert len(started) == 10
    assert max(started.count(each) for each in set(started)) == most
    execution.close()
