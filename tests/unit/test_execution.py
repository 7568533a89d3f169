"""What a worker holds is counted down to nothing, even if it leased an attempt twice."""

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from engine import PATIENCE_SECONDS
from evertick.domain.attempt import SUCCEEDED, Attempt, Deferred, Failed, Token
from evertick.executor.execution import Execution
from evertick.executor.handlers.registry import FunctionHandler, Handlers
from evertick.executor.held_leases import HeldLeases
from evertick.executor.running import Running, Stop
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
    ran, ended, gone = list[str](), list[int](), list[int]()

    async def handle() -> None:
        ran.append("once")

    handlers.add("handle", handle)
    clock.observe(AT)
    source = OneLeaseIsOurs("postgresql://nowhere", NamedQueues(["default"], None))
    execution = Execution(
        *(source, handlers, clock, held_leases),
        ended=lambda batch: ended.extend(each[0].lease_id for each in batch),
        gone=lambda attempt: gone.append(attempt.lease_id),
        refused=lambda _: None,
        concurrency=4,
        threads=0,
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
    async with asyncio.timeout(PATIENCE_SECONDS):
        await execution.idle.wait()
    assert (gone, ended) == ([1], [2])
    assert ran == ["once"]
    assert execution.held == 0


@pytest.mark.parametrize(("cost", "most"), [(1.0, 4), (0.5, 8), (2.0, 2)])
async def test_no_more_tasks_than_allowed_are_started_in_one_turn_of_the_event_loop(cost: float, most: int) -> None:
    held_leases, clock = HeldLeases(30.0), DatabaseClock()
    turn, started = 0, list[int]()

    async def handle() -> None:
        started.append(turn)

    class Costly(FunctionHandler):
        start_cost = cost

    class Registered(Handlers):
        def find(self, attempt: Attempt) -> FunctionHandler:
            return handler

    handler, handlers = Costly("handle", handle), Registered()
    clock.observe(AT)
    execution = Execution(
        *(DatabaseSource("postgresql://nowhere", NamedQueues(["default"], None)), handlers, clock, held_leases),
        ended=lambda _: None,
        gone=lambda _: None,
        refused=lambda _: None,
        concurrency=100,
        threads=0,
        starts_at_once=4,
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


class BatchHandler(FunctionHandler):
    """Begins attempts in batches, and ends none of them by itself. With an error, it raises that after the first."""

    start_cost = 0.5

    def __init__(self, error: Exception | None) -> None:
        super().__init__("handle", lambda: None)
        self.is_async = True
        self.batches: list[list[Running]] = []
        self.cancelled: list[int] = []
        self.error = error

    def begin(self, batch: list[Running]) -> None:  # type: ignore[override] # FunctionHandler has none
        self.batches.append(list(batch))
        for running in batch:
            running.cancel = lambda running=running: self.cancelled.append(running.attempt.token[1])
            if self.error is not None:
                raise self.error


class Batches:
    """An execution whose only handler takes batches, with so many attempts."""

    def __init__(self, count: int, *, expires_in: float = 30.0, error: Exception | None = None) -> None:
        self.handler = BatchHandler(error)
        self.ended: list[EndedAttempt | None] = []
        handler = self.handler

        class Registered(Handlers):
            def find(self, attempt: Attempt) -> FunctionHandler:
                return handler

        self.held_leases, clock = HeldLeases(expires_in), DatabaseClock()
        clock.observe(AT)
        self.execution = Execution(
            DatabaseSource("postgresql://nowhere", NamedQueues(["default"], None)),
            *(Registered(), clock, self.held_leases),
            ended=self.ended.extend,
            gone=lambda _: self.ended.append(None),
            refused=lambda _: None,
            concurrency=6,
            threads=0,
            starts_at_once=2,
        )
        self.held_leases.hold([1], time.monotonic())
        retry = LAST_TRY.replace('"max_retries": 0', '"max_retries": 3')
        attempts = [
            Leased(1, seq, 1, 4, AT, AT, 1, "tick", 1, "job", "handle", "UTC", None, 60, retry, None, None, None, False)
            for seq in range(count)
        ]
        self.held_leases.add(attempts, time.monotonic())
        self.execution.add(attempts)

    def begun(self) -> list[int]:
        return [len(batch) for batch in self.handler.batches]


async def test_a_handler_of_batches_gets_what_may_start_in_one_turn_and_what_ends_makes_room_once() -> None:
    site = Batches(10)
    assert site.begun() == [4]  # two starts, at half the cost
    await asyncio.sleep(0)
    assert site.begun() == [4, 2]  # as many as may run
    for running in site.handler.batches[0]:
        running.finish(SUCCEEDED)
        running.finish(SUCCEEDED)  # what comes after its end is ignored
    assert site.begun() == [4, 2]
    for _ in range(3):  # turns of the event loop
        await asyncio.sleep(0)
    assert site.begun() == [4, 2, 4]
    assert (len(site.ended), site.execution.held, site.execution.running) == (4, 6, 6)
    site.execution.close()


async def test_asking_for_room_while_there_is_none_lets_no_more_start_in_the_turn_that_has_some() -> None:
    site = Batches(20)
    for _ in range(3):  # turns of the event loop
        await asyncio.sleep(0)
    assert site.begun() == [4, 2]  # as many as may run
    for batch in list(site.handler.batches):
        for running in batch:
            running.finish(SUCCEEDED)
    site.execution.sweep()
    site.execution.sweep()
    await asyncio.sleep(0)
    assert site.begun() == [4, 2, 4]
    await asyncio.sleep(0)
    assert site.begun() == [4, 2, 4, 2]
    site.execution.close()


async def test_attempts_of_a_batch_that_are_stopped_are_cancelled_and_end_once() -> None:
    site = Batches(3)
    first, second, third = site.handler.batches[0]
    site.execution.halt([first], Stop.HANDED_BACK)
    first.finish(SUCCEEDED)
    site.execution.drop([1])  # the lease of all is lost
    assert sorted(site.handler.cancelled) == [0, 1, 2]
    assert [None if ended is None else type(ended[1]) for ended in site.ended] == [Deferred, None, None]
    assert (site.execution.held, second.is_over, third.is_over) == (0, True, True)
    site.execution.close()


async def test_what_has_ended_in_this_turn_of_the_event_loop_is_not_lost_with_its_lease() -> None:
    site = Batches(3)
    site.handler.batches[0][0].finish(SUCCEEDED)
    assert site.execution.drop([1]) == (0, 2)
    assert sorted(site.handler.cancelled) == [1, 2]
    await asyncio.sleep(0)
    assert [None if ended is None else ended[1] for ended in site.ended] == [None, None, SUCCEEDED]
    assert (site.execution.held, site.execution.running) == (0, 0)
    site.execution.close()


async def test_only_what_has_waited_for_long_is_asked_for() -> None:
    site = Batches(10)
    assert site.execution.waiting_tokens(60.0) == set()
    assert site.execution.waiting_tokens(-60.0) == {(1, seq) for seq in range(4, 10)}
    site.execution.close()


async def test_attempts_of_a_batch_that_cannot_begin_fail_and_make_room() -> None:
    site = Batches(3, error=RuntimeError("no memory"))
    assert site.handler.cancelled == [0]
    assert [None if ended is None else type(ended[1]) for ended in site.ended] == [Failed] * 3
    assert (site.execution.held, site.execution.running) == (0, 0)
    site.execution.close()


async def test_an_attempt_whose_lease_ran_out_is_in_no_batch() -> None:
    site = Batches(3, expires_in=-1.0)
    assert site.begun() == []
    assert site.execution.waits_for_leases
    assert site.execution.held == 3
    site.execution.close()
