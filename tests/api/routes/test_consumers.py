"""Runs that stay open until a consumer reports their outcome, with a real executor and a real server."""

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from api.callers import Caller, Callers
from engine import until
from evertick.metrics.catalog import HANDED_OVER
from publishing import MAKE_REPORTED, Publisher, publishing

pytestmark = pytest.mark.usefixtures("scheduler")


class World:
    """What a test of consumers needs: jobs whose outcomes are reported, and a consumer with a worker's key."""

    def __init__(self, admin: Caller, consumer: Caller, connection: asyncpg.Connection, publisher: Publisher) -> None:
        self.admin = admin
        self.consumer = consumer
        self.connection = connection
        self.publisher = publisher

    async def job(self, **fields: Any) -> dict[str, Any]:
        """A job that is run by hand. The spec is written here: brokers are tested elsewhere."""
        job = await self.admin.create(schedule="0 0 1 1 *", retry_delay_seconds=0, **fields)
        await self.connection.execute(MAKE_REPORTED)
        return job

    async def publish(self, **fields: Any) -> tuple[str, str]:
        """A run that was published: its id and the token of its message."""
        return await self.trigger(await self.job(**fields))

    async def trigger(self, job: dict[str, Any]) -> tuple[str, str]:
        answer = await self.admin.post(f"/jobs/{job['job_id']}/trigger", json={})
        return answer.json()["run_id"], await self.token()

    async def token(self) -> str:
        return (await self.publisher.next())["token"]

    async def until_held(self, token: str, worker: str = "(consumer)") -> None:
        async def is_held() -> bool:
            lane_id, seq = map(int, token.split("."))
            holder: str | None = await self.connection.fetchval(
                "SELECT worker FROM leases WHERE lane_id = $1 AND first_seq = $2 AND last_seq = $2", lane_id, seq
            )
            return holder is not None and holder.endswith(f"/{worker}")

        await until(is_held)

    async def run(self, run_id: str) -> dict[str, Any]:
        run: dict[str, Any] = (await self.admin.get(f"/runs/{run_id}")).json()
        return run

    async def until_status(self, run_id: str, *statuses: str) -> dict[str, Any]:
        async def has_status() -> bool:
            return (await self.run(run_id))["status"] in statuses

        await until(has_status)
        return await self.run(run_id)

    async def beat(self, *tokens: str, worker: str = "c") -> list[str]:
        """What a consumer is told to stop."""
        answer = await self.consumer.post(f"/workers/{worker}/heartbeat", json={"tokens": tokens})
        stopped: list[str] = answer.json()["cancel"]
        return stopped

    async def has_no_leases(self) -> bool:
        return bool(await self.connection.fetchval("SELECT count(*) FROM leases") == 0)


@pytest.fixture
async def world(
    callers: Callers, admin: Caller, connection: asyncpg.Connection, database_url: str
) -> AsyncIterator[World]:
    publisher = Publisher()
    world = World(admin, await callers.make("worker"), connection, publisher)
    async with publishing(database_url, publisher, "billing"):
        yield world


async def test_a_run_stays_open_until_its_consumer_reports_it(world: World) -> None:
    handed_over = HANDED_OVER.value("dispatcher")
    run_id, token = await world.publish()
    await world.until_held(token)
    assert HANDED_OVER.value("dispatcher") == handed_over + 1
    run = await world.run(run_id)
    assert (run["status"], run["worker_id"]) == ("running", "(consumer)")
    outcome = {"token": token, "result": "success", "output": {"sent": 3}}
    assert await world.consumer.record(outcome, worker="c") == {"recorded": 1, "stale": []}
    assert await world.consumer.record(outcome, worker="c") == {"recorded": 0, "stale": [token]}
    run = await world.run(run_id)
    assert (run["status"], run["worker_id"], run["attempts"][0]["excerpt"]) == ("success", "c", '{"sent":3}')
    await until(world.has_no_leases)


