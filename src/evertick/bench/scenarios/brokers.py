"""Scenario `brokers`: how fast dispatchers publish ready attempts to a message broker.

The dispatchers start, and publish a few messages. Then one-off jobs are fired into the lanes while the queue is closed
(`max_running` 0), and the queue is opened. The rate counts from the first lease to the last outcome, CPU time from the
opening of the queue. Without an address the bench starts a Redis of its own, which writes its log to disk
each second.
"""

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import repeat
from typing import Annotated, Any

from evertick.bench import queries, workload
from evertick.bench.processes import BenchFailed, family_cpu_seconds
from evertick.bench.results import count_fields, cpu_used, rate_fields, read_runs
from evertick.bench.scenario import MAX_COUNT, Option, PayloadBytes, Scenario, Seed
from evertick.bench.steps import INSTANT, fire_all, vacuum_and_checkpoint
from evertick.bench.testbed import Testbed
from evertick.bench.waiting import wait_for_first_lease, wait_until_drained
from evertick.contract.broker_targets import BrokerType
from evertick.contract.workers import MAX_READY, QueueSettings
from evertick.usecases.tenants import connections, queues

CONNECTION = "bench"
WARM_UP_MESSAGES = 500
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
        str | None, Option("Where the broker is: host:port, without TLS. [default: a Redis of the bench]")
    ] = None
    destination: Annotated[
        str, Option("The topic, routing key, stream, subject or queue URL, which must be there.")
    ] = "evertick-bench"
    username: Annotated[str, Option("Of RabbitMQ.")] = "guest"
    password: Annotated[str, Option("Of RabbitMQ.")] = "guest"  # noqa: S105 - what RabbitMQ has at first
    payload_bytes: PayloadBytes = 300
    dispatchers: Annotated[int, Option("Number of dispatcher processes.", 1, 64)] = 1
    seed: Seed = 1


def _fault(options: BrokersOptions) -> str | None:
    if options.address is None and options.broker != "redis":
        return f"--broker {options.broker} needs an --address"
    return None


async def run(testbed: Testbed, options: BrokersOptions) -> dict[str, Any]:
    kind = BrokerType.REDIS_STREAM if options.broker == "redis" else BrokerType(options.broker)
    async with _server(testbed, options.address) as (address, broker_pid):
        await connections.create(testbed.tenant, _connection(kind, address, options), testbed.fleet.seal)
        testbed.progress.begin("starting dispatchers")
        processes = await asyncio.gather(*(testbed.fleet.scheduler("dispatcher") for _ in range(options.dispatchers)))
        await _make_ready(testbed, kind, options, WARM_UP_MESSAGES)
        await _publish(testbed, WARM_UP_MESSAGES)
        await _limit(testbed, kind, max_running=0)
        fire_at, fire_seconds = await _make_ready(testbed, kind, options, options.messages)
        cpu = _cpu_seconds(testbed, broker_pid)
        await _limit(testbed, kind, max_running=None)
        leased_at, drained_at = await _publish(testbed, options.messages)
        cpu_us = cpu_used(cpu, _cpu_seconds(testbed, broker_pid), options.messages / 1e6)
        await testbed.fleet.stop(*processes)
    found = await read_runs(testbed, fire_at, fire_at + INSTANT, kind)
    first_at = min(at for at in (leased_at, found.first_started_at) if at is not None)
    return {
        **count_fields(found, options.messages),
        **rate_fields(options.messages, (drained_at - first_at).total_seconds()),
        "making_ready_seconds": round(fire_seconds, 3),
        "cpu_us_per_run": cpu_us,
    }


def _cpu_seconds(testbed: Testbed, broker_pid: int | None) -> dict[str, float]:
    """CPU time so far of each kind of process, and of the broker if its process is known."""
    broker = None if broker_pid is None else family_cpu_seconds(broker_pid)
    return testbed.cpu_seconds() | ({} if broker is None else {"broker": broker})


async def _limit(testbed: Testbed, kind: BrokerType, max_running: int | None) -> None:
    await queues.limit_queue(testbed.tenant, kind, QueueSettings(max_running=max_running, max_ready=MAX_READY))


async def _make_ready(
    testbed: Testbed, kind: BrokerType, options: BrokersOptions, messages: int
) -> tuple[datetime, float]:
    """Create jobs and fire them. Returns their fire time, and how many seconds firing took."""
    fire_at = await testbed.now()
    payload = workload.payload(options.payload_bytes, options.seed)
    fields = workload.once(fire_at, payload=payload, target=_target(kind, options.destination))
    await testbed.load(repeat(fields, messages), messages, "creating jobs")
    await vacuum_and_checkpoint(testbed)
    return fire_at, await fire_all(testbed, messages)


async def _publish(testbed: Testbed, messages: int) -> tuple[datetime | None, datetime]:
    """Wait until all is published. Returns the times of the first lease, if it was seen, and of the last outcome."""
    base = await queries.written_rows(testbed.pool)
    leased_at = await wait_for_first_lease(testbed)
    return leased_at, await wait_until_drained(testbed, base, messages, "publishing")


@asynccontextmanager
async def _server(testbed: Testbed, address: str | None) -> AsyncIterator[tuple[str, int | None]]:
    """The address of the given broker, or address and process of a Redis that is stopped at the end."""
    if address is not None:
        yield address, None
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
        yield f"127.0.0.1:{port}", process.pid
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


def _connection(kind: BrokerType, address: str, options: BrokersOptions) -> dict[str, Any]:
    host, _, port = address.rpartition(":")
    by_host = {"host": host, "port": int(port), "tls": False}
    settings: dict[BrokerType, dict[str, Any]] = {
        BrokerType.KAFKA: {"bootstrap_servers": [address], "security_protocol": "PLAINTEXT"},
        BrokerType.RABBITMQ: {**by_host, "username": options.username},
        BrokerType.REDIS_STREAM: by_host,
        BrokerType.NATS: {"servers": [address], "tls": False},
        BrokerType.SQS: {"region": "eu-central-1", "access_key_id": "bench", "endpoint_url": f"http://{address}"},
    }
    secrets = {BrokerType.RABBITMQ: {"password": options.password}, BrokerType.SQS: {"secret_access_key": "bench"}}
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
