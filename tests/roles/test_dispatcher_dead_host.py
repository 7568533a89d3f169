"""A dead host among twenty healthy ones: they keep their deliveries, it costs no try, and it is found well again soon.

Throughput is counted, not timed: healthy hosts answer in rounds, all at once, and in each round as many deliveries to
them are under way as dispatchers make without a dead host.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Self

import pytest
from aiohttp import web

from engine import until
from evertick.domain.breaker import MIN_CALLS, TenantHost, probe_interval
from evertick.roles.dispatcher import Dispatcher
from evertick.store.tenants import target_hosts
from evertick.store.tenants.target_hosts import HostRow
from evertick.targets.http.webhooks import host_of
from roles.dispatching import PostOffice
from roles.test_dispatcher_circuits import CircuitOffice

HEALTHY = 20
DISPATCHERS = 2
ROUNDS = 3
KEPT = 0.9
LOOKS = timedelta(seconds=5)
"""What was deferred comes back at a rate, and is found by looks."""
NO_GRACE = timedelta(0)

Handle = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Rounds:
    """Holds back the answers of healthy hosts until the round is over."""

    def __init__(self) -> None:
        self.under_way = 0
        self.is_open = False  # answers need not wait any more
        self._over = asyncio.Event()

    async def handle(self, _: web.Request) -> web.StreamResponse:
        self.under_way += 1
        if not self.is_open:
            await self._over.wait()
        return web.Response()

    async def until_under_way(self, count: int) -> None:
        async def are_there() -> bool:
            return self.under_way >= count

        await until(are_there)

    def end(self) -> int:
        """Answer all; returns how many they were."""
        count, self.under_way = self.under_way, 0
        self._over.set()
        self._over = asyncio.Event()
        return count


class DeadHost:
    """Refuses connections, answers 500 or never, until it recovers."""

    def __init__(self, kind: str, port: int) -> None:
        self.kind = kind
        self.port = port
        self.url = f"http://127.0.0.1:{port}/hook"
        self.received = 0
        self._is_well = False
        self._servers = AsyncExitStack()

    async def __aenter__(self) -> Self:
        if self.kind != "refuses":
            await self._serve()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._servers.aclose()

    async def recover(self) -> None:
        self._is_well, self.received = True, 0
        if self.kind == "refuses":
            await self._serve()

    async def _serve(self) -> None:
        await self._servers.enter_async_context(serving(self._handle, self.port))

    async def _handle(self, _: web.Request) -> web.StreamResponse:
        self.received += 1
        if not self._is_well and self.kind == "hangs":
            await asyncio.Event().wait()
        return web.Response(status=200 if self._is_well else 500)


@asynccontextmanager
async def serving(handle: Handle, port: int = 0) -> AsyncIterator[int]:
    """A server of its own on a port of its own; yields the port."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def unused_port() -> int:
    async with serving(Rounds().handle) as port:
        return port


@pytest.fixture
def office(office: PostOffice) -> CircuitOffice:
    return CircuitOffice(office.connection, office.url)


@pytest.fixture
def rounds() -> Rounds:
    return Rounds()


@pytest.fixture
async def healthy(rounds: Rounds) -> AsyncIterator[list[str]]:
    async with AsyncExitStack() as servers:
        ports = [await servers.enter_async_context(serving(rounds.handle)) for _ in range(HEALTHY)]
        yield [f"http://127.0.0.1:{port}/hook" for port in ports]


