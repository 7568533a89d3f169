import json
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from click.testing import CliRunner

from cli.processes import evertick
from engine import until
from evertick.cli.main import app
from evertick.client import ApiError, AsyncClient
from evertick.config.settings import Settings
from evertick.roles.dispatcher.settings import seal_of
from evertick.store.database import connect
from evertick.usecases.tenants import secrets
from evertick.wiring import connected_tenant

SECRETS = {
    "database": "s3cret-of-database",
    "metrics": "s3cret-of-metrics",
    "sealing": "s3cret-that-seals-the-others-at-rest",
    "payload": "s3cret-in-payload",
    "header": "s3cret-in-header",
    "query": "s3cret-in-query",
    "answer": "s3cret-in-answer",
}


@pytest.fixture
async def failing_url() -> AsyncIterator[str]:
    """A receiver that refuses each delivery, and repeats what it was sent."""

    async def refuse(request: web.Request) -> web.Response:
        return web.Response(status=500, text=SECRETS["answer"] + await request.text())

    receiver = web.Application()
    receiver.router.add_post("/", refuse)
    runner = web.AppRunner(receiver, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    await runner.cleanup()


async def test_the_log_is_json_and_has_no_secrets(database_url: str, failing_url: str) -> None:
    url = database_url.replace("postgres@", f"postgres:{SECRETS['database']}@")
    environment = {
        "EVERTICK_LOG_FORMAT": "json",
        "EVERTICK_SECRET_KEY": SECRETS["sealing"],
        "EVERTICK_DATABASE_URL": url,
        "EVERTICK_DATABASE_DIRECT_URL": url,
        "EVERTICK_METRICS_KEY": SECRETS["metrics"],
        "EVERTICK_METRICS_PORT": "0",
        "EVERTICK_EGRESS_ALLOW": "127.0.0.0/8",
        "EVERTICK_EGRESS_ALLOW_HTTP": "true",
    }
    async with evertick("up", "--log-level", "debug", **environment) as up:
        address = (await up.ready()).split()[-1]
        api_key = (await up.line()).split()[-1]
        webhook_secret = await _webhook_secret(database_url)
        async with AsyncClient(address, api_key) as client:
            run_id = await _failed_delivery(client, failing_url)
            with pytest.raises(ApiError):
                await client.jobs.get(api_key)
            await _lose_connections(database_url)
            await client.cluster()
        assert await up.stop() == 0
    lines = [json.loads(line) for line in up.log]
    assert [line for line in lines if line.get("run_id") == run_id and line["logger"] == "evertick.dispatcher"]
    assert [line for line in lines if line["message"].startswith("took ") and line["epochs"]["0"] >= 1]
    text = "".join(up.log)
    hidden = SECRETS | {"key": api_key, "webhook": webhook_secret.removeprefix("whsec_")}
    assert not [name for name, secret in hidden.items() if secret in text]


async def _failed_delivery(client: AsyncClient, url: str) -> str:
    headers = {"Authorization": SECRETS["header"]}
    target = {"type": "http", "url": f"{url}?token={SECRETS['query']}", "headers": headers}
    job = await client.jobs.create(
        name="nightly", schedule="@yearly", target=target, payload=SECRETS["payload"], max_retries=0
    )
    run_id = (await client.jobs.trigger(job.job_id)).run_id

    async def is_dead() -> bool:
        return (await client.runs.get(run_id)).status == "dead"

    await until(is_dead)
    return run_id


async def _webhook_secret(database_url: str) -> str:
    async with connected_tenant(database_url, "default") as tenant:
        return (await secrets.show(tenant, seal_of(Settings(secret_key=(SECRETS["sealing"],))))).current


async def _lose_connections(database_url: str) -> None:
    connection = await connect(database_url)
    await connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    await connection.close()


async def test_the_option_overrides_the_setting(database_url: str) -> None:
    async with evertick(
        "scheduler", "--database-url", database_url, "--log-format", "text", EVERTICK_LOG_FORMAT="json"
    ) as scheduler:
        await scheduler.ready()
        assert await scheduler.stop() == 0
    assert " INFO    scheduler: scheduler " in "".join(scheduler.log)


def test_an_unknown_format_is_refused() -> None:
    refused = CliRunner().invoke(app, ["scheduler", "--log-format", "xml"])
    assert refused.exit_code == 2
    assert "must be one of text, json" in refused.output
