"""Scenario `register`: how fast jobs are created over HTTP: in batches, one by one, and by the Python client."""

import asyncio
import json
import secrets
import time
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice, repeat
from typing import Annotated, Any

from evertick.bench import queries, workload
from evertick.bench.processes import BenchFailed
from evertick.bench.scenario import Jobs, Option, PayloadBytes, Scenario, Seed, created_fields, rate_fields
from evertick.bench.testbed import CHUNK, Testbed
from evertick.client import AsyncClient
from evertick.domain.access import KeyRole
from evertick.usecases.tenants import keys, tenants

LOAD_SECONDS = 3600.0
# The quotas are raised, so that they do not limit the rate.
UNLIMITED = {
    "jobs_quota": 2**31 - 1,
    "submits_per_second": 1_000_000,
    "submit_burst": 2**31 - 1,
    "ready_quota": 2**31 - 1,
    "storage_quota_bytes": 2**53,
}


@dataclass(frozen=True, slots=True)
class RegisterOptions:
    jobs: Jobs = 100_000
    singles: Annotated[int, Option("Number of jobs that are created one by one.", 1, 10_000_000)] = 20_000
    connections: Annotated[int, Option("Number of connections for these.", 1, 10_000)] = 64
    batch_connections: Annotated[int, Option("Number of connections for batches.", 1, 64)] = 2
    payload_bytes: PayloadBytes = 300
    seed: Seed = 1


async def run(testbed: Testbed, options: RegisterOptions) -> dict[str, Any]:
    await tenants.edit(testbed.pool, tenants.public_id(testbed.tenant.tenant_id), UNLIMITED)
    key = (await keys.create(testbed.pool, testbed.tenant.tenant_id, KeyRole.EDITOR, "bench")).api_key
    _, address = await testbed.fleet.server()
    job = await _job(testbed, options)
    batch = await _send(
        testbed,
        address,
        key,
        _HttpLoad("batch", "/api/v1/jobs:batch", options.jobs, CHUNK, job),
        options.batch_connections,
    )
    single = await _send(
        testbed, address, key, _HttpLoad("single", "/api/v1/jobs", options.singles, 1, job), options.connections
    )
    client = await _by_client(testbed, address, key, options, job)
    methods = {"batch": batch, "single": single, "client": client}
    return {
        "runs": 0,
        "jobs": sum(method["jobs"] for method in methods.values()),
        "missing": sum(method["missing"] for method in methods.values()),
        "duplicates": sum(method["duplicates"] for method in methods.values()),
        "seconds": round(sum(method["seconds"] for method in methods.values()), 3),
        "rate_per_second": batch["rate_per_second"],
        **methods,
    }


@dataclass(frozen=True, slots=True)
class _HttpLoad:
    """What the load generator sends."""

    method: str
    path: str
    jobs: int
    per_request: int
    job: workload.Fields


async def _job(testbed: Testbed, options: RegisterOptions) -> workload.Fields:
    due_at = (await testbed.now() + timedelta(days=60)).replace(microsecond=0)
    return {**workload.once(due_at), "payload": workload.payload(options.payload_bytes, options.seed)}


def _into(job: workload.Fields, method: str) -> workload.Fields:
    """The job in the queue of a method. Jobs are counted by queue."""
    return {**job, "target": workload.target(f"bench-{method}")}


async def _send(testbed: Testbed, address: str, key: str, load: _HttpLoad, connections: int) -> dict[str, Any]:
    """Create jobs with the load generator, in a process of its own."""
    before = await queries.queue_jobs(testbed.pool, f"bench-{load.method}")
    testbed.progress.begin(f"registering over HTTP: {load.method}")
    plan = {
        "address": address,
        "path": load.path,
        "jobs": load.jobs,
        "per_request": load.per_request,
        "job": _into(load.job, load.method),
        "name": f"{load.method}-{secrets.token_hex(4)}",
        "connections": connections,
    }
    process = await testbed.fleet.start(
        "load-generator", "evertick.bench.load_generator", json.dumps(plan), EVERTICK_API_KEY=key
    )
    answer = json.loads(await process.line(LOAD_SECONDS))
    await testbed.fleet.stop(process)
    return {**await _counted(testbed, load.method, load.jobs, answer.pop("seconds"), before), **answer}


async def _by_client(
    testbed: Testbed, address: str, key: str, options: RegisterOptions, job: workload.Fields
) -> dict[str, Any]:
    """Create jobs with the Python client, as many in each call as the API takes, with concurrent calls."""
    before = await queries.queue_jobs(testbed.pool, "bench-client")
    testbed.progress.begin("registering by the client", options.jobs)
    remaining = workload.named(repeat(_into(job, "client"), options.jobs))
    done = 0

    async def send_chunks(client: AsyncClient) -> None:
        nonlocal done
        while chunk := list(islice(remaining, CHUNK)):
            verdicts = await client.jobs.create_many(chunk)
            if any(verdict.job_id is None for verdict in verdicts):
                raise BenchFailed("the API rejected a job")
            testbed.progress.reach(done := done + len(chunk))

    async with AsyncClient(address, key, timeout=600) as client:
        began = time.monotonic()
        await asyncio.gather(*(send_chunks(client) for _ in range(options.batch_connections)))
        seconds = time.monotonic() - began
    return await _counted(testbed, "client", options.jobs, seconds, before)


async def _counted(testbed: Testbed, method: str, expected: int, seconds: float, before: int) -> dict[str, Any]:
    """The result by what is in the database, whatever the responses said."""
    created = await queries.queue_jobs(testbed.pool, f"bench-{method}") - before
    return {**created_fields(created, expected), **rate_fields(created, seconds)}


SCENARIO = Scenario(
    "register",
    "How fast jobs are created over HTTP: in batches of 10,000, one by one, and by the Python client.",
    "evertick bench register --jobs 100000 --connections 64 --json",
    RegisterOptions,
    run,
)
