"""Target hosts that failed lately, as the API shows and resets them."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import asyncpg
import pytest

from api.callers import Caller, Callers, is_problem, pointers
from evertick.domain.breaker import MIN_CALLS, WATCH_TIME, Circuit, Report, TenantHost, apply, new_circuit
from evertick.metrics.catalog import HOST_EVENTS, HostEvent
from evertick.roles.janitor import Janitor
from evertick.store.database import Pool
from evertick.store.tenants import target_hosts

HOST = "api.example.com"


async def stored(connection: asyncpg.Connection, host: str, failures: int, tenant_id: int = 1) -> Circuit:
    """A host that failed so often just now."""
    key = TenantHost(tenant_id, host)
    await target_hosts.add(connection, [key])
    now_at: datetime = await connection.fetchval("SELECT clock_at()")
    watched = replace(new_circuit(now_at), watched_at=now_at - WATCH_TIME)
    circuit = apply(watched, Report(MIN_CALLS, failures, "the connection was refused"), now_at)
    async with connection.transaction():
        await target_hosts.store(connection, {key: circuit})
    return circuit


async def test_a_host_is_shown_with_its_circuit(admin: Caller, connection: asyncpg.Connection) -> None:
    circuit = await stored(connection, HOST, MIN_CALLS - 5)
    assert circuit.probe_at is not None
    (host,) = (await admin.get("/targets")).json()
    times = [datetime.fromisoformat(host.pop(name)) for name in ("since", "next_probe_at")]
    assert times == [circuit.changed_at, circuit.probe_at]
    assert host == {
        "host": HOST,
        "state": "open",
        "calls": 20,
        "failures": 15,
        "failure_ratio": 0.75,
        "last_error": "the connection was refused",
        "rate_limit": None,
        "rate_burst": None,
    }


async def test_counts_that_are_too_old_are_not_shown(admin: Caller, connection: asyncpg.Connection) -> None:
    await stored(connection, HOST, 5)
    (host,) = (await admin.get("/targets")).json()
    assert (host["state"], host["calls"], host["failure_ratio"], host["next_probe_at"]) == ("closed", 20, 0.25, None)
    await connection.execute("UPDATE target_hosts SET window_at = window_at - interval '2 minutes'")
    (host,) = (await admin.get("/targets")).json()
    assert (host["calls"], host["failures"], host["failure_ratio"]) == (0, 0, 0.0)


async def test_hosts_are_listed_page_by_page_and_of_the_own_tenant_alone(
    admin: Caller, callers: Callers, connection: asyncpg.Connection
) -> None:
    other = await callers.tenant()
    for number in range(5):
        await stored(connection, f"host-{number}.example.com", MIN_CALLS)
        await stored(connection, f"other-{number}.example.com", MIN_CALLS, other)
    names, url = [], "/targets?limit=2"
    while url:
        answer = await admin.get(url)
        names.append([host["host"] for host in answer.json()])
        url = answer.links.get("next", {}).get("url", "").removeprefix("/api/v1")
    assert names == [[f"host-{n}.example.com" for n in page] for page in ((0, 1), (2, 3), (4,))]
    theirs = await callers.make("viewer", other)
    assert [host["host"] for host in (await theirs.get("/targets")).json()] == [
        f"other-{n}.example.com" for n in range(5)
    ]


@pytest.mark.parametrize("name", [HOST, "10.0.0.7:8080", "[::1]:8080"])
async def test_an_operator_resets_a_host_and_the_audit_log_says_so(
    admin: Caller, callers: Callers, connection: asyncpg.Connection, name: str
) -> None:
    await stored(connection, name, MIN_CALLS)
    path = f"/targets/{quote(name, safe='')}/reset"
    viewer, operator = await callers.make("viewer"), await callers.make("operator")
    is_problem(await viewer.post(path), 403, "forbidden")
    answer = await operator.post(path)
    assert (answer.status_code, answer.json()["state"], answer.json()["calls"]) == (200, "closed", 0)
    assert answer.json()["last_error"] == "the connection was refused", "what it was about"
    (host,) = (await admin.get("/targets")).json()
    assert host == answer.json()
    change = (await admin.get("/audit-log")).json()[0]
    assert (change["action"], change["subject"]) == ("reset_target", name)
    assert await target_hosts.watched(connection, 10) == []


async def test_a_host_of_another_tenant_does_not_exist(
    admin: Caller, callers: Callers, connection: asyncpg.Connection
) -> None:
    await stored(connection, HOST, MIN_CALLS, await callers.tenant())
    is_problem(await admin.post(f"/targets/{HOST}/reset"), 404, "not-found")
    is_problem(await admin.post("/targets/healthy.example.com/reset"), 404, "not-found")
    assert len(await target_hosts.watched(connection, 10)) == 1


@pytest.mark.parametrize("name", [HOST, "10.0.0.7:8080", "[::1]:8080"])
async def test_an_editor_limits_a_host_and_the_audit_log_says_so(admin: Caller, callers: Callers, name: str) -> None:
    path = f"/targets/{quote(name, safe='')}"
    operator, editor = await callers.make("operator"), await callers.make("editor")
    is_problem(await operator.put(path, json={"rate_limit": 50}), 403, "forbidden")
    limited = (await editor.put(path, json={"rate_limit": 50, "rate_burst": 7})).json()
    assert (limited["host"], limited["state"], limited["rate_limit"], limited["rate_burst"]) == (name, "closed", 50, 7)
    assert (await admin.get("/targets")).json() == [limited]
    change = (await admin.get("/audit-log")).json()[0]
    assert (change["action"], change["subject"]) == ("put_target", name)
    unlimited = (await editor.put(path, json={})).json()
    assert (unlimited["rate_limit"], unlimited["rate_burst"]) == (None, None)


async def test_a_host_is_named_as_deliveries_name_it(admin: Caller) -> None:
    limited = await admin.put(f"/targets/{quote('API.Example.com:443', safe='')}", json={"rate_limit": 0.5})
    assert limited.json()["host"] == HOST
    for wrong in (0, -1, "5", 2_000_000):
        assert pointers(await admin.put(f"/targets/{HOST}", json={"rate_limit": wrong})) == ["/rate_limit"]
    assert pointers(await admin.put(f"/targets/{HOST}", json={"rate_burst": 5})) == ["/rate_burst"]
    assert (await admin.put(f"/targets/{quote('a b', safe='')}", json={})).status_code == 422


async def test_a_limit_stays_however_long_nothing_is_said_of_its_host_and_counts_for_the_quota(
    admin: Caller, pool: Pool, connection: asyncpg.Connection
) -> None:
    await admin.put(f"/targets/{HOST}", json={"rate_limit": 50})
    await connection.execute("UPDATE target_hosts SET reported_at = reported_at - interval '30 days'")
    assert (await Janitor(pool).maintain()).hosts_forgotten == 0
    others = [TenantHost(1, f"host-{number}.test") for number in range(target_hosts.MAX_PER_TENANT - 1)]
    await target_hosts.add(connection, others)
    refused = await admin.put("/targets/one-more.test", json={"rate_limit": 50})
    assert is_problem(refused, 429, "over-quota")["quota"] == "target_hosts"
    assert (await admin.put("/targets/host-1.test", json={"rate_limit": 50})).status_code == 200


async def test_what_breakers_and_limits_did_is_a_metric(admin: Caller) -> None:
    before = int(HOST_EVENTS.value(HostEvent.RATE_DEFERRED))
    HOST_EVENTS.add(1, HostEvent.RATE_DEFERRED)
    metrics = await admin.get(str(admin.base_url.copy_with(path="/metrics")))
    assert f'evertick_target_host_events_total{{event="rate_deferred"}} {before + 1}.0' in metrics.text
    assert 'evertick_target_host_events_total{event="circuit_opened"}' in metrics.text


async def test_open_circuits_are_a_metric(admin: Caller, connection: asyncpg.Connection) -> None:
    await stored(connection, HOST, MIN_CALLS)
    await stored(connection, "flaky.example.com", 8)
    metrics = await admin.get(str(admin.base_url.copy_with(path="/metrics")))
    assert 'evertick_open_circuits{state="open"} 1.0' in metrics.text
    assert 'evertick_open_circuits{state="half_open"} 0.0' in metrics.text


async def test_a_tenant_has_a_limited_number_of_hosts_and_old_ones_go(
    pool: Pool, connection: asyncpg.Connection
) -> None:
    most = target_hosts.MAX_PER_TENANT
    await target_hosts.add(connection, [TenantHost(1, f"host-{number}.test") for number in range(most)])
    await target_hosts.add(connection, [TenantHost(1, "one-more.test")])
    assert await connection.fetchval("SELECT count(*) FROM target_hosts") == most
    old_at = datetime.now(UTC) - timedelta(hours=25)
    await connection.execute("UPDATE target_hosts SET reported_at = $1 WHERE host <> 'host-0.test'", old_at)
    assert (await Janitor(pool).maintain()).hosts_forgotten == most - 1
    assert await connection.fetchval("SELECT host FROM target_hosts") == "host-0.test"