@asynccontextmanager
async def dispatching(office: CircuitOffice, slots: int) -> AsyncIterator[list[Dispatcher]]:
    dispatchers = [office.dispatcher(concurrency=slots // DISPATCHERS) for _ in range(DISPATCHERS)]
    for each in dispatchers:
        await each.start()
    try:
        yield dispatchers
    finally:
        for each in dispatchers:
            await each.stop(NO_GRACE)


async def deliver(office: CircuitOffice, rounds: Rounds, urls: list[str], slots: int, least: int) -> int:
    """How many deliveries healthy hosts got in `ROUNDS` rounds, each of which had at least so many of all slots."""
    for url in urls:
        await office.posted(url, count=ROUNDS * slots // HEALTHY)
    made = 0
    for _ in range(ROUNDS):
        await rounds.until_under_way(least)
        made += rounds.end()
    return made


async def until_open(office: CircuitOffice, dead: DeadHost, dispatchers: list[Dispatcher], *, in_time: bool) -> None:
    """Until every dispatcher knows that the circuit is open; `in_time`: in the time that this takes."""
    host = TenantHost(1, host_of(dead.url))

    async def is_known() -> bool:
        if not in_time:
            await office.watch_for_long()
        return not any(each.circuits.is_closed(host) for each in dispatchers)

    await until(is_known)


async def postpone_probe(office: CircuitOffice, dispatchers: list[Dispatcher]) -> None:
    """No probe is made for a while."""
    await until_circuit(office, "open")
    await office.put_off_probe(*dispatchers)


def probes(dispatchers: list[Dispatcher]) -> int:
    return sum(each.circuits.counters.probes for each in dispatchers)


async def recover(office: CircuitOffice, dead: DeadHost, dispatchers: list[Dispatcher], *, in_time: bool) -> None:
    """The host is well from now on: the next probe is not further away than its interval, and closes the circuit."""
    rows: list[HostRow] = []
    before = 0

    async def is_between_probes() -> bool:
        nonlocal before
        async with office.connection.transaction():
            # While it is locked no probe begins.
            if await office.connection.fetchval("SELECT state FROM target_hosts FOR UPDATE") != "open":
                return False
            before = probes(dispatchers)
            await dead.recover()
            rows.extend(await target_hosts.page(office.connection, 1, after="", most=9))
        return True

    await until(is_between_probes)
    (row,) = rows
    assert row.probe_at is not None
    assert not in_time or row.probe_at - row.now_at <= probe_interval(row.openings)
    if not in_time:
        await office.pass_time(*dispatchers)
    await until_circuit(office, "closed")
    assert probes(dispatchers) == before + 1
    if in_time:
        first_at = await office.connection.fetchval(
            "SELECT min(started_at) FROM outcomes JOIN attempts USING (lane_id, seq) WHERE result = 'success'"
            " AND job_id = ANY(SELECT job_id FROM job_versions WHERE spec->'target'->>'url' = $1)",
            dead.url,
        )
        assert first_at - row.now_at <= probe_interval(row.openings) + LOOKS


async def until_circuit(office: CircuitOffice, state: str) -> None:
    """The dead host is the only one that has ever failed."""

    async def is_so() -> bool:
        return list((await office.states()).values()) == [state]

    await until(is_so)


async def survive(
    office: CircuitOffice, rounds: Rounds, urls: list[str], kind: str, slots: int, *, in_time: bool
) -> None:
    port = await unused_port()
    async with DeadHost(kind, port) as dead, dispatching(office, slots) as dispatchers:
        without = await deliver(office, rounds, urls, slots, slots)
        await office.posted(dead.url, count=2 * MIN_CALLS, timeout_seconds=1)
        await until_open(office, dead, dispatchers, in_time=in_time)
        if not in_time:
            await postpone_probe(office, dispatchers)
        # They stand before all others. If they were delivered, those that hang would keep their slots.
        waiting = await office.posted(dead.url, count=slots, timeout_seconds=1 if in_time else 600)
        assert await deliver(office, rounds, urls, slots, int(KEPT * slots)) >= KEPT * without
        tries = {(each.attempt, each.result) for each in await office.outcomes(waiting)}
        assert tries <= ({(1, "deferred")} if in_time else set())
        assert {attempt for attempt, _ in await office.retries(waiting)} <= {1}
        rounds.is_open = True
        rounds.end()
        await recover(office, dead, dispatchers, in_time=in_time)
        ended = len(await office.retries(waiting))  # those that were probes wait for a scheduler

        async def are_delivered() -> bool:
            await office.pass_time()
            return (await office.results(waiting)).count("success") == slots - ended

        await until(are_delivered)
        assert {each.attempt for each in await office.outcomes(waiting)} == {1}


@pytest.mark.parametrize("kind", ["refuses", "fails", "hangs"])
async def test_healthy_hosts_keep_their_deliveries_and_the_dead_one_its_tries(
    office: CircuitOffice, rounds: Rounds, healthy: list[str], kind: str
) -> None:
    await survive(office, rounds, healthy, kind, 40, in_time=False)


@pytest.mark.campaign
@pytest.mark.parametrize("kind", ["refuses", "fails", "hangs"])
async def test_healthy_hosts_keep_their_deliveries_in_full_and_the_first_success_comes_in_time(
    office: CircuitOffice, rounds: Rounds, healthy: list[str], kind: str
) -> None:
    await survive(office, rounds, healthy, kind, 400, in_time=True)
