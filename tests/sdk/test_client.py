"""The client against a real server: every call, pages, and what it raises."""

import asyncio
import logging
import math
import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from evertick.api.app import operations
from evertick.client import AsyncClient, Client, Conflict, Forbidden, Invalid, NotFound, Unauthorized
from evertick.contract.runs import Gap, Run
from evertick.contract.workers import OutcomeReport
from evertick.domain.access import KeyRole
from evertick.domain.breaker import TenantHost
from evertick.domain.errors import InvalidFields, InvalidInput
from evertick.store.tenants import target_hosts
from sdk.served import HOST_TENANT, Served, worker_target

NOON = "0 12 * * *"
WRONG_KEY = "evt_wrong"


@pytest.fixture
def asked(caplog: pytest.LogCaptureFixture) -> Callable[[], set[tuple[str, str]]]:
    """All that clients have asked for, by the log of httpx: methods and paths."""
    caplog.set_level(logging.INFO, "httpx")

    def requests() -> set[tuple[str, str]]:
        logged = [record.args for record in caplog.records if record.name == "httpx"]
        return {(str(args[0]), httpx.URL(str(args[1])).path) for args in logged if isinstance(args, tuple)}

    return requests


async def _call_about_jobs(client: AsyncClient) -> str:
    job = await client.jobs.create(name="report", schedule=NOON, target=worker_target(), payload={"n": 2**70})
    assert (job.name, job.status, job.spec_version, job.payload) == ("report", "active", 1, {"n": 2**70})
    verdicts = await client.jobs.create_many([{"schedule": "manual", "target": worker_target()}, {"schedule": "?"}])
    assert [(verdict.line, verdict.status) for verdict in verdicts] == [(1, 201), (2, 422)]
    assert verdicts[1].errors
    assert await client.jobs.get(job.job_id) == job
    edited = await client.jobs.update(job.job_id, if_match=1, timezone="Europe/Berlin", max_retries=0)
    assert (edited.timezone, edited.spec_version) == ("Europe/Berlin", 2)
    put = await client.jobs.replace("a/b ü.", schedule="manual", target=worker_target())
    assert put.name == "a/b ü."
    assert (await client.jobs.get_by_name("a/b ü.")).job_id == put.job_id
    assert [each.name async for each in client.jobs.list(name_prefix="a/")] == ["a/b ü."]
    assert (await client.jobs.pause(job.job_id, "holiday")).pause_reason == "holiday"
    assert (await client.jobs.resume(job.job_id, missed="run_once")).status == "active"
    assert len(await client.jobs.upcoming(job.job_id, count=3)) == 3
    await client.jobs.delete(put.job_id)
    return job.job_id


async def _call_as_a_worker(house: Served, client: AsyncClient, job_id: str) -> str:
    """Runs the job until it is dead."""
    run = await client.jobs.trigger(job_id, {"n": 1})
    assert run.reason == "manual"
    lease = await client.workers.lease("default", "w1", max=10, wait_seconds=10)
    (attempt,) = lease.attempts
    assert (attempt.run_id, attempt.payload, attempt.handler) == (run.run_id, {"n": 1}, "handle")
    assert (await client.workers.heartbeat("w1", [attempt.token])).cancel == ()
    failure = OutcomeReport(token=attempt.token, result="failed", error="no", retryable=False)
    assert (await client.workers.record("w1", [failure])).recorded == 1
    assert (await client.workers.record("w1", [failure])).stale == (attempt.token,)
    detail = await house.until_run(client, run.run_id, "dead")
    assert [(each.attempt, each.result, each.error) for each in detail.attempts] == [(1, "failed", "no")]
    return run.run_id


async def _call_about_runs(house: Served, client: AsyncClient, job_id: str, dead: str) -> None:
    entries = [entry async for entry in client.jobs.runs(job_id)]
    assert [entry.run_id for entry in entries if isinstance(entry, Run)] == [dead]
    assert [run.run_id async for run in client.runs.list(status="dead")] == [dead]
    assert [letter.run_id async for letter in client.dead_letters.list(job_id=job_id)] == [dead]
    again = await client.dead_letters.replay(dead)
    assert (await client.runs.cancel(again.run_id)).status == "cancelled"
    assert (await client.runs.replay(again.run_id)).reason == "replay"
    assert (await client.dead_letters.replay_many(job_id=job_id)).replayed == 0
    other = await client.jobs.create(schedule="manual", target=worker_target(queue="other"), max_retries=0)
    run = await client.jobs.trigger(other.job_id)
    (attempt,) = (await client.workers.lease("other", "w1", wait_seconds=10)).attempts
    await client.workers.record("w1", [OutcomeReport(token=attempt.token, result="timed_out")])
    await house.until_run(client, run.run_id, "dead")
    await client.dead_letters.dismiss(run.run_id)


async def _call_about_replays(client: AsyncClient, job_id: str) -> None:
    replay_id = (await client.dead_letters.replay_many(job_id=job_id, background=True)).replay_id
    assert replay_id is not None
    assert [replay.replay_id async for replay in client.replays.list()] == [replay_id]
    assert (await client.replays.get(replay_id)).status == "running"
    assert (await client.replays.cancel(replay_id)).status == "cancelled"


