"""The examples that go over HTTP, and the commands on their pages, against one `evertick up`."""

import re
import shlex
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from cli.commands import Cli
from evertick import AsyncClient
from front_door import EXAMPLES, TIMEOUT_SECONDS, Server, stopped, told

ROOT = Path(__file__).parents[2]
RECEIVER = EXAMPLES / "webhook-receiver"
GUIDE = ROOT / "docs" / "http-api.md"

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_the_receiver_acts_on_what_the_commands_of_its_page_send(server: Server) -> None:
    page = (RECEIVER / "README.md").read_text(encoding="utf-8")
    serve, add, trigger = (
        shlex.split(re.search(rf"^\$ (?:\S+=\S+ )?{command} (.*)$", page, re.MULTILINE)[1])  # type: ignore[index]
        for command in ("uvicorn", "evertick jobs add", "evertick jobs trigger")
    )
    on_database = Cli.at("--data-dir", str(server.data_dir))
    over_api = Cli.at("--url", server.url, EVERTICK_API_KEY=server.api_key)
    secret = (await on_database.json("secrets", "show"))["current"]
    command = [sys.executable, "-m", "uvicorn", *(word.replace("8800", "0") for word in serve)]
    async with server.running(*command, cwd=RECEIVER, WEBHOOK_SECRETS=secret) as receiver:
        url = (await told(receiver.stderr, r"running on (http://\S+)"))[1]
        await over_api("jobs", "add", *(word.replace("http://127.0.0.1:8800", url) for word in add))
        await over_api("jobs", "trigger", *trigger)
        await told(receiver.stdout, r"^report of .*, attempt 1: \{'type': 'weekly'\}")
        async with httpx.AsyncClient(trust_env=False, timeout=120) as stranger:
            assert (await stranger.post(url, json={})).status_code == 401
            assert (await stranger.post(url, content=bytes(64 * 1024 + 1))).status_code == 413
        await told(receiver.stdout, "refused: there is no readable webhook-timestamp")
        await over_api("jobs", "delete", "report")


async def test_the_remote_worker_runs_jobs_with_a_key_for_nothing_else(server: Server) -> None:
    async with AsyncClient(server.url, server.api_key) as client:
        key = await client.api_keys.create(role="worker")
        command = (sys.executable, "remote_worker.py")
        async with server.running(*command, EVERTICK_API_KEY=key.api_key) as worker:
            await told(worker.stderr, "remote worker .* started on billing")
            target = {"type": "worker", "queue": "billing"}
            await client.jobs.create(
                schedule="now", target=target | {"handler": "send_invoice"}, payload={"customer": "c1"}
            )
            await told(worker.stderr, "an invoice for c1, once per job_")
            await client.jobs.create(
                schedule="now", target=target | {"handler": "close_books"}, payload={"month": "June"}
            )
            await told(worker.stderr, "the books of June are closed")
            assert await stopped(worker) == 0


async def test_a_one_off_in_three_days_is_promised_once(server: Server) -> None:
    command = (sys.executable, "one_off_in_three_days.py")
    said = await server.output(*command)
    found = re.fullmatch(r"job_\w+ is active\nit runs at \S+, which is (.*) UTC\n", said)
    assert found, said
    left = datetime.fromisoformat(found[1]).replace(tzinfo=UTC) - datetime.now(UTC)
    assert timedelta(days=3) - timedelta(seconds=TIMEOUT_SECONDS) < left <= timedelta(days=3)
    assert await server.output(*command) == said


async def test_curl_walks_through_the_life_of_a_job(server: Server) -> None:
    said = await server.output("sh", "curl.sh")
    (job_id,) = set(re.findall(r'"job_id":"(\w+)"', said))
    (run_id,) = set(re.findall(r'"run_id":"(\w+)"', said))
    assert re.search(r'"status":"paused".*"pause_reason":"the office is closed"', said)
    async with AsyncClient(server.url, server.api_key) as client:
        assert job_id not in [job.job_id async for job in client.jobs.list()]
        assert (await client.runs.get(run_id)).reason == "manual"


async def test_the_commands_of_the_guide_do_what_it_says(server: Server) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    outputs = [await server.output("sh", "-euc", block) for block in blocks]
    first, targets, limited, pull, queues, keys, errors, idempotency, letters, pages = outputs
    assert targets == "[]"
    assert limited.endswith('"rate_limit":50.0,"rate_burst":100}')
    limits = '"max_running":5,"max_ready":100000,"rate_limit":2.5,"rate_burst":null'
    assert queues.startswith(f'{{"name":"reports",{limits},"ready":0,')
    assert '"max_running":2,"concurrency_key":"{{payload.account}}"' in keys
    assert first.count('"name":"hello"') == 2
    assert re.search(r'"payload":\{"name": ?"Ada"\}', pull)
    assert pull.endswith('{"recorded":1,"stale":[]}')
    assert "urn:evertick:problem:invalid-input" in errors
    assert re.findall(r'"pointer":"([^"]*)"', errors) == ["/target/handler", "/schedule"]
    created = re.findall(r'"job_id":"(\w+)"', idempotency)
    assert len(created) == 2
    assert len(set(created)) == 1
    assert letters == '{"replayed":0,"run_ids":[],"last_due_at":null,"has_more":false}'
    assert re.search(r'^link: <.*>; rel="next"', pages, re.MULTILINE)
