"""A dispatcher that stops, or that loses an attempt: nothing counts as a try that was not one."""

import asyncio
from datetime import timedelta

from aiohttp import web

from engine import PATIENCE_SECONDS, Job
from evertick.roles.dispatcher import Dispatcher
from roles.dispatching import PostOffice, Receiver
from roles.workshop import within_patience

NO_GRACE = timedelta(0)


class Slow:
    """An answer that comes when it is let."""

    def __init__(self) -> None:
        self.began, self.release, self.broke_off = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def __call__(self) -> web.StreamResponse:
        self.began.set()
        try:
            await self.release.wait()
        finally:
            self.broke_off.set()
        return web.Response()


async def delivering(office: PostOffice, receiver: Receiver) -> tuple[Slow, Job, Dispatcher]:
    """A dispatcher in the middle of a delivery."""
    slow = Slow()
    receiver.will(slow)
    job = await office.posted(receiver.url)
    dispatcher = office.dispatcher()
    await dispatcher.start()
    await within_patience(slow.began)
    return slow, job, dispatcher


async def test_what_outlasts_the_grace_is_handed_back_and_delivered_again_with_the_same_key(
    office: PostOffice, receiver: Receiver
) -> None:
    _, job, dispatcher = await delivering(office, receiver)
    await dispatcher.stop(NO_GRACE)
    outcome = await office.outcome(job)
    assert (outcome.attempt, outcome.result, outcome.is_final) == (1, "deferred", False)
    assert (await office.leases(), await office.dead_letters(job)) == (0, [])
    await office.fire_retry(job)
    await office.deliver()
    assert [(each.attempt, each.result) for each in await office.outcomes(job)] == [(1, "deferred"), (1, "success")]
    first, second = (each.headers for each in receiver.received)
    assert first["idempotency-key"] == second["idempotency-key"]
    assert (first["evertick-attempt"], second["evertick-attempt"]) == ("1", "1")


async def test_a_delivery_may_come_to_its_end_within_the_grace(office: PostOffice, receiver: Receiver) -> None:
    slow, job, dispatcher = await delivering(office, receiver)
    stopping = asyncio.create_task(dispatcher.stop())
    await asyncio.sleep(0)  # so that it has begun
    slow.release.set()
    await stopping
    assert await office.results(job) == ["success"]


async def test_a_run_that_is_cancelled_meanwhile_is_broken_off(office: PostOffice, receiver: Receiver) -> None:
    slow, job, dispatcher = await delivering(office, receiver)
    await office.end_elsewhere(job)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await dispatcher.executor.finish()
    slow.release.set()
    await dispatcher.stop()
    assert await office.results(job) == ["cancelled"]
    assert await office.leases() == 0