async def _call_about_queues(client: AsyncClient) -> None:
    limited = await client.queues.update("reports", max_running=5, max_ready=1000, rate_limit=2.5, rate_burst=3)
    assert (limited.max_ready, limited.rate_limit) == (1000, 2.5)
    assert limited in [queue async for queue in client.queues.list(page_size=1)]
    assert await client.queues.get("reports") == limited


async def _call_about_targets(house: Served, client: AsyncClient) -> None:
    await target_hosts.add(house.pool, [TenantHost(HOST_TENANT, host) for host in ("[::1]:8080", "api.example.com")])
    assert [each.host async for each in client.targets.list(page_size=1)] == ["[::1]:8080", "api.example.com"]
    assert (await client.targets.reset("[::1]:8080")).state == "closed"
    assert (await client.targets.update("[::1]:8080", rate_limit=2.5, rate_burst=3)).rate_limit == 2.5


async def _call_about_alerts(client: AsyncClient) -> None:
    target = await client.alerts.set_target("https://hooks.example.invalid/alerts", conditions=["late", "fuse"])
    assert target.conditions == ("fuse", "late")
    assert await client.alerts.target() == target
    assert (await client.alerts.test()).job_id == target.job_id
    assert [alert async for alert in client.alerts.list(status="open", page_size=1)] == []
    await client.alerts.remove_target()


async def _call_about_events(client: AsyncClient) -> None:
    stream = await client.events.set_stream(types=["run.finished"])
    assert (await client.events.stream()).created_at == stream.created_at
    assert [event async for event in client.events.list(types=["gap.removed"], page_size=1)] == []
    await client.events.remove_stream()


async def _call_about_connections(client: AsyncClient) -> None:
    servers = {"servers": ["10.0.0.1"]}
    made = await client.connections.create("orders", "nats", settings=servers, secrets={"token": "t"})
    assert made.secrets == ("token",)
    replaced = await client.connections.replace("orders", "nats", settings={**servers, "username": "evertick"})
    assert (await client.connections.get("orders")) == replaced
    assert [each.name async for each in client.connections.list(page_size=1)] == ["orders"]
    assert not (await client.connections.test("orders")).is_usable
    await client.connections.delete("orders")


async def _call_about_forecasts(client: AsyncClient) -> None:
    herd = [{"schedule": "0 3 * * *", "target": worker_target(), "labels": {"herd": "yes"}}] * 30
    await client.jobs.create_many(herd)
    assert (await client.forecast.get("24h", labels={"herd": "yes"})).peak == 30
    advice = await client.forecast.advice(labels={"herd": "yes"})
    smear = await client.forecast.apply(advice, labels={"herd": "yes"})
    assert (await client.forecast.smear(smear.smear_id)).jobs == 30
    assert smear.smear_id in [each.smear_id async for each in client.forecast.smears()]
    assert (await client.forecast.undo(smear.smear_id)).status == "undoing"
    assert (await client.attention()).needs is not None
    assert [each.worker_id async for each in client.workers.list()]


async def _call_as_an_admin(client: AsyncClient) -> None:
    assert (await client.preview(NOON, count=2)).description
    assert [node.is_alive for node in (await client.cluster()).nodes] == [True]
    assert (await client.stats()).window_seconds > 0
    tenant = await client.tenants.create("acme", weight=2)
    assert tenant.api_key not in repr(tenant)
    assert (await client.tenants.get(tenant.tenant_id)).weight == 2
    assert (await client.tenants.update(tenant.tenant_id, weight=3)).weight == 3
    assert "acme" in [each.name async for each in client.tenants.list(page_size=1)]
    key = await client.api_keys.create("viewer", name="dashboard")
    assert key.api_key not in repr(key)
    newer = await client.api_keys.rotate(key.key_id, grace_seconds=60)
    assert (await client.api_keys.get(newer.key_id)).role == "viewer"
    await client.api_keys.revoke(newer.key_id)
    assert newer.key_id in [each.key_id async for each in client.api_keys.list(page_size=1)]
    assert "create_tenant" in [change.action async for change in client.audit_log.list(page_size=5)]


async def test_every_operation_of_the_api_has_a_call(
    house: Served, client: AsyncClient, asked: Callable[[], set[tuple[str, str]]]
) -> None:
    job_id = await _call_about_jobs(client)
    dead = await _call_as_a_worker(house, client, job_id)
    await _call_about_runs(house, client, job_id, dead)
    await _call_about_targets(house, client)
    await _call_about_queues(client)
    await _call_about_connections(client)
    await _call_about_alerts(client)
    await _call_about_events(client)
    await _call_about_replays(client, job_id)
    await _call_about_forecasts(client)
    await _call_as_an_admin(client)
    offered = {(operation.method, operation.path) for operation in operations() if operation.role is not None}
    called = {each for each in offered for method, path in asked() if each[0] == method and _matches(each[1], path)}
    assert offered - called == set()


