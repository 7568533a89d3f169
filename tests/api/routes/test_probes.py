import asyncio
import re
import time
from collections import Counter

import asyncpg
import httpx
import pytest

from api.callers import Caller, Callers, is_problem
from engine import add_job, until
from evertick.api.server import ApiServer, CannotListen
from evertick.config.settings import Settings
from evertick.metrics.catalog import HTTP_REQUESTS, LAG
from evertick.roles.scheduler import Scheduler
from evertick.runtime.concurrency import Cached
from evertick.store.database import Pool
from evertick.store.engine import ready
from hooked_pool import hook_every_pool


@pytest.fixture
def anybody(callers: Callers) -> httpx.AsyncClient:
    caller = callers.of(None)
    caller.base_url = httpx.URL(callers.address)
    return caller


async def test_it_is_alive_and_ready(anybody: httpx.AsyncClient) -> None:
    assert (await anybody.get("/livez")).json() == {"status": "alive"}
    assert (await anybody.get("/readyz")).json() == {"ready": True, "faults": [], "warnings": []}


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics"])
async def test_a_load_balancer_that_probes_with_head_is_told_the_same(anybody: httpx.AsyncClient, path: str) -> None:
    probed, read = await anybody.head(path), await anybody.get(path)
    assert (probed.status_code, probed.content) == (200, b"")
    assert probed.headers["content-type"] == read.headers["content-type"]
    assert (await anybody.get("/livez")).json() == {"status": "alive"}  # over the same connection


async def test_it_stays_ready_and_warns_while_the_database_may_be_a_restored_copy(
    anybody: httpx.AsyncClient, connection: asyncpg.Connection
) -> None:
    await connection.execute("UPDATE cluster_identity SET suspected_at = clock_at(), suspicion = 'copied'")
    answer = await anybody.get("/readyz")
    assert (answer.status_code, answer.json()["ready"], answer.json()["faults"]) == (200, True, [])
    assert "evertick doctor" in answer.json()["warnings"][0]


async def test_it_is_not_ready_while_the_schema_does_not_fit(
    anybody: httpx.AsyncClient, connection: asyncpg.Connection
) -> None:
    await connection.execute("DELETE FROM migrations WHERE name = '0002_api'")
    answer = await anybody.get("/readyz")
    assert (answer.status_code, answer.json()["ready"]) == (503, False)
    assert "0002_api" in answer.json()["faults"][0]


async def test_it_is_not_ready_while_the_clock_is_not_sane(
    anybody: httpx.AsyncClient, connection: asyncpg.Connection
) -> None:
    await connection.execute(
        "CREATE OR REPLACE FUNCTION clock_at() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE"
        " AS $$ SELECT timestamptz '1970-01-01 00:00:00Z' $$"
    )
    answer = await anybody.get("/readyz")
    assert (answer.status_code, answer.json()["ready"]) == (503, False)
    assert "apart" in answer.json()["faults"][0]


async def test_metrics_are_as_prometheus_reads_them(anybody: httpx.AsyncClient, admin: Caller) -> None:
    before = int(HTTP_REQUESTS.value("create_job", "201"))
    await admin.create()
    answer = await anybody.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    assert f'evertick_http_requests_total{{operation="create_job",status="201"}} {before + 1}.0' in answer.text
    assert 'evertick_ready_attempts{queue="other"} 0.0' in answer.text
    assert "evertick_unheld_partitions 256.0" in answer.text
    assert "evertick_database_up 1.0" in answer.text


async def test_metrics_tell_how_much_is_left_from_an_outage(
    anybody: httpx.AsyncClient, connection: asyncpg.Connection
) -> None:
    jobs = [await add_job(connection, "now", partition=partition) for partition in (3, 3, 4, 5)]
    await connection.execute("UPDATE timers SET due_at = clock_at() WHERE job_id = $1", jobs[0].job_id)
    before_at = "clock_at() - interval '1 hour'"
    await connection.execute(f"UPDATE partitions SET outage_at = {before_at} WHERE partition IN (3, 4)")
    answer = await anybody.get("/metrics")
    assert "evertick_catch_up_timers 2.0" in answer.text
    assert re.search(r"^evertick_caught_up_timers_total \d", answer.text, re.MULTILINE)


