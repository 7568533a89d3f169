"""The remote worker against a real server: the handlers of an app, over HTTP alone."""

import asyncio

import httpx
import pytest

from engine import until
from evertick import App, Run
from evertick.client import AsyncClient, Unauthorized, Unreachable
from evertick.domain.access import KeyRole
from evertick.metrics.catalog import HTTP_REQUESTS
from evertick.sdk.remote import Worker
from sdk.served import Served, served, submitted, worker_of, worker_target


def _handle() -> None: ...


async def test_a_remote_worker_runs_the_same_handlers_as_the_app(house: Served, client: AsyncClient) -> None:
    app = App(name="shop", queue="default")
    runs: dict[str, Run] = {}

    @app.handler()
    async def send_invoice(run: Run, customer: str) -> dict[str, str]:
        runs["async"] = run
        return {"sent": customer}

    @app.handler()
    def print_invoice(run: Run, pages: int = 1) -> int:
        runs["sync"] = run
        return pages + 1

    async with (await worker_of(house, app)).running() as worker:
        sent = await submitted(client, "send_invoice", {"customer": "c.1"}, name="a%b.{{c}}")
        printed = await submitted(client, "print_invoice", {"pages": 2})
        detail = await house.until_run(client, sent, "success")
        other = await house.until_run(client, printed, "success")
    assert (detail.attempts[0].excerpt, other.attempts[0].excerpt) == ('{"sent":"c.1"}', "3")
    assert detail.attempts[0].worker_id == worker.name
    run = runs["async"]
    assert (run.run_id, run.job_id, run.fire_at) == (sent, detail.job_id, detail.scheduled_at)
    assert (run.name, run.attempt, run.reason) == ("a%b.{{c}}", 1, "manual")
    assert run.fencing_token == detail.attempts[0].token
    assert run.idempotency_key.startswith(detail.job_id)
    assert detail.started_at is not None
    assert detail.started_at >= detail.scheduled_at, "by the database's clock"
    assert worker.counters.executed == worker.counters.leased == 2


async def test_a_worker_for_which_the_server_has_no_room_asks_again_until_it_has(database_url: str) -> None:
    done = asyncio.Event()

    async def handle(run: Run) -> None:
        done.set()

    async with served(database_url, max_long_polls_per_tenant=1) as house, house.client() as client:
        taken = asyncio.create_task(client.workers.lease("another", "first", wait_seconds=30))
        before = HTTP_REQUESTS.value("lease", "429")
        async with httpx.AsyncClient(base_url=house.url, trust_env=False, timeout=120) as anybody:

            async def is_refused() -> bool:
                return HTTP_REQUESTS.value("lease", "429") > before

            async def waits() -> bool:
                return "evertick_long_polls 1.0" in (await anybody.get("/metrics")).text

            await until(waits)
            async with (await worker_of(house, {"handle": handle})).running():
                await until(is_refused)
                taken.cancel()
                await submitted(client, "handle")
                await done.wait()


async def test_an_idempotency_key_is_the_servers_to_the_letter(house: Served, client: AsyncClient) -> None:
    keys: list[str] = []

    async def handle(run: Run) -> None:
        keys.append(run.idempotency_key)

    async with (await worker_of(house, {"handle": handle})).running():
        run_id = await submitted(client, "handle", name="a%b.{{c}}", idempotency_key_template="{{name}}-x")
        await house.until_run(client, run_id, "success")
    assert keys == ["a%25b%2E{{c}}-x"]


async def test_a_worker_draws_from_all_its_queues_as_much_as_it_can_run(house: Served, client: AsyncClient) -> None:
    running = most = 0

    async def handle(run: Run) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    jobs = [{"schedule": "now", "target": worker_target(queue=queue)} for queue in ("red", "blue") for _ in range(150)]
    async with (await worker_of(house, {"handle": handle}, queues=["red", "blue"], concurrency=7)).running() as worker:
        await client.jobs.create_many(jobs)

        async def all_done() -> bool:
            return worker.counters.succeeded == len(jobs)

        await until(all_done)
    assert most <= 7
    assert await house.pool.fetchval("SELECT count(*) FROM outcomes WHERE result = 'success'") == len(jobs)
    assert await house.pool.fetchval("SELECT count(*) FROM leases") == 0


async def test_a_worker_that_cannot_work_says_so_at_once(house: Served) -> None:
    assert house.api_key not in repr(vars(Worker({"handle": _handle}, house.url, house.api_key)))
    with pytest.raises(Unauthorized):
        await Worker({"handle": _handle}, house.url, "evt_wrong").start()
    with pytest.raises(Unreachable):
        await Worker({"handle": _handle}, "http://127.0.0.1:1", house.api_key).start()


async def test_jobs_that_the_app_declares_are_put_if_the_key_may(
    house: Served, client: AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(name="shop")
    app.cron("0 12 * * *", name="noon")(_handle)
    app.schedule("now", name="seed")(_handle)
    async with (await worker_of(house, app)).running():
        assert [job.name async for job in client.jobs.list()] == []
    assert "role is not `app`, so the jobs that the app declares stay as they are: noon" in caplog.text
    async with Worker(app, house.url, await house.key(KeyRole.APP)).running():
        assert [job.name async for job in client.jobs.list(labels={"app": "shop"})] == ["noon"]
    assert "job seed is not put: only an App with a database registers one-offs" in caplog.text