async def test_a_failure_that_is_reported_is_tried_again_with_a_larger_token(world: World) -> None:
    run_id, first = await world.publish()
    await world.consumer.record({"token": first, "result": "failed", "error": "no paper"})
    second = await world.token()
    assert int(second.split(".")[1]) > int(first.split(".")[1])
    # The first message is delivered again.
    assert await world.consumer.record({"token": first, "result": "success"}) == {"recorded": 0, "stale": [first]}
    assert await world.beat(first) == [first]
    assert (await world.consumer.record({"token": second, "result": "success"}))["recorded"] == 1
    attempts = (await world.run(run_id))["attempts"]
    assert [(each["result"], each["error"]) for each in attempts] == [("failed", "no paper"), ("success", None)]


async def test_an_outcome_that_comes_before_the_brokers_acknowledgement_counts(world: World) -> None:
    async def report(token: str) -> None:
        assert await world.consumer.record({"token": token, "result": "success"}, worker="fast") == {
            "recorded": 1,
            "stale": [],
        }

    world.publisher.before_answer = report
    run_id, _ = await world.publish()
    run = await world.until_status(run_id, "success")
    assert (run["worker_id"], run["attempt"]) == ("fast", 1)
    await until(world.has_no_leases)


async def test_a_heartbeat_before_the_acknowledgement_claims_the_attempt(world: World) -> None:
    async def beat(token: str) -> None:
        assert await world.beat(token) == []

    world.publisher.before_answer = beat
    run_id, token = await world.publish()
    await world.until_held(token, "c")
    assert (await world.run(run_id))["worker_id"] == "c"
    assert await world.beat(token) == []
    assert await world.beat(token, worker="another") == [token]
    assert (await world.consumer.record({"token": token, "result": "success"}, worker="another"))["stale"] == [token]
    assert (await world.consumer.record({"token": token, "result": "success"}, worker="c"))["recorded"] == 1
    await until(world.has_no_leases)


async def test_a_consumer_that_dies_is_lost_and_the_run_tried_again(world: World) -> None:
    run_id, token = await world.publish()
    await world.until_held(token)
    await world.beat(token)
    await world.connection.execute("UPDATE leases SET expires_at = clock_at()")
    second = await world.token()
    attempts = (await world.run(run_id))["attempts"]
    assert [(each["result"], each["worker_id"]) for each in attempts[:1]] == [("lost", "c")]
    assert await world.beat(token, second) == [token]


async def test_what_nobody_reports_is_timed_out_and_at_last_a_dead_letter(world: World) -> None:
    run_id, _ = await world.publish(timeout_seconds=1, max_retries=0)
    run = await world.until_status(run_id, "dead")
    assert [each["result"] for each in run["attempts"]] == ["timed_out"]
    assert "within the job's timeout" in run["error"]


@pytest.mark.parametrize("is_claimed", [False, True])
async def test_a_cancellation_reaches_the_consumer_by_its_heartbeat(world: World, *, is_claimed: bool) -> None:
    run_id, token = await world.publish()
    await world.until_held(token)
    if is_claimed:
        assert await world.beat(token) == []
    assert (await world.admin.post(f"/runs/{run_id}/cancel")).status_code == 200
    assert await world.beat(token) == [token]
    assert (await world.consumer.record({"token": token, "result": "success"}))["stale"] == [token]
    assert (await world.run(run_id))["status"] == "cancelled"


async def test_a_run_waits_at_its_gate_until_the_one_before_it_is_reported(world: World) -> None:
    job = await world.job(concurrency_key="one", max_running=1)
    _, first = await world.trigger(job)
    await world.until_held(first)
    waiting = (await world.admin.post(f"/jobs/{job['job_id']}/trigger", json={})).json()["run_id"]
    run = await world.until_status(waiting, "pending")
    assert world.publisher.published.empty()
    await world.consumer.record({"token": first, "result": "success"})
    second = await world.token()
    await world.until_held(second)
    run = await world.run(waiting)
    assert run["status"] == "running"
    await world.consumer.record({"token": second, "result": "success"})
    await until(world.has_no_leases)


async def test_another_tenant_neither_claims_nor_reports(world: World, callers: Callers) -> None:
    run_id, token = await world.publish()
    await world.until_held(token)
    other = await callers.make("worker", await callers.tenant())
    answer = await other.post("/workers/c/heartbeat", json={"tokens": [token]})
    assert answer.json()["cancel"] == [token]
    assert (await other.record({"token": token, "result": "success"}))["stale"] == [token]
    assert (await world.run(run_id))["status"] == "running"