async def test_metrics_tell_how_late_the_event_loop_is(anybody: httpx.AsyncClient) -> None:
    """The server shares this loop, so what blocks the test blocks the server."""

    async def at_most(seconds: str) -> tuple[float, float]:
        text = (await anybody.get("/metrics")).text
        name = "evertick_event_loop_delay_seconds"
        (within,) = re.findall(rf'^{name}_bucket{{le="{seconds}"}} (\S+)$', text, re.MULTILINE)
        (total,) = re.findall(rf"^{name}_count (\S+)$", text, re.MULTILINE)
        return float(within), float(total)

    async def is_measured() -> bool:
        return (await at_most("0.25"))[1] > 0

    async def is_seen() -> bool:
        within, total = await at_most("0.25")
        return total > within

    await until(is_measured)
    time.sleep(0.5)  # noqa: ASYNC251 - what must not be done on a loop
    await until(is_seen)


async def test_many_who_scrape_at_once_cost_one_look(anybody: httpx.AsyncClient, statements: Counter[str]) -> None:
    began = time.monotonic()
    answers = await asyncio.gather(*(anybody.get("/metrics") for _ in range(50)))
    assert {answer.status_code for answer in answers} == {200}
    assert (
        len({answer.content for answer in answers})
        == statements["diagnostics.oldest_due"]
        <= 1 + (time.monotonic() - began) // 1
    )


async def test_a_tenant_that_asks_for_its_figures_all_the_time_costs_one_look_a_second(
    callers: Callers, statements: Counter[str]
) -> None:
    one, another = await callers.make("viewer"), await callers.make("viewer", await callers.tenant())
    began = time.monotonic()
    answers = await asyncio.gather(*(caller.get("/stats") for caller in (one, another) for _ in range(30)))
    assert {answer.status_code for answer in answers} == {200}
    assert 2 <= statements["tenants.recent"] <= 2 * (1 + (time.monotonic() - began) // 1)


async def test_what_fails_is_not_computed_again_for_each_who_asks() -> None:
    computed = 0

    async def compute() -> int:
        nonlocal computed
        computed += 1
        await asyncio.sleep(0)
        raise TimeoutError

    cached = Cached(compute, 3600)
    found = await asyncio.gather(*(cached.get() for _ in range(5)), return_exceptions=True)
    assert [type(error) for error in found] == [TimeoutError] * 5
    with pytest.raises(TimeoutError):
        await cached.get()
    assert computed == 1


async def test_metrics_that_other_machines_can_reach_are_for_the_host_alone(database_url: str, pool: Pool) -> None:
    server = ApiServer(database_url, Settings(host="0.0.0.0", port=0), connections=2)
    await server.start()
    callers = Callers(server.address.replace("0.0.0.0", "127.0.0.1"), pool)
    try:
        where = f"{callers.address}/metrics"
        is_problem(await callers.of(None).get(where), 401, "unauthenticated")
        is_problem(await (await callers.make("worker")).get(where), 403, "forbidden")
        is_problem(await (await callers.make("admin", await callers.tenant())).get(where), 403, "forbidden")
        assert "evertick_nodes" in (await (await callers.make("viewer")).get(where)).text
        assert (await callers.of(None).get(f"{callers.address}/readyz")).status_code == 200
    finally:
        await callers.close()
        await server.stop()


async def test_metrics_may_be_opened(database_url: str) -> None:
    server = ApiServer(database_url, Settings(host="0.0.0.0", port=0, metrics_open=True), connections=2)
    await server.start()
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=60) as anybody:
            answer = await anybody.get(server.address.replace("0.0.0.0", "127.0.0.1") + "/metrics")
        assert answer.status_code == 200
    finally:
        await server.stop()


@pytest.mark.usefixtures("scheduler")
async def test_only_admins_of_the_host_see_the_names_of_machines(admin: Caller, callers: Callers) -> None:
    others = [await callers.make("viewer"), await callers.make("admin", await callers.tenant())]
    seen = [(await caller.get("/cluster")).json()["nodes"] for caller in (admin, *others)]
    assert [nodes[0]["node"] for nodes in seen] == ["test", *["node-9f86d0"] * 2]
    assert {nodes[0]["partitions"] for nodes in seen} == {seen[0][0]["partitions"]}


@pytest.mark.usefixtures("scheduler")
async def test_the_cluster_shows_nodes_partitions_and_lag(admin: Caller) -> None:
    cluster = (await admin.get("/cluster")).json()
    assert [(node["node"], node["is_alive"]) for node in cluster["nodes"]] == [("test", True)]
    assert cluster["partitions"]["total"] == 256
    assert cluster["lag_seconds"] >= 0
    assert cluster["tzdb"]


