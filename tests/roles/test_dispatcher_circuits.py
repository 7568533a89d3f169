"""Deliveries to a host that fails are deferred without using up a try, until a probe finds the host well."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from aiohttp import web

from engine import Job, until
from evertick.domain.attempt import SUCCEEDED, Failed
from evertick.domain.breaker import MIN_CALLS, PROBE_MAX, PROBE_MIN, RETURNS_PER_SECOND, TenantHost
from evertick.domain.ids import MAX_ID
from evertick.roles.dispatcher import Dispatcher
from evertick.store.tenants import audit, target_hosts
from evertick.targets.http.webhooks import host_of
from roles.dispatching import PostOffice, Receiver, receiving

NO_GRACE = timedelta(0)
PUT_OFF = PROBE_MAX - timedelta(seconds=1)
"""As far as a probe may be away."""


async def to_this_machine(_: str) -> list[str]:
    return ["127.0.0.1"]


async def hang() -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


class CircuitOffice(PostOffice):
    """Looks at the circuits, and lets their time pass."""

    async def states(self) -> dict[str, str]:
        rows = await self.connection.fetch("SELECT host, state::text FROM target_hosts ORDER BY tenant_id, host")
        return {row["host"]: row["state"] for row in rows}

    async def until_state(self, receiver: Receiver, state: str) -> None:
        async def has_state() -> bool:
            return (await self.states()).get(host_of(receiver.url)) == state

        await until(has_state)

    async def pass_time(self, *dispatchers: Dispatcher) -> None:
        """The next probe is due now, as these dispatchers know, and all that was put back is ready."""
        await self.connection.execute(
            "UPDATE target_hosts SET probe_at = clock_at() - interval '1 s' WHERE probe_at IS NOT NULL"
        )
        for dispatcher in dispatchers:
            await dispatcher.circuits.read()
        await self.let_return()

    async def put_off_probe(self, *dispatchers: Dispatcher) -> None:
        """No probe is due before `pass_time`, however slow the machine is, as these dispatchers know."""
        await self.connection.execute(
            "UPDATE target_hosts SET probe_at = clock_at() + $1 WHERE probe_at IS NOT NULL", PUT_OFF
        )
        for dispatcher in dispatchers:
            await dispatcher.circuits.read()

    async def watch_for_long(self) -> None:
        """The circuits that are watched have been watched for long enough."""
        await self.connection.execute("UPDATE target_hosts SET watched_at = watched_at - interval '1 minute'")

    async def actions(self) -> list[tuple[str, str, str | None]]:
        changes = await audit.page(self.connection, 1, before=MAX_ID, most=99)
        return [(change.actor, change.action, change.subject) for change in reversed(changes)]

    async def until_put_back(self, count: int) -> None:
        async def are_there() -> bool:
            return len(await self.put_back()) == count

        await until(are_there)

    @asynccontextmanager
    async def delivering(self) -> AsyncIterator[Dispatcher]:
        dispatcher = self.dispatcher(resolve=to_this_machine)
        await dispatcher.start()
        try:
            yield dispatcher
        finally:
            await dispatcher.stop(NO_GRACE)


@pytest.fixture
def office(office: PostOffice) -> CircuitOffice:
    return CircuitOffice(office.connection, office.url)


def fail(receiver: Receiver, times: int, status: int = 500) -> None:
    for _ in range(times):
        receiver.will_answer(status)


async def open_circuit(office: CircuitOffice, receiver: Receiver) -> Job:
    """Let a host fail until its circuit is open. The first probe is put off."""
    fail(receiver, MIN_CALLS)
    job = await office.posted(receiver.url, count=MIN_CALLS)
    dispatcher = office.dispatcher()
    await dispatcher.open()
    await dispatcher.work_off()
    await dispatcher.circuits.report()
    await office.watch_for_long()
    await dispatcher.close()
    (row,) = await target_hosts.page(office.connection, 1, after="", most=9)
    assert (row.host, row.state, row.openings) == (host_of(receiver.url), "open", 1)
    assert row.probe_at is not None
    assert row.probe_at - row.changed_at == PROBE_MIN
    await office.put_off_probe()
    return job


async def test_a_host_that_fails_is_left_alone_and_no_try_is_used_up(
    office: CircuitOffice, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "evertick.dispatcher")
    await open_circuit(office, receiver)
    later = await office.posted(receiver.url, count=30)
    dispatcher = await office.deliver()  # another one: what was stored holds after a restart
    assert len(receiver.received) == MIN_CALLS
    assert await office.results(later) == []
    assert await office.retries(later) == []
    waits = await office.put_back()
    assert len(waits) == 30
    assert all(0 < wait <= PROBE_MAX.total_seconds() and deferrals == 1 for wait, deferrals in waits)
    assert len(set(await office.returns())) == 30, "they come back one after the other"
    assert (dispatcher.circuits.counters.deferred, dispatcher.counters.handed_back) == (30, 30)
    host = host_of(receiver.url)
    assert f"circuit open for {host} of tenant 1: 20 of 20 calls failed, the last: answered 500" in caplog.text
    assert f"deferred: circuit open for {host}" in caplog.text
    assert await office.actions() == [("dispatcher", "open_circuit", host)]


async def test_a_probe_that_succeeds_closes_the_circuit_and_all_that_waited_is_delivered(
    office: CircuitOffice, receiver: Receiver
) -> None:
    await open_circuit(office, receiver)
    job = await office.posted(receiver.url, count=40)
    async with office.delivering() as dispatcher:
        await office.until_put_back(40)
        await office.pass_time(dispatcher)
        await office.until_state(receiver, "closed")
        assert len(receiver.received) == MIN_CALLS + 1, "one probe"
        await office.pass_time()
        outcomes = await office.until_ended(job, 40)
    assert {(outcome.result, outcome.attempt) for outcome in outcomes} == {("success", 1)}
    assert dispatcher.circuits.counters.probes == 1
    host = host_of(receiver.url)
    assert await office.actions() == [("dispatcher", "open_circuit", host), ("dispatcher", "close_circuit", host)]


async def test_what_was_deferred_comes_back_when_the_next_probe_may_be_made(
    office: CircuitOffice, receiver: Receiver
) -> None:
    """So the first success comes with the first probe after the host is well."""
    await open_circuit(office, receiver)
    await office.posted(receiver.url)
    await office.deliver()
    early = await office.connection.fetchval(
        "SELECT extract(epoch FROM expires_at - probe_at)::float FROM leases, target_hosts WHERE worker IS NULL"
    )
    assert abs(early) < PROBE_MIN.total_seconds() / 2  # the clock of the database is an estimate here


async def test_a_probe_that_fails_uses_up_no_try_and_the_next_is_further_away(
    office: CircuitOffice, receiver: Receiver
) -> None:
    await open_circuit(office, receiver)
    fail(receiver, 2)
    job = await office.posted(receiver.url, count=10)
    async with office.delivering() as dispatcher:
        await office.until_put_back(10)
        for failed in (1, 2):
            await office.pass_time(dispatcher)
            await office.until_ended(job, failed)
            await office.until_state(receiver, "open")
            await office.until_put_back(10 - failed)
    outcomes = await office.outcomes(job)
    error = f"deferred: the probe of {host_of(receiver.url)} failed: answered 500 Internal Server Error"
    assert {(each.result, each.attempt, each.is_final, each.error) for each in outcomes} == {
        ("deferred", 1, False, error)
    }
    assert [attempt for attempt, _ in await office.retries(job)] == [1, 1], "the same try comes again"
    (row,) = await target_hosts.page(office.connection, 1, after="", most=9)
    assert row.openings == 3
    assert row.probe_at is not None
    probed_at = await office.connection.fetchval("SELECT max(finished_at) FROM outcomes")
    assert row.probe_at - probed_at > 3 * PROBE_MIN
    assert row.changed_at < row.probe_at - 4 * PROBE_MIN, "since when it is open"


@pytest.mark.parametrize("status", [400, 404, 409])
async def test_a_host_that_refuses_requests_is_well(office: CircuitOffice, receiver: Receiver, status: int) -> None:
    fail(receiver, 2 * MIN_CALLS, status)
    await office.posted(receiver.url, count=2 * MIN_CALLS)
    await office.deliver()
    assert await office.states() == {}, "a host without failures has no row"


async def test_a_job_may_opt_out(office: CircuitOffice, receiver: Receiver) -> None:
    await open_circuit(office, receiver)
    fail(receiver, 30)
    stubborn = await office.posted(receiver.url, count=30, circuit_breaker=False)
    await office.deliver()
    assert await office.results(stubborn) == ["failed"] * 30
    (row,) = await target_hosts.page(office.connection, 1, after="", most=9)
    assert row.calls == MIN_CALLS, "what it does is not counted"


async def test_a_dead_host_does_not_delay_healthy_ones(office: CircuitOffice, receiver: Receiver) -> None:
    async with receiving() as dead:
        await open_circuit(office, dead)
        dead_job = await office.posted(dead.url, count=900)
        healthy = [
            await office.posted(receiver.url.replace("127.0.0.1", f"host-{number}.test"), count=20)
            for number in range(20)
        ]
        await office.put_off_probe()
        async with office.delivering() as dispatcher:
            for job in healthy:
                assert {outcome.result for outcome in await office.until_ended(job, 20)} == {"success"}
            await office.until_put_back(900)
        assert len(dead.received) == MIN_CALLS
    assert await office.results(dead_job) == []
    assert (dispatcher.counters.succeeded, len(receiver.received)) == (400, 400)
    # They come back at a limited rate, so that very many behind a dead host cost little.
    first_at, *_, last_at = await office.returns()
    assert (last_at - first_at).total_seconds() > 0.9 * 899 / RETURNS_PER_SECOND


async def test_other_tenants_of_the_host_have_circuits_of_their_own(office: CircuitOffice, receiver: Receiver) -> None:
    await open_circuit(office, receiver)
    other = await office.add_tenant("other")
    job = await office.posted(receiver.url, tenant_id=other)
    await office.deliver()
    assert await office.results(job) == ["success"]


async def both(office: CircuitOffice, act: Callable[[Dispatcher], None]) -> None:
    """Two dispatchers without loops, of which each reports on its own."""
    first, second = office.dispatcher(), office.dispatcher()
    for each in (first, second):
        await each.open()
    for each in (first, second):
        act(each)
        await each.circuits.report()
        await each.circuits.read()
    await office.watch_for_long()
    for each in (first, second):
        await each.close()


async def test_failures_that_two_dispatchers_saw_add_up(office: CircuitOffice) -> None:
    host = TenantHost(1, "api.example.com")

    def see(dispatcher: Dispatcher) -> None:
        for _ in range(MIN_CALLS // 2):
            assert dispatcher.circuits.is_closed(host)
            dispatcher.circuits.ended(
                host, Failed("the connection was refused"), began=time.monotonic(), is_probe=False
            )

    await both(office, see)
    assert await office.states() == {"api.example.com": "open"}


async def test_one_dispatcher_with_a_broken_network_opens_nothing_for_the_others(office: CircuitOffice) -> None:
    host = TenantHost(1, "api.example.com")
    broken, healthy = office.dispatcher(), office.dispatcher()
    for each in (broken, healthy):
        await each.open()
    for _ in range(50 * MIN_CALLS):
        healthy.circuits.ended(host, SUCCEEDED, began=time.monotonic(), is_probe=False)
    for _ in range(10 * MIN_CALLS):
        broken.circuits.ended(host, Failed("the network is away"), began=time.monotonic(), is_probe=False)
    await broken.circuits.report()
    await healthy.circuits.read()
    await healthy.circuits.report()
    await office.watch_for_long()
    await broken.circuits.report()
    assert await office.states() == {"api.example.com": "closed"}
    for each in (broken, healthy):
        await each.close()


async def test_calls_that_began_before_a_circuit_was_closed_do_not_open_it_again(
    office: CircuitOffice, receiver: Receiver
) -> None:
    await open_circuit(office, receiver)
    host = TenantHost(1, host_of(receiver.url))
    prober, other = office.dispatcher(), office.dispatcher()
    for each in (prober, other):
        await each.open()
    began = time.monotonic()
    await office.pass_time(prober)
    assert await prober.circuits.admit(host) is None
    prober.circuits.ended(host, SUCCEEDED, began=began, is_probe=True)
    await prober.circuits.report()
    await other.circuits.read()
    assert await office.states() == {host.host: "closed"}
    for each in (prober, other):
        for _ in range(MIN_CALLS):
            each.circuits.ended(host, Failed("no answer within 60 s"), began=began, is_probe=False)
        each.circuits.answered(host, MIN_CALLS, began=began)
        await each.circuits.report()
    await office.watch_for_long()
    for each in (prober, other):
        await each.close()
    (row,) = await target_hosts.page(office.connection, 1, after="", most=9)
    assert (row.state, row.calls, row.failures) == ("closed", 0, 0)


@pytest.mark.parametrize("are_together", [False, True])
async def test_successes_of_another_dispatcher_keep_the_circuit_closed(
    office: CircuitOffice, *, are_together: bool
) -> None:
    host = TenantHost(1, "api.example.com")
    first, second = office.dispatcher(), office.dispatcher()
    for each in (first, second):
        await each.open()
    for _ in range(MIN_CALLS - 1):
        first.circuits.ended(host, Failed("the connection was refused"), began=time.monotonic(), is_probe=False)
    await first.circuits.report()
    await second.circuits.read()  # the host has many failures: from now on successes are reported
    if are_together:
        second.circuits.answered(host, 10 * MIN_CALLS, began=time.monotonic())
    else:
        for _ in range(10 * MIN_CALLS):
            second.circuits.ended(host, SUCCEEDED, began=time.monotonic(), is_probe=False)
    await second.circuits.report()
    first.circuits.ended(host, Failed("the connection was refused"), began=time.monotonic(), is_probe=False)
    await first.circuits.report()
    for each in (first, second):
        await each.close()
    (row,) = await target_hosts.page(office.connection, 1, after="", most=9)
    assert (row.calls, row.failures) == (11 * MIN_CALLS, MIN_CALLS)
    assert await office.states() == {"api.example.com": "closed"}


async def test_an_opening_is_known_to_other_dispatchers_soon_and_one_of_them_probes(
    office: CircuitOffice, receiver: Receiver
) -> None:
    async with office.delivering() as first, office.delivering() as second:
        fail(receiver, MIN_CALLS)
        await office.posted(receiver.url, count=MIN_CALLS)
        await office.until_state(receiver, "open")
        host = TenantHost(1, host_of(receiver.url))

        async def is_known_to_both() -> bool:
            return not first.circuits.is_closed(host) and not second.circuits.is_closed(host)

        await until(is_known_to_both)
        await office.put_off_probe(first, second)
        receiver.will(hang)
        waiting = await office.posted(receiver.url, count=50)
        await office.until_put_back(50)
        await office.pass_time(first, second)
        await office.until_state(receiver, "half_open")
        await office.until_put_back(49)
        assert await office.results(waiting) == []
        assert len(receiver.received) == MIN_CALLS + 1
        assert first.circuits.counters.probes + second.circuits.counters.probes == 1


async def test_a_probe_whose_dispatcher_died_is_made_by_another(office: CircuitOffice, receiver: Receiver) -> None:
    await open_circuit(office, receiver)
    job = await office.posted(receiver.url)
    host = TenantHost(1, host_of(receiver.url))
    dead = office.dispatcher()
    await dead.open()
    await office.pass_time()
    await dead.circuits.read()
    assert await dead.circuits.admit(host) is None, "it has the probe"
    await dead.close()  # and reports nothing of it
    async with office.delivering() as dispatcher:
        await office.until_put_back(1)
        assert await office.states() == {host.host: "half_open"}
        await office.pass_time(dispatcher)
        assert [outcome.result for outcome in await office.until_ended(job)] == ["success"]
        await office.until_state(receiver, "closed")


async def test_a_probe_that_was_broken_off_is_free_at_once(office: CircuitOffice, receiver: Receiver) -> None:
    await open_circuit(office, receiver)
    await office.pass_time()
    receiver.will(hang)
    job = await office.posted(receiver.url)
    async with office.delivering():
        await office.until_state(receiver, "half_open")
    assert (await office.states())[host_of(receiver.url)] == "open"
    assert await office.results(job) == ["deferred"], "it was begun, and its dispatcher stopped"
    dispatcher = office.dispatcher()
    await dispatcher.open()
    assert await dispatcher.circuits.admit(TenantHost(1, host_of(receiver.url))) is None
    await dispatcher.close()


async def test_a_row_that_somebody_has_locked_is_reported_later(office: CircuitOffice, receiver: Receiver) -> None:
    await open_circuit(office, receiver)
    job = await office.posted(receiver.url)
    await office.pass_time()
    dispatcher = office.dispatcher()
    await dispatcher.open()
    async with office.connection.transaction():
        await office.connection.execute("SELECT FROM target_hosts FOR UPDATE")
        await dispatcher.work_off()
        assert receiver.received[MIN_CALLS:] == [], "no probe could be claimed"
    await office.pass_time(dispatcher)
    await dispatcher.work_off()
    async with office.connection.transaction():
        await office.connection.execute("SELECT FROM target_hosts FOR UPDATE")
        await dispatcher.circuits.report()
    assert (await office.states())[host_of(receiver.url)] == "half_open"
    await dispatcher.circuits.report()
    assert (await office.states())[host_of(receiver.url)] == "closed"
    await dispatcher.close()
    assert await office.results(job) == ["success"]


async def test_without_a_probe_from_the_database_nothing_is_burned(office: CircuitOffice, receiver: Receiver) -> None:
    await open_circuit(office, receiver)
    job = await office.posted(receiver.url, count=3)
    await office.pass_time()
    dispatcher = office.dispatcher()
    await dispatcher.open()
    await office.connection.execute("ALTER TABLE target_hosts RENAME TO target_hosts_away")
    await dispatcher.work_off()
    await office.connection.execute("ALTER TABLE target_hosts_away RENAME TO target_hosts")
    assert await office.results(job) == []
    assert len(await office.put_back()) == 3
    await office.pass_time(dispatcher)
    await dispatcher.work_off()
    await dispatcher.close()
    assert "success" in await office.results(job)
