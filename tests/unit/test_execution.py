"""What a worker holds is counted down to nothing, even if it leased an attempt twice."""

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from evertick.roles.worker.execution import Execution
from evertick.roles.worker.handlers import Handlers
from evertick.roles.worker.holdings import Holdings
from evertick.runtime.clock import DatabaseClock
from evertick.store.lanes import Leased, Range
from evertick.store.outcomes import Ending, Token

AT = datetime(2026, 6, 9, 12, tzinfo=UTC)
LAST_TRY = '{"max_retries": 0, "backoff": "fixed", "delay_seconds": 1, "max_delay_seconds": 1}'


async def test_an_attempt_that_was_leased_again_while_its_first_lease_waited_for_its_mark_ends_twice() -> None:
    handlers, holdings, clock = Handlers(), Holdings(timedelta(seconds=30)), DatabaseClock()
    ran, ended = list[str](), list[int]()

    async def handle() -> None:
        ran.append("once")

    async def mark(attempts: Sequence[Leased]) -> set[Token]:
        return {(each.lane_id, each.seq) for each in attempts if each.lease_id == 2}

    def end(leased: Leased, ending: Ending | None) -> None:
        ended.append(leased.lease_id)
        assert (ending is not None) == (leased.lease_id == 2)

    handlers.add("handle", handle)
    clock.observe(AT)
    execution = Execution(
        handlers, clock, holdings, ended=end, refused=lambda _: None, mark=mark, concurrency=4, threads=0
    )
    holdings.hold([Range(lease_id, 1, 5, 5, 1) for lease_id in (1, 2)], time.monotonic())
    attempts = [
        Leased(
            1, 5, lease_id, 4, AT, AT, 1, "tick", 1, "job", "handle", "UTC", None, 60, LAST_TRY, None, None, None, False
        )
        for lease_id in (1, 2)
    ]
    holdings.add(attempts, time.monotonic())
    execution.add(attempts)
    async with asyncio.timeout(5):
        await execution.idle.wait()
    assert sorted(ended) == [1, 2]
    assert ran == ["once"]
    assert execution.held == 0
