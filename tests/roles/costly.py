"""Rules that take thousands of steps to plan, and how long the event loop works without a turn for others."""

import asyncio
import dataclasses
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from zoneinfo import ZoneInfo

import asyncpg

from engine import AT, Job, add_job
from evertick.domain.policies import ConcurrentPolicy, MissedWindow
from evertick.domain.rule import Policies, Rule, rule_of
from evertick.domain.schedule.rrule.spec import RRule
from evertick.domain.schedule.schedule import Schedule
from evertick.runtime import background

NEW_YORK = "America/New_York"
SWALLOWED = "RRULE:FREQ=YEARLY;BYMONTH=3;BYDAY=2SU;BYHOUR=2;BYMINUTE="
"""All its ticks are in the hour that New York's clocks skip."""


def costly_rules(count: int, fire_at: datetime = AT) -> list[Rule]:
    """Distinct rules that fire at this time, once, and whose next tick is looked for in vain for fifty years."""
    date = fire_at.astimezone(ZoneInfo(NEW_YORK)).strftime("%Y%m%dT%H%M%S")
    schedule = Schedule(f"{SWALLOWED}0\nRDATE:{date}", NEW_YORK, "skip", anchor_at=AT)
    first = rule_of(schedule, Policies(missed_window=MissedWindow.RUN_ONCE, concurrent_policy=ConcurrentPolicy.ALLOW))
    assert isinstance(first.spec, RRule)
    return [
        dataclasses.replace(
            first, spec=dataclasses.replace(first.spec, byminute=(number % 60,), bysecond=(number // 60,))
        )
        for number in range(count)
    ]


def slow_rules(count: int) -> list[Rule]:
    """Distinct rules that take nearly as many steps to plan as may be taken on the event loop."""
    texts = (f"BYMINUTE={number % 60};BYSECOND={number // 60}" for number in range(count))
    return [
        rule_of(
            Schedule(f"RRULE:FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29;BYDAY=SU;{text}\nRDATE:20260609T080000", NEW_YORK),
            Policies(missed_window=MissedWindow.RUN_ONCE),
        )
        for text in texts
    ]


async def add_costly_jobs(
    connection: asyncpg.Connection, count: int, *, fire_at: datetime = AT, tenant_id: int = 1, partitions: int = 256
) -> list[Job]:
    return [
        await add_job(
            connection,
            rule=rule,
            fire_at=fire_at,
            tenant_id=tenant_id,
            partition=number % partitions,
            queue=f"of {tenant_id}",
        )
        for number, rule in enumerate(costly_rules(count, fire_at))
    ]


async def fired(connection: asyncpg.Connection, jobs: Sequence[Job]) -> int:
    """How many attempts these jobs have."""
    count: int = await connection.fetchval(
        "SELECT count(*) FROM attempts WHERE job_id = ANY($1)", [job.job_id for job in jobs]
    )
    return count


@asynccontextmanager
async def held_thread() -> AsyncIterator[None]:
    """The background thread computes for somebody else all the while."""
    begun, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        may_end.wait()

    holding = asyncio.create_task(background.run("somebody else", hold))
    await asyncio.to_thread(begun.wait)
    try:
        yield
    finally:
        may_end.set()
        await holding


class LoopWork:
    """The longest that the loop's thread computed without a turn for others, in processor time."""

    def __init__(self) -> None:
        self.longest_seconds = 0.0
        self.turns = 0

    async def watch(self) -> None:
        before = time.thread_time()
        while True:
            await asyncio.sleep(0.001)  # measures, synchronises nothing
            now = time.thread_time()
            self.longest_seconds = max(self.longest_seconds, now - before)
            self.turns += 1
            before = now


@asynccontextmanager
async def loop_work() -> AsyncIterator[LoopWork]:
    work = LoopWork()
    watching = asyncio.create_task(work.watch())
    try:
        yield work
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
