"""Tenants whose targets hang leave the others their places, their slots of hosts and their turns."""

import asyncio
import logging
from collections.abc import AsyncIterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web

from engine import PATIENCE_SECONDS, until
from evertick.roles.dispatcher.dispatcher import TargetHandlers
from evertick.store.engine import wakeups
from evertick.store.engine.wakeups import READY
from evertick.targets.http.delivery import DeliverySettings
from hooked_pool import Run, hook_every_pool
from roles.dispatching import PostOffice, Receiver, receiving

NO_GRACE = timedelta(0)
PER_HOST = DeliverySettings().per_host


async def hang() -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def to_this_machine(name: str) -> list[str]:
    """Resolves every name, but not those that begin with `slow`."""
    if name.startswith("slow"):
        await asyncio.Event().wait()
    return ["127.0.0.1"]


@pytest.fixture
async def black_hole() -> AsyncIterator[Receiver]:
    """Takes every call and answers none."""
    async with receiving() as receiver:
        for _ in range(1000):
            receiver.will(hang)
        yield receiver


class Siege:
    """Hostile tenants whose targets all hang, and a dispatcher that is busy with as many as it gives them."""

    def __init__(self, office: PostOffice, black_hole: Receiver) -> None:
        self.office = office
        self.dispatcher = office.dispatcher(resolve=to_this_machine)
        self.hostile: list[int] = []
        self._black_hole = black_hole

    async def add(self, deliveries: int, tenant_id: int) -> None:
        """Deliveries of a tenant, to so many hosts that none is short of slots."""
        for first in range(0, deliveries, PER_HOST):
            url = self._black_hole.url.replace("127.0.0.1", f"host-{tenant_id}-{first}.test")
            await self.office.posted(
                url, tenant_id=tenant_id, timeout_seconds=86_400, count=min(PER_HOST, deliveries - first)
            )
        self.hostile.append(tenant_id)

    async def hold(self) -> int:
        """Wait until the hostile tenants have all places that they may have, and nothing else is held for them."""

        async def is_quiet() -> bool:
            slots, queue = self.dispatcher.slots, self.dispatcher.waiting.queue
            return not any(slots.may_take(each) or queue.waiting(each) for each in self.hostile) and not len(
                self.dispatcher.executor.put_backs
            )

        await until(is_quiet)
        return self.dispatcher.counters.handed_back


@pytest.fixture
async def siege(office: PostOffice, black_hole: Receiver) -> AsyncIterator[Siege]:
    siege = Siege(office, black_hole)
    yield siege
    await siege.dispatcher.stop(NO_GRACE)


async def test_two_tenants_whose_targets_hang_for_a_day_cost_a_third_nothing(
    siege: Siege, office: PostOffice, receiver: Receiver
) -> None:
    await siege.add(280, tenant_id=1)
    await siege.add(120, await office.add_tenant("second"))
    victim = await office.add_tenant("victim")
    await office.posted(receiver.url, tenant_id=victim)  # so that it is known
    await siege.dispatcher.start()
    put_back = await siege.hold()
    for _ in range(3):
        job = await office.posted(receiver.url, tenant_id=victim, count=60)
        assert [each.result for each in await office.until_ended(job, 60)] == ["success"] * 60
    assert siege.dispatcher.counters.handed_back == put_back, "neither was any put back, nor leased to be put back"
    assert siege.dispatcher.slots.held(1) > 60, "idle places are lent"


