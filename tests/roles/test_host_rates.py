"""Rate limits of target hosts: what a host may not get yet is deferred, uses up no try, and stops nobody else."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from engine import PATIENCE_SECONDS, until
from evertick.domain.breaker import TenantHost
from evertick.roles.dispatcher import Dispatcher, host_rates
from evertick.store.tenants import target_hosts
from evertick.targets.http.webhooks import host_of
from redis_server import redis_server
from roles.dispatching import PostOffice, Receiver
from roles.test_dispatcher_circuits import to_this_machine

HARDLY = 0.001
"""Per second: no test lasts until the next token."""


@pytest.fixture(autouse=True)
def draws_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is drawn in an answer that comes too late is lost, and the burst with it."""
    monkeypatch.setattr(host_rates, "DRAW_SECONDS", PATIENCE_SECONDS)


@pytest.fixture(params=["database", "redis"])
async def redis_url(request: pytest.FixtureRequest) -> AsyncIterator[str | None]:
    async with AsyncExitStack() as stack:
        yield None if request.param == "database" else (await stack.enter_async_context(redis_server())).url


@asynccontextmanager
async def delivering(office: PostOffice, redis_url: str | None = None) -> AsyncIterator[Dispatcher]:
    dispatcher = office.dispatcher(resolve=to_this_machine, redis_url=redis_url)
    await dispatcher.start()
    try:
        yield dispatcher
    finally:
        await dispatcher.stop()


async def limit(office: PostOffice, url: str, rate_limit: float | None, burst: int | None = None) -> None:
    await target_hosts.limit(office.connection, TenantHost(1, host_of(url)), rate_limit, burst)


def on(receiver: Receiver, host: str) -> str:
    return receiver.url.replace("127.0.0.1", host)


async def test_two_dispatchers_deliver_the_burst_together_and_defer_the_rest(
    office: PostOffice, receiver: Receiver, redis_url: str | None
) -> None:
    limited, free = on(receiver, "limited.test"), on(receiver, "free.test")
    await limit(office, limited, HARDLY, 20)
    few = await office.posted(limited, count=60)
    all_of_it = await office.posted(free, count=60)
    async with delivering(office, redis_url), delivering(office, redis_url):
        await office.until_ended(all_of_it, 60)
        await office.until_ended(few, 20)

        async def are_deferred() -> bool:
            return len(await office.put_back()) == 40

        await until(are_deferred)
    assert await office.results(few) == ["success"] * 20
    assert await office.retries(few) == [], "no try is used up"
    assert all(deferrals == 1 for _, deferrals in await office.put_back()), "none comes again and again"


async def test_a_limited_host_gets_its_rate_beside_one_without_a_limit(office: PostOffice, receiver: Receiver) -> None:
    limited, free = on(receiver, "limited.test"), on(receiver, "free.test")
    await limit(office, limited, 50, 10)
    slow = await office.posted(limited, count=100)
    begun_us: int = await office.connection.fetchval("SELECT microseconds(clock_at())")
    async with delivering(office), delivering(office):
        fast = await office.posted(free, count=200)
        await office.until_ended(fast, 200)
        await office.until_ended(slow, 50)
        count = len(await office.outcomes(slow))
        seconds = (await office.connection.fetchval("SELECT microseconds(clock_at())") - begun_us) / 1_000_000
        assert count <= 10 + 50 * seconds
        await office.until_ended(slow, 100)
    assert {(outcome.result, outcome.attempt) for outcome in await office.outcomes(slow)} == {("success", 1)}


async def test_what_was_deferred_comes_back_spread_at_about_the_rate(office: PostOffice, receiver: Receiver) -> None:
    rate = 0.02  # no test lasts until the next token
    await limit(office, receiver.url, rate, 1)
    await office.posted(receiver.url, count=31)
    await office.deliver()
    first_at, *between, last_at = await office.returns()
    assert len(receiver.received) == 1
    assert len(between) == 28
    assert (last_at - first_at).total_seconds() == pytest.approx(29 / (1.25 * rate), rel=0.05)


async def test_who_comes_first_does_not_overtake_those_that_wait(office: PostOffice, receiver: Receiver) -> None:
    await limit(office, receiver.url, HARDLY, 1)
    dispatcher = office.dispatcher()
    await dispatcher.open()
    await office.posted(receiver.url, count=2)
    await dispatcher.work_off()
    await office.connection.execute("DELETE FROM rate_buckets")  # a token is there again
    new = await office.posted(receiver.url)
    await dispatcher.work_off()
    assert await office.results(new) == []
    await dispatcher.close()
    assert len(receiver.received) == 1


async def test_a_change_of_the_limit_holds_in_running_dispatchers(office: PostOffice, receiver: Receiver) -> None:
    key = TenantHost(1, host_of(receiver.url))
    async with delivering(office) as dispatcher:
        await limit(office, receiver.url, HARDLY, 1)

        async def is_limited() -> bool:
            return dispatcher.host_rates.is_limited(key)

        await until(is_limited)
        limited = await office.posted(receiver.url, count=3)
        await office.until_ended(limited)
        await limit(office, receiver.url, None)

        async def is_free() -> bool:
            return not dispatcher.host_rates.is_limited(key)

        await until(is_free)
        free = await office.posted(receiver.url, count=3)
        await office.until_ended(free, 3)
    assert len(await office.outcomes(limited)) == 1, "what was deferred keeps its time"


async def test_after_a_change_of_the_limit_nobody_waits_behind_those_of_the_old_one(
    office: PostOffice, receiver: Receiver
) -> None:
    await limit(office, receiver.url, HARDLY, 1)
    await office.posted(receiver.url, count=3)
    dispatcher = office.dispatcher()
    await dispatcher.open()
    await dispatcher.work_off()
    await limit(office, receiver.url, 1000)
    await dispatcher.host_rates.read()
    await office.connection.execute("DELETE FROM rate_buckets")
    new = await office.posted(receiver.url, count=3)
    await dispatcher.work_off()
    await dispatcher.close()
    assert await office.results(new) == ["success"] * 3


async def test_a_limit_is_of_one_tenant(office: PostOffice, receiver: Receiver) -> None:
    await limit(office, receiver.url, HARDLY, 1)
    other = await office.add_tenant("other")
    job = await office.posted(receiver.url, count=5, tenant_id=other)
    await office.deliver()
    assert await office.results(job) == ["success"] * 5


async def test_a_bucket_that_cannot_be_asked_stops_its_host_alone(office: PostOffice, receiver: Receiver) -> None:
    await limit(office, receiver.url, 100)
    limited = await office.posted(receiver.url, count=3)
    free = await office.posted(on(receiver, "free.test"), count=3)
    await office.connection.execute("ALTER TABLE rate_buckets RENAME TO rate_buckets_away")
    await office.deliver(resolve=to_this_machine)
    assert await office.results(free) == ["success"] * 3
    assert (await office.results(limited), len(await office.put_back())) == ([], 3)
