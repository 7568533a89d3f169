"""Schedules that cost much to compute: recurrences whose ticks all lie in a gap, crons alike, previews of them."""

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from hostile.attacks.context import (
    NEW_YORK,
    WORKER_TARGET,
    AttackContext,
    held_for,
    read_status,
    repeat_forever,
    run_all,
)

GAP_CRON = "{second} 0 2 * 3 0#2"
"""Each tick lies in the hour that New York skips."""
SOON = timedelta(seconds=4)
AT_ONCE = 8


def gap_recurrence(number: int, at: datetime) -> str:
    """The same as a recurrence, with one real tick soon."""
    rule = f"FREQ=YEARLY;BYMONTH=3;BYDAY=2SU;BYHOUR=2;BYMINUTE={number % 60};BYSECOND={number // 60}"
    return f"RRULE:{rule}\nRDATE:{at:%Y%m%dT%H%M%SZ}"


def rare_recurrence(number: int, at: datetime) -> str:
    """Steps that meet the rule's times once in decades, with one tick soon: as costly as is accepted."""
    rule = f"FREQ=SECONDLY;INTERVAL={86_399 - 2 * number};BYHOUR=2;BYMINUTE=30,31,32;BYSECOND=7,8,9"
    return f"RRULE:{rule}\nRDATE:{at:%Y%m%dT%H%M%SZ}"


def _job(schedule: str) -> dict[str, Any]:
    return {"schedule": schedule, **NEW_YORK, "target": WORKER_TARGET}


async def yearly_gaps(context: AttackContext) -> None:
    """Jobs whose next tick was searched for up to the end of the calendar, each by a rule of its own."""
    await _due_at_once(context, gap_recurrence, context.size(20, 200))


async def rare_recurrences(context: AttackContext) -> None:
    """Jobs whose next tick takes as many steps to find as are accepted, all planned in the same second."""
    await _due_at_once(context, rare_recurrence, context.size(200, 1000))


async def _due_at_once(context: AttackContext, recurrence: Callable[[int, datetime], str], count: int) -> None:
    """Create as many as are accepted before they are all due, in the same second."""
    at = datetime.now(UTC) + SOON * context.size(1, 4)
    numbers = iter(range(count))
    async with context.client() as client:

        async def create() -> None:
            for number in numbers:
                context.count(await client.post("/jobs", json=_job(recurrence(number, at))))

        await run_all(create() for _ in range(AT_ONCE))
    await asyncio.Event().wait()


async def gap_crons(context: AttackContext) -> None:
    """The cron, one by one and in a batch."""
    jobs = [_job(GAP_CRON.format(second=number)) for number in range(25)]
    async with context.client() as client:

        async def one_by_one() -> None:
            for job in jobs[: context.size(4, 25)]:
                answer = context.count(await client.post("/jobs", json=job))
                context.counts["searched in vain"] += "never fires again" in answer.text

        async def together() -> None:
            answer = context.count(await client.post("/jobs:batch", json=jobs[: context.size(4, 25)]))
            context.counts["lines searched in vain"] += answer.text.count("never fires again")

        await asyncio.gather(repeat_forever(one_by_one), repeat_forever(together))


async def abandoned_previews(context: AttackContext) -> None:
    """A viewer asks for costly previews and hangs up on each."""
    key = await context.key("viewer")

    async def ask(number: int) -> None:
        schedule = rare_recurrence(number, datetime.now(UTC) + SOON)
        body = json.dumps({"schedule": schedule, **NEW_YORK, "count": 100}).encode()
        head = context.head("POST", "/api/v1/schedules/preview", key, Content_Length=len(body))
        async with context.connection() as (reader, writer):
            writer.write(head + body)
            await writer.drain()
            answering = asyncio.ensure_future(read_status(reader))
            if await held_for(answering, 0.1):
                answering.cancel()
                context.counts["hung up on"] += 1
            else:
                context.counts[answering.result()] += 1

    await run_all(ask(number) for number in range(context.size(100, 300)))
    await asyncio.Event().wait()
