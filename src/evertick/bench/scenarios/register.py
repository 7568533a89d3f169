"""Scenario `register`: how fast jobs are created over HTTP: in batches, one by one, and by the Python client."""

import json
import secrets
from dataclasses import dataclass
from datetime import timedelta
from itertools import repeat
from typing import Annotated, Any

from evertick.bench import queries, workload
from evertick.bench.results import created_fields, rate_fields, total_fields
from evertick.bench.scenario import Jobs, Option, PayloadBytes, Scenario, Seed
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
    due_at = (await testbed.now() + timedelta(days=60)).replace(microsecond=0)
    job = workload.once(due_at, payload=workload.payload(options.payload_bytes, options.seed))
    api = _Api(testbed, address, key, job)
    methods = {
        "batch": await api.send("batch", "/api/v1/jobs:batch", options.jobs, CHUNK, options.batch_connections),
        "single": await api.send("single", "/api/v1/jobs", options.singles, 1, options.connections),
        "client": await api.send_by_client(options.jobs, options.batch_connections),
    }
    totals = total_fields(list(methods.values()), ("jobs", "missing", "duplicates", "seconds"))
    return {
        "runs": 0,
        **totals,
        "seconds": round(totals["seconds"], 3),
        "rate_per_second": methods["batch"]["rate_per_second"],
        **methods,
    }


@dataclass(frozen=True, slots=True)
class _Api:
    """Creates copies of a job. Each method has a queue of its own, because jobs are counted by queue."""

    testbed: Testbed
    address: str
    key: str
    job: workload.Fields

    async def send(self, method: str, path: str, jobs: int, per_request: int, connections: int) -> dict[str, Any]:
        """Create jobs with the load generator, in a process of its own."""
        before = await self._count(method)
        self.testbed.progress.begin(f"registering over HTTP: {method}")
        plan = {
            "address": self.address,
            "path": path,
            "jobs": jobs,
            "per_request": per_request,
            "job": self._job(method),
            "name": f"{method}-{secrets.token_hex(4)}",
            "connections": connections,
        }
        process = await self.testbed.fleet.start(
            "load-generator", "evertick.bench.http_processes", "send", json.dumps(plan), EVERTICK_API_KEY=self.key
        )
        answer = json.loads(await process.line(LOAD_SECONDS))
        await self.testbed.fleet.stop(process)
        return {**await self._created(method, jobs, answer.pop("seconds"), before), **answer}

    async def send_by_client(self, jobs: int, concurrent_calls: int) -> dict[str, Any]:
        """Create jobs with the Python client."""
        before = await self._count("client")
        async with AsyncClient(self.address, self.key, timeout=600) as client:
            seconds = await self.testbed.create_in_chunks(
                repeat(self._job("client"), jobs),
                jobs,
                "registering by the client",
                client.jobs.create_many,
                concurrent_calls,
            )
        return await self._created("client", jobs, seconds, before)

    def _job(self, method: str) -> workload.Fields:
        return {**self.job, "target": workload.target(f"bench-{method}")}

    async def _count(self, method: str) -> int:
        return await queries.queue_jobs(self.testbed.pool, f"bench-{method}")

    async def _created(self, method: str, expected: int, seconds: float, before: int) -> dict[str, Any]:
        """The result by what is in the database, whatever the responses said."""
        created = await self._count(method) - before
        return {**created_fields(created, expected), **rate_fields(created, seconds)}


SCENARIO = Scenario(
    "register",
    "How fast jobs are created over HTTP: in batches of 10,000, one by one, and by the Python client.",
    "evertick bench register --jobs 100000 --connections 64 --json",
    RegisterOptions,
    run,
)
