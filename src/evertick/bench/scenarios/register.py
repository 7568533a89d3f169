"""Scenario `register`: how fast jobs come in over HTTP: in batches, one by one over many connections, by the client."""

import asyncio
import json
import secrets
import time
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice, repeat
from typing import Any

from evertick.bench import figures_queries, workload
from evertick.bench.figures import rated
from evertick.bench.measuring import Scenario
from evertick.bench.processes import BenchFailed
from evertick.bench.stage import CHUNK, Stage
from evertick.client import AsyncClient
from evertick.domain.access import KeyRole
from evertick.usecases.tenants import keys, tenants

PATIENCE_SECONDS = 3600.0
# No quota is in the way: they are what a host wants them to be, and here it is the speed that is asked for.
UNLIMITED = {
    "jobs_quota": 2**31 - 1,
    "submits_per_second": 1_000_000,
    "submit_burst": 2**31 - 1,
    "ready_quota": 2**31 - 1,
    "storage_quota_bytes": 2**53,
}


@dataclass(frozen=True, slots=True)
class Settings:
    """How many jobs each way, and over how many connections at once: first those that come one by one."""

    jobs: int = 100_000
    singles: int = 20_000
    connections: int = 64
    batch_connections: int = 2
    payload_bytes: int = 300
    seed: int = 1


async def run(stage: Stage, settings: Settings) -> dict[str, Any]:
    await tenants.edit(stage.pool, tenants.public_id(stage.tenant.tenant_id), UNLIMITED)
    key = (await keys.create(stage.pool, stage.tenant.tenant_id, KeyRole.EDITOR, "bench")).secret
    _, address = await stage.fleet.server()
    job = await _job(stage, settings)
    batch = await _send(
        stage, address, key, _Load("batch", "/api/v1/jobs:batch", settings.jobs, CHUNK, job), settings.batch_connections
    )
    single = await _send(
        stage, address, key, _Load("single", "/api/v1/jobs", settings.singles, 1, job), settings.connections
    )
    client = await _by_client(stage, address, key, settings, job)
    ways = {"batch": batch, "single": single, "client": client}
    return {
        "runs": 0,
        "jobs": sum(way["jobs"] for way in ways.values()),
        "missing": sum(way["missing"] for way in ways.values()),
        "duplicates": sum(way["duplicates"] for way in ways.values()),
        "seconds": round(sum(way["seconds"] for way in ways.values()), 3),
        "rate_per_second": batch["rate_per_second"],
        **ways,
    }


@dataclass(frozen=True, slots=True)
class _Load:
    """What the lean client sends."""

    way: str
    path: str
    jobs: int
    per_request: int
    job: workload.Fields


async def _job(stage: Stage, settings: Settings) -> workload.Fields:
    due_at = (await stage.now() + timedelta(days=60)).replace(microsecond=0)
    return {**workload.once(due_at), "payload": workload.payload(settings.payload_bytes, settings.seed)}


def _into(job: workload.Fields, way: str) -> workload.Fields:
    """The job in a queue of the way it comes, by which it is counted."""
    return {**job, "target": workload.target(f"bench-{way}")}


async def _send(stage: Stage, address: str, key: str, load: _Load, connections: int) -> dict[str, Any]:
    """By the lean client, in a process of its own."""
    before = await figures_queries.queue_jobs(stage.pool, f"bench-{load.way}")
    stage.progress.begin(f"registering over HTTP: {load.way}")
    plan = {
        "address": address,
        "path": load.path,
        "jobs": load.jobs,
        "per_request": load.per_request,
        "job": _into(load.job, load.way),
        "name": f"{load.way}-{secrets.token_hex(4)}",
        "connections": connections,
    }
    process = await stage.fleet.start(
        "requests", "evertick.bench.http_requests", json.dumps(plan), EVERTICK_API_KEY=key
    )
    answer = json.loads(await process.line(PATIENCE_SECONDS))
    await stage.fleet.stop(process)
    return {**await _counted(stage, load.way, load.jobs, answer.pop("seconds"), before), **answer}


async def _by_client(stage: Stage, address: str, key: str, settings: Settings, job: workload.Fields) -> dict[str, Any]:
    """By the product's own client, as many in each call as the API takes, and as many calls at once as batches."""
    before = await figures_queries.queue_jobs(stage.pool, "bench-client")
    stage.progress.begin("registering by the client", settings.jobs)
    waiting = workload.named(repeat(_into(job, "client"), settings.jobs))
    done = 0

    async def send_on(client: AsyncClient) -> None:
        nonlocal done
        while chunk := list(islice(waiting, CHUNK)):
            verdicts = await client.jobs.create_many(chunk)
            if any(verdict.job_id is None for verdict in verdicts):
                raise BenchFailed("the API refused a job")
            stage.progress.reach(done := done + len(chunk))

    async with AsyncClient(address, key, timeout=600) as client:
        began = time.monotonic()
        await asyncio.gather(*(send_on(client) for _ in range(settings.batch_connections)))
        seconds = time.monotonic() - began
    return await _counted(stage, "client", settings.jobs, seconds, before)


async def _counted(stage: Stage, way: str, wanted: int, seconds: float, before: int) -> dict[str, Any]:
    """What is there now, whatever the answers said."""
    created = await figures_queries.queue_jobs(stage.pool, f"bench-{way}") - before
    return {
        "jobs": created,
        "missing": max(wanted - created, 0),
        "duplicates": max(created - wanted, 0),
        **rated(created, seconds),
    }


SCENARIO = Scenario("register", run)