def _matches(template: str, path: str) -> bool:
    pattern = re.sub(r"\\\{\w+\\\}", "[^/]+" if "by-name" not in template else ".+", re.escape(template))
    return re.fullmatch(pattern, path) is not None


async def test_plain_code_makes_the_same_calls(house: Served) -> None:
    def work() -> list[str]:
        with house.sync_client() as client:
            job = client.jobs.create(name="plain", schedule="manual", target=worker_target())
            run = client.jobs.trigger(job.job_id)
            assert client.runs.get(run.run_id).job_id == job.job_id
            client.jobs.create_many([{"schedule": "manual", "target": worker_target()}] * 4)
            return [each.job_id for each in client.jobs.list(page_size=2)]

    ids = await asyncio.to_thread(work)
    assert len(ids) == len(set(ids)) == 5


async def test_a_list_goes_on_over_all_pages_with_its_filters(
    client: AsyncClient, asked: Callable[[], set[tuple[str, str]]], caplog: pytest.LogCaptureFixture
) -> None:
    labelled = [{"schedule": "manual", "target": worker_target(), "labels": {"n": str(n % 2)}} for n in range(12)]
    await client.jobs.create_many(labelled)
    caplog.clear()
    assert len([job async for job in client.jobs.list(labels={"n": "1"}, page_size=2)]) == 6
    assert asked() == {("GET", "/api/v1/jobs")}


async def test_gaps_stand_among_the_runs(house: Served, client: AsyncClient) -> None:
    job = await client.jobs.create(schedule=NOON, target=worker_target(), start_at="2026-01-01T00:00:00Z")
    await house.pool.execute(
        "INSERT INTO gaps (job_id, first_at, last_at, ticks, reason, spec_version)"
        " SELECT job_id, clock_at(), clock_at(), 3, 'overlap', 1 FROM jobs"
    )
    (gap,) = [entry async for entry in client.jobs.runs(job.job_id)]
    assert isinstance(gap, Gap)
    assert (gap.status, gap.count) == ("skipped", 3)


async def test_problems_are_raised_as_what_they_are(house: Served, client: AsyncClient) -> None:
    fields: dict[str, Any] = {"name": "one", "schedule": "manual", "target": worker_target()}
    job = await client.jobs.create(**fields)
    with pytest.raises(NotFound, match=r"GET /api/v1/jobs/job_0: there is no job job_0 \(404, request \w+\)"):
        await client.jobs.get("job_0")
    with pytest.raises(Conflict) as taken:
        await client.jobs.create(**fields)
    assert taken.value.type == "urn:evertick:problem:name-taken"
    with pytest.raises(Conflict) as changed:
        await client.jobs.update(job.job_id, if_match=7, max_retries=1)
    assert changed.value.status == 412
    with pytest.raises(Invalid) as invalid:
        await client.jobs.create(schedule="61 * * * *", target={"type": "pigeon"}, max_retries=-1)
    assert {"/target/type", "/max_retries"} <= {fault.pointer for fault in invalid.value.errors}
    async with AsyncClient(house.url, await house.key(KeyRole.VIEWER)) as viewer:
        with pytest.raises(Forbidden):
            await viewer.jobs.delete(job.job_id)


async def test_a_wrong_key_is_unauthorized_and_shown_nowhere(house: Served) -> None:
    async with AsyncClient(house.url, WRONG_KEY) as client:
        parts = [vars(part) for part in vars(client).values()]
        assert WRONG_KEY not in repr(client) + repr(vars(client)) + repr(parts)
        with pytest.raises(Unauthorized) as error:
            await client.stats()
    told = str(error.getrepr(style="long", showlocals=True))
    assert WRONG_KEY not in repr(error.value) + str(error.value) + told


def test_a_password_in_a_url_is_refused_and_shown_nowhere() -> None:
    with pytest.raises(InvalidInput, match="must have no user or password") as error:
        Client("http://user:hunter2@127.0.0.1:1", "evt_x")
    assert "hunter2" not in str(error.value)
    with Client("http://127.0.0.1:1/mounted@here", "evt_x") as client:
        assert repr(client) == "<Client http://127.0.0.1:1/mounted@here>"


@pytest.mark.parametrize("beside", [None, 2**70])
def test_a_number_that_json_cannot_say_is_refused_and_not_sent_as_null(beside: int | None) -> None:
    payload = {"beside": beside, "rates": (1.5, math.nan, {"a/b": -math.inf})}
    with Client("http://127.0.0.1:1", "evt_x") as client, pytest.raises(InvalidFields) as error:
        client.jobs.create(name="report", schedule=NOON, target=worker_target(), payload=payload)
    reason = "is NaN or infinite: JSON has no such number"
    assert error.value.faults == (("/payload/rates/1", reason), ("/payload/rates/2/a~1b", reason))


def test_calls_keep_their_names_and_words() -> None:
    with Client("http://127.0.0.1:1", "evt_x") as client:
        assert client.jobs.pause.__name__ == "pause"
        assert client.jobs.pause.__doc__ == "Pause a job: no tick fires until it is resumed."
