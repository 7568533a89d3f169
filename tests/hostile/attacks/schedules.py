"""Schedules that cost much to compute: recurrences whose ticks all lie in a gap, crons alike, previews of them."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from hostile.attacks.scene import NEW_YORK, WORKER_TARGET, Scene, again_and_again, all_of

GAP_CRON = "{second} 0 2 * 3 0#2"
"""Each tick lies in the hour that New York skips."""
SOON = timedelta(seconds=2)


def gap_recurrence(number: int, at: datetime) -> str:
    """The same as a recurrence, with one real tick soon."""
    rule = f"FREQ=YEARLY;BYMONTH=3;BYDAY=2SU;BYHOUR=2;BYMINUTE={number % 60};BYSECOND={number // 60}"
    return f"RRULE:{rule}\nRDATE:{at:%Y%m%dT%H%M%SZ}"


def _job(schedule: str) -> dict[str, Any]:
    return {"schedule": schedule, **NEW_YORK, "target": WORKER_TARGET}


async def yearly_gaps(scene: Scene) -> None:
    """Jobs whose next tick is searched for up to the end of the calendar, each by a rule of its own."""
    now = datetime.now(UTC)
    jobs = [_job(gap_recurrence(number, now + SOON)) for number in range(scene.size(20, 200))]
    async with scene.client() as client:
        await all_of(_count(scene, client.post("/jobs", json=job)) for job in jobs)
    await asyncio.Event().wait()


async def gap_crons(scene: Scene) -> None:
    """The cron, one by one and in a batch."""
    jobs = [_job(GAP_CRON.format(second=number)) for number in range(25)]
    async with scene.client() as client:

        async def one_by_one() -> None:
            for job in jobs[: scene.size(4, 25)]:
                scene.count(await client.post("/jobs", json=job))

        async def together() -> None:
            scene.count(await client.post("/jobs:batch", json=jobs[: scene.size(4, 25)]))

        await asyncio.gather(again_and_again(one_by_one), again_and_again(together))


async def abandoned_previews(scene: Scene) -> None:
    """A viewer asks for costly previews and hangs up on each."""
    key = await scene.key("viewer")

    async def ask(number: int) -> None:
        schedule = gap_recurrence(number, datetime.now(UTC) + SOON).replace("\n", "\\n")
        body = f'{{"schedule": "{schedule}", "timezone": "America/New_York", "dst_gap": "skip", "count": 100}}'.encode()
        head = scene.head("POST", "/api/v1/schedules/preview", key, Content_Length=len(body))
        async with scene.connection() as (_, writer):
            writer.write(head + body)
            await writer.drain()
            await asyncio.sleep(0.1)
            scene.seen["hung up on"] += 1

    await all_of(ask(number) for number in range(scene.size(100, 300)))
    await asyncio.Event().wait()


async def _count(scene: Scene, asked: Any) -> None:
    scene.count(await asked)