async def test_a_lease_for_one_tenant_that_takes_long_does_not_keep_another_waiting(
    siege: Siege, office: PostOffice, receiver: Receiver, black_hole: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_slow, is_asked, may_answer = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(run: Run, _: object) -> Any:
        if is_slow.is_set() and not is_asked.is_set():
            is_asked.set()
            await may_answer.wait()
        return await run()

    hook_every_pool(monkeypatch, "lanes.leased", slow)
    await siege.add(10, tenant_id=1)
    other = await office.add_tenant("other")
    known = await office.posted(receiver.url, tenant_id=other)
    await siege.dispatcher.start()
    await black_hole.until_received(10)
    await office.until_ended(known)
    is_slow.set()
    await siege.add(10, tenant_id=1)
    await is_asked.wait()
    job = await office.posted(receiver.url, tenant_id=other)
    await wakeups.notify(office.connection, {READY: str(job.lane_id)})
    assert [each.result for each in await office.until_ended(job)] == ["success"]
    assert not may_answer.is_set()
    may_answer.set()


async def test_fifty_tenants_whose_targets_hang_cost_the_next_nothing(
    siege: Siege, office: PostOffice, receiver: Receiver
) -> None:
    for number in range(50):
        await siege.add(20, await office.add_tenant(f"hostile {number}"))
    await siege.dispatcher.start()
    put_back = await siege.hold()
    victim = await office.add_tenant("victim")  # unknown so far
    for _ in range(3):
        job = await office.posted(receiver.url, tenant_id=victim, count=20)
        assert [each.result for each in await office.until_ended(job, 20)] == ["success"] * 20
    assert siege.dispatcher.counters.handed_back == put_back


async def test_hostile_tenants_that_come_after_the_victim_has_begun_do_not_push_it_out(
    siege: Siege, office: PostOffice, receiver: Receiver
) -> None:
    victim = await office.add_tenant("victim")
    await siege.dispatcher.start()
    for number in range(6):
        await siege.add(260, await office.add_tenant(f"hostile {number}"))
        await siege.hold()
        job = await office.posted(receiver.url, tenant_id=victim, count=10)
        assert [each.result for each in await office.until_ended(job, 10)] == ["success"] * 10


async def test_calls_of_one_tenant_that_hang_keep_no_other_from_their_host(
    office: PostOffice, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "evertick.dispatcher")
    for _ in range(PER_HOST):
        receiver.will(hang)
    await office.posted(receiver.url, timeout_seconds=300, count=40)
    other = await office.add_tenant("other")
    await office.keep_put_back()
    dispatcher = office.dispatcher(settings=DeliverySettings(host_wait_seconds=0.1))
    await dispatcher.start()

    async def are_deferred() -> bool:
        return len(await office.put_back()) == 40 - PER_HOST

    await until(are_deferred)
    put_back = dispatcher.counters.handed_back
    job = await office.posted(receiver.url, tenant_id=other, count=PER_HOST)
    assert [each.result for each in await office.until_ended(job, PER_HOST)] == ["success"] * PER_HOST
    assert dispatcher.counters.handed_back == put_back
    await dispatcher.stop(NO_GRACE)


async def test_what_finds_no_place_in_one_dispatcher_finds_it_in_the_next(
    office: PostOffice, black_hole: Receiver
) -> None:
    await office.add_tenant("other")
    job = await office.posted(black_hole.url, timeout_seconds=300, count=8)
    options: dict[str, Any] = {"concurrency": 8, "settings": DeliverySettings(host_wait_seconds=0.1)}
    first, second = office.dispatcher(**options), office.dispatcher(**options)
    await first.start()

    async def has_its_places() -> bool:
        return len(black_hole.received) == first.slots.held(1) and not first.slots.may_take(1)

    await until(has_its_places)
    of_first = len(black_hole.received)
    assert of_first < 8
    await second.start()
    await black_hole.until_received(8)
    await first.stop(NO_GRACE)
    await second.stop(NO_GRACE)
    assert await office.results(job) == ["deferred"] * 8


def test_a_delivery_that_keeps_no_time_is_stopped_soon_after_its_tenants_maximum() -> None:
    handler = TargetHandlers({7: 300}.__getitem__).find(cast("Any", SimpleNamespace(spec="{}")))
    day = cast("Any", SimpleNamespace(tenant_id=7, timeout_seconds=86_400))
    minute = cast("Any", SimpleNamespace(tenant_id=7, timeout_seconds=60))
    assert (handler.deadline_seconds(day), handler.deadline_seconds(minute)) == (330, 90)


async def test_a_delivery_takes_no_longer_than_its_tenant_may(office: PostOffice, black_hole: Receiver) -> None:
    await office.connection.execute("UPDATE tenants SET http_timeout_max_seconds = 1")
    long, short = [await office.posted(black_hole.url, timeout_seconds=seconds) for seconds in (86_400, 1)]
    await office.deliver()
    limited = "no complete answer within 1 s, which is the tenant's http_timeout_max_seconds"
    for job in (long, short):
        outcome = await office.outcome(job)
        assert (outcome.result, outcome.error) == ("timed_out", limited)


async def test_a_shorter_time_out_of_the_job_is_its_own(office: PostOffice, black_hole: Receiver) -> None:
    job = await office.posted(black_hole.url, timeout_seconds=1)
    await office.deliver()
    assert (await office.outcome(job)).error == "no complete answer within 1 s"


async def test_a_tenant_that_is_alone_may_have_all_places(office: PostOffice, receiver: Receiver) -> None:
    together = asyncio.Barrier(8)

    async def meet() -> web.StreamResponse:
        async with asyncio.timeout(PATIENCE_SECONDS):
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
