"""A tenant whose targets hang leaves the others their places."""

import asyncio
import logging
from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg
import pytest
from aiohttp import web

from evertick.targets.http.delivery import DeliverySettings
from roles.dispatching import PostOffice, Receiver, receiving

NO_GRACE = timedelta(0)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as receiver:
        yield receiver


@pytest.fixture
def office(connection: asyncpg.Connection, database_url: str) -> PostOffice:
    return PostOffice(connection, database_url)


async def hang() -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def to_this_machine(name: str) -> list[str]:
    """Resolves every name, but not those that begin with `slow`."""
    if name.startswith("slow"):
        await asyncio.Event().wait()
    return ["127.0.0.1"]


async def test_a_tenant_whose_hosts_all_hang_holds_its_share_and_no_more(
    office: PostOffice, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "evertick.dispatcher")
    for _ in range(20):
        receiver.will(hang)
    hosts = [receiver.url.replace("127.0.0.1", f"host-{number}.test") for number in range(20)]
    for url in hosts:
        await office.posted(url, timeout_seconds=300)
    other = await office.add_tenant("other")
    async with receiving() as theirs:
        job = await office.posted(theirs.url, tenant_id=other)
        settings = DeliverySettings(host_wait_seconds=0.1)
        dispatcher = office.dispatcher(concurrency=8, settings=settings, resolve=to_this_machine)
        await dispatcher.start()
        assert (await office.until_ended(job))[0].result == "success"
        later = await office.posted(theirs.url, tenant_id=other)
        assert (await office.until_ended(later))[0].result == "success"
        await dispatcher.stop(NO_GRACE)
    assert "not tried: 6 deliveries of its tenant were running" in caplog.text
    assert len(receiver.received) <= 6


async def test_a_tenant_that_is_alone_may_have_all_places(office: PostOffice, receiver: Receiver) -> None:
    together = asyncio.Barrier(8)

    async def meet() -> web.StreamResponse:
        async with asyncio.timeout(20):
            await together.wait()
        return web.Response()

    for _ in range(8):
        receiver.will(meet)
    job = await office.posted(receiver.url, count=8)
    await office.deliver(concurrency=8)
    assert await office.results(job) == ["success"] * 8


async def test_a_tenant_with_hundreds_of_names_that_hang_delays_no_other(
    office: PostOffice, receiver: Receiver
) -> None:
    for number in range(500):
        await office.posted(receiver.url.replace("127.0.0.1", f"slow-{number}.test"), timeout_seconds=300)
    other = await office.add_tenant("other")
    job = await office.posted(receiver.url.replace("127.0.0.1", "fast.test"), tenant_id=other)
    dispatcher = office.dispatcher(resolve=to_this_machine)
    await dispatcher.start()
    assert (await office.until_ended(job))[0].result == "success"
    await dispatcher.stop(NO_GRACE)
