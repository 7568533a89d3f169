"""Scenario `brokers`: how fast dispatchers publish ready attempts to a message broker.

One-off jobs are fired into the lanes while no dispatcher runs. Then the dispatchers start. The rate counts from the
first lease to the last outcome. Without an address the bench starts a Redis of its own, which writes its log to disk
each second.
"""

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import repeat
from typing import Annotated, Any

from evertick.bench import queries, workload
from evertick.bench.processes import BenchFailed
from evertick.bench.results import count_fields, cpu_used, rate_fields, read_runs
from evertick.bench.scenario import MAX_COUNT, Option, PayloadBytes, Scenario, Seed
from evertick.bench.steps import INSTANT, fire_all, vacuum_and_checkpoint
from evertick.bench.testbed import Testbed
from evertick.bench.waiting import wait_for_first_lease, wait_until_drained
from evertick.contract.broker_targets import BrokerType
from evertick.contract.workers import MAX_READY, QueueSettings
from evertick.usecases.tenants import connections, queues

CONNECTION = "bench"
START_SECONDS = 10.0
BROKERS = ("redis", *(kind for kind in BrokerType if kind is not BrokerType.REDIS_STREAM))


def _broker(text: str) -> str:
    if text not in BROKERS:
        raise ValueError(f"must be one of {', '.join(BROKERS)}")
    return text


@dataclass(frozen=True, slots=True)
class BrokersOptions:
    broker: Annotated[str, Option(f"One of {', '.join(BROKERS)}.", metavar="BROKER", parse=_broker)] = "redis"
    messages: Annotated[int, Option("Number of ready attempts.", 1, MAX_COUNT)] = 100_000
    address: Annotated[
        str | None, Option("Where the broker is: host:port, without TLS. [dim](a Redis of the bench)[/dim]")
    ] = None
    destination: Annotated[
        str, Option("The topic, routing key, stream, subject or queue URL, which must be there.")
    ] = "evertick-bench"
    payload_bytes: PayloadBytes = 300
    dispatchers: Annotated[int, Option("Number of dispatcher processes.", 1, 64)] = 1
    seed: Seed = 1


def _fault(options: BrokersOptions) -> str | None:
    if options.address is None and options.broker != "redis":
        return f"--broker {options.broker} needs an --address"
    return None


async def run(testbed: Testbed, options: BrokersOptions) -> dict[str, Any]:
    kind = BrokerType.REDIS_STREAM if options.broker == "redis" else BrokerType(options.broker)
    async with _server(testbed, options.address) as address:
        await connections.create(testbed.tenant, _connection(kind, address), testbed.fleet.seal)
        await queues.limit_queue(testbed.tenant, kind, QueueSettings(max_ready=MAX_READY))
        fire_at = await testbed.now()
        fields = workload.once(
            fire_at,
            payload=workload.payload(options.payload_bytes, options.seed),
            target=_target(kind, options.destination),
        )
        await testbed.load(repeat(fields, options.messages), options.messages, "creating jobs")
        await vacuum_and_checkpoint(testbed)
        fire_seconds = await fire_all(testbed, options.messages)
        base, cpu = await queries.written_rows(testbed.pool), testbed.cpu_seconds()
        testbed.progress.begin("starting dispatchers")
        starting = asyncio.gather(*(testbed.fleet.scheduler("dispatcher") for _ in range(options.dispatchers)))
        leased_at, processes = await asyncio.gather(wait_for_first_lease(testbed), starting)
        drained_at = await wait_until_drained(testbed, base, options.messages, "publishing")
        cpu_us = cpu_used(cpu, testbed.cpu_seconds(), options.messages / 1e6)
        await testbed.fleet.stop(*processes)
    found = await read_runs(testbed, fire_at, fire_at + INSTANT, kind)
    first_at = min(at for at in (leased_at, found.first_started_at, drained_at) if at is not None)
    return {
        **count_fields(found, options.messages),
        **rate_fields(options.messages, (drained_at - first_at).total_seconds()),
        "making_ready_seconds": round(fire_seconds, 3),
        "cpu_us_per_run": cpu_us,
    }


@asynccontextmanager
async def _server(testbed: Testbed, address: str | None) -> AsyncIterator[str]:
    """The given broker, or a Redis that is stopped at the end."""
    if address is not None:
        yield address
        return
    program = shutil.which("redis-server")
    if program is None:
        raise BenchFailed("there is no redis-server: install it, or say by --address where a broker is")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    words = ["--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes", "--appendfsync", "everysec"]
    process = await asyncio.create_subprocess_exec(
        program, *words, cwd=testbed.server.folder, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        await _until_listening(int(port))
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


async def _until_listening(port: int) -> None:
    async with asyncio.timeout(START_SECONDS):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return


def _connection(kind: BrokerType, address: str) -> dict[str, Any]:
    host, _, port = address.rpartition(":")
    by_host = {"host": host, "port": int(port), "tls": False}
    settings: dict[BrokerType, dict[str, Any]] = {
        BrokerType.KAFKA: {"bootstrap_servers": [address], "security_protocol": "PLAINTEXT"},
        BrokerType.RABBITMQ: {**by_host, "username": "guest"},
        BrokerType.REDIS_STREAM: by_host,
        BrokerType.NATS: {"servers": [address], "tls": False},
        BrokerType.SQS: {"region": "eu-central-1", "access_key_id": "bench", "endpoint_url": f"http://{address}"},
    }
    secrets = {BrokerType.RABBITMQ: {"password": "guest"}, BrokerType.SQS: {"secret_access_key": "bench"}}
    return {"name": CONNECTION, "type": str(kind), "settings": settings[kind], "secrets": secrets.get(kind, {})}


def _target(kind: BrokerType, destination: str) -> dict[str, Any]:
    names = {
        BrokerType.KAFKA: "topic",
        BrokerType.RABBITMQ: "routing_key",
        BrokerType.REDIS_STREAM: "stream",
        BrokerType.NATS: "subject",
        BrokerType.SQS: "queue_url",
    }
    return {"type": str(kind), "connection": CONNECTION, names[kind]: destination}


SCENARIO = Scenario(
    "brokers",
    "How fast dispatchers publish ready attempts to a local message broker, each until the broker has acknowledged it.",
    "evertick bench brokers --broker redis --messages 100000 --json",
    BrokersOptions,
    run,
    fault=_fault,
    reuses_database=False,
)
