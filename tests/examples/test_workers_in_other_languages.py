"""The workers in Go and TypeScript, built and run against a server as their guides say."""

import asyncio
import shutil
import subprocess
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import pytest_asyncio

from engine import until
from evertick import AsyncClient
from front_door import EXAMPLES, LEASE_SECONDS, Server, stopped, told

Log: TypeAlias = asyncio.StreamReader | None
TOOLS = Path(__file__).parents[2] / ".servers" / "node" / "node_modules"

pytestmark = pytest.mark.asyncio(loop_scope="session")


@dataclass(frozen=True)
class Program:
    """A built worker. Go logs to stderr, Node to stdout."""

    command: tuple[str, ...]
    queue: str
    logs_to_stderr: bool

    @asynccontextmanager
    async def running(self, server: Server, client: AsyncClient) -> AsyncIterator[tuple[Process, Log]]:
        key = (await client.api_keys.create(role="worker")).api_key
        async with server.running(*self.command, self.queue, EVERTICK_API_KEY=key) as process:
            log = process.stderr if self.logs_to_stderr else process.stdout
            await told(log, f"started on {self.queue}")
            yield process, log

    async def submit(self, client: AsyncClient, handler: str, payload: object, **fields: Any) -> str:
        """A run of a handler."""
        target = {"type": "worker", "queue": self.queue, "handler": handler}
        job = await client.jobs.create(schedule="manual", target=target, payload=payload, **fields)
        return (await client.jobs.trigger(job.job_id)).run_id


@pytest.fixture(scope="session")
def go(tmp_path_factory: pytest.TempPathFactory) -> Program:
    if shutil.which("go") is None:
        pytest.skip("there is no go: the worker in Go is not tested")
    program = tmp_path_factory.mktemp("go") / "worker"
    source = EXAMPLES / "worker-go"
    subprocess.run(["go", "vet", "."], cwd=source, check=True)
    subprocess.run(["go", "build", "-o", str(program), "."], cwd=source, check=True)
    assert subprocess.run(["gofmt", "-l", "."], cwd=source, check=True, capture_output=True).stdout == b""
    return Program((str(program),), "go", logs_to_stderr=True)


@pytest.fixture(scope="session")
def typescript(tmp_path_factory: pytest.TempPathFactory) -> Program:
    if shutil.which("node") is None or not (TOOLS / ".bin" / "tsc").exists():
        pytest.skip("there is no node, or `make servers` did not install TypeScript: the worker is not tested")
    build = tmp_path_factory.mktemp("typescript")
    options = ["--outDir", str(build), "--typeRoots", str(TOOLS / "@types")]
    command = [str(TOOLS / ".bin" / "tsc"), "--project", str(EXAMPLES / "worker-typescript"), *options]
    subprocess.run(command, check=True)
    shutil.copy(EXAMPLES / "worker-typescript" / "package.json", build)
    return Program(("node", str(build / "worker.js")), "typescript", logs_to_stderr=False)


@pytest.fixture(params=["go", "typescript"])
def program(request: pytest.FixtureRequest) -> Program:
    found: Program = request.getfixturevalue(request.param)
    return found


@pytest_asyncio.fixture(loop_scope="session")
async def client(server: Server) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server.url, server.api_key) as client:
        yield client


async def ended(client: AsyncClient, run_id: str) -> tuple[str, list[str | None], str | None]:
    """The status of a run when it is over, the results of its attempts, and the last error."""

    async def is_over() -> bool:
        return (await client.runs.get(run_id)).finished_at is not None

    await until(is_over)
    run = await client.runs.get(run_id)
    return run.status, [attempt.result for attempt in run.attempts], run.attempts[-1].error


async def test_a_worker_runs_records_and_stops_gracefully(
    server: Server, client: AsyncClient, program: Program
) -> None:
    async with program.running(server, client) as (process, log):
        invoice = await program.submit(client, "send_invoice", {"customer": "c1"})
        await told(log, "an invoice for c1, once per job_")
        broken = await program.submit(client, "send_invoice", {})
        slow = await program.submit(client, "sleep", {"seconds": 60}, timeout_seconds=1, max_retries=0)
        await told(log, "sleeping, attempt 1")
        last = await program.submit(client, "sleep", {"seconds": 2})
        await told(log, "sleeping, attempt 1")
        assert await stopped(process) == 0  # while one runs, which is finished and recorded first
    assert await ended(client, invoice) == ("success", ["success"], None)
    status, results, error = await ended(client, broken)
    assert (status, results) == ("dead", ["failed"])
    assert "the payload names no customer" in str(error)
    assert (await ended(client, slow))[:2] == ("dead", ["timed_out"])
    for dead in (broken, slow):
        await client.dead_letters.dismiss(dead)  # other tests count them
    assert await ended(client, last) == ("success", ["success"], None)


async def test_heartbeats_keep_what_runs_and_stop_what_was_cancelled(
    server: Server, client: AsyncClient, program: Program
) -> None:
    async with program.running(server, client) as (process, log):
        kept = await program.submit(client, "sleep", {"seconds": LEASE_SECONDS + 1})
        await told(log, "sleeping, attempt 1")
        cancelled = await program.submit(client, "sleep", {"seconds": 600})
        await told(log, "sleeping, attempt 1")
        await client.runs.cancel(cancelled)
        await told(log, "the outcome of .* came too late")
        assert await ended(client, kept) == ("success", ["success"], None)
        assert (await ended(client, cancelled))[0] == "cancelled"
        assert await stopped(process) == 0