@pytest.mark.usefixtures("scheduler")
async def test_stats_show_rates_lag_depth_and_the_oldest_due_timer(admin: Caller) -> None:
    await admin.create(schedule="now")
    (attempt,) = await admin.lease()
    await admin.record({"token": attempt["token"], "result": "success"})
    stats = (await admin.get("/stats")).json()
    assert stats["fired_per_second"] == stats["finished_per_second"] == stats["succeeded_per_second"] == 1 / 60
    lag = stats["lag_ms"]
    assert 0 <= lag["p50"] <= lag["p95"] <= lag["p99"] <= lag["p999"] <= lag["max"]
    assert (stats["ready"], stats["running"]) == (0, 0)
    assert stats["oldest_due_at"] is None


async def test_an_address_that_is_taken_is_said_to_be(server: ApiServer, database_url: str) -> None:
    port = int(server.address.rpartition(":")[2])
    with pytest.raises(CannotListen, match=f"cannot listen on 127.0.0.1 port {port}"):
        await ApiServer(database_url, Settings(port=port)).start()


async def test_metrics_show_how_much_waits_in_each_queue_and_a_zero_when_it_is_empty(
    anybody: httpx.AsyncClient, admin: Caller, scheduler: Scheduler
) -> None:
    async def shown(name: str) -> float:
        page = (await anybody.get("/metrics")).text
        found = re.search(rf'^{name}{{queue="billing"}} (\S+)$', page, re.MULTILINE)
        return float(found[1]) if found else -1.0

    async def ready_is(count: int) -> None:
        async def is_shown() -> bool:
            return await shown("evertick_ready_attempts") == count

        await until(is_shown)

    for _ in range(3):
        await admin.create(schedule="now")
    await ready_is(3)
    assert await shown("evertick_oldest_ready_seconds") > 0
    assert len(await admin.lease(max=3)) == 3
    await ready_is(0)
    assert await shown("evertick_oldest_ready_seconds") == 0


async def test_queues_beyond_the_largest_are_shown_together(connection: asyncpg.Connection) -> None:
    for number in range(5):
        job = await add_job(connection, queue=f"queue-{number}")
        await connection.execute(
            "INSERT INTO ready_batches (lane_id, last_seq, first_seq, due_at, attempts, is_dispatched)"
            " VALUES ($1, 1, 1, clock_at() - interval '1 minute' * $2, $2, false)",
            *(job.lane_id, number + 1),
        )
    depths = {each.name: each for each in await ready.queue_depths(connection, ["queue-0", "empty"], 2)}
    assert {name: each.attempts for name, each in depths.items()} == {
        "queue-0": 1,
        "queue-4": 5,
        "queue-3": 4,
        "queue-2": 3,  # the empty one leaves its place
        None: 2,
    }
    assert 120 <= depths[None].oldest_seconds < 180


async def test_while_the_database_is_away_the_process_still_tells_its_own_figures(
    anybody: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> None:
        raise ConnectionResetError

    hook_every_pool(monkeypatch, "diagnostics.oldest_due", away)
    page = (await anybody.get("/metrics")).text
    assert "evertick_database_up 0.0" in page
    assert "evertick_event_loop_delay_seconds_count" in page
    assert 'evertick_statement_errors_total{statement="diagnostics.oldest_due"}' in page
    assert "evertick_nodes" not in page


async def test_a_key_for_metrics_opens_nothing_else(database_url: str, pool: Pool) -> None:
    key = "a-key-for-metrics-alone"
    server = ApiServer(database_url, Settings(port=0, metrics_key=key), connections=2)
    await server.start()
    callers = Callers(server.address, pool)
    try:
        where = f"{callers.address}/metrics"
        is_problem(await callers.of(None).get(where), 401, "unauthenticated")  # though it listens on loopback
        is_problem(await callers.of(key[:-1]).get(where), 401, "unauthenticated")
        assert (await callers.of(key).get(where)).status_code == 200
        assert (await (await callers.make("viewer")).get(where)).status_code == 200
        is_problem(await callers.of(key).get("/stats"), 401, "unauthenticated")
    finally:
        await callers.close()
        await server.stop()


@pytest.mark.usefixtures("scheduler")
async def test_what_a_pull_worker_leases_is_observed_by_the_api(admin: Caller) -> None:
    lag = LAG.of("api", "billing")
    before = lag.count
    await admin.create(schedule="now")
    await admin.lease()
    assert lag.count == before + 1
