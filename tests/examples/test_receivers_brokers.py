"""The consumers of docs/receivers.md with real brokers: a dispatcher publishes, a library of the broker receives,
`evertick.receive` reports, and `evertick.inbox` keeps the effect from being repeated.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aio_pika
import asyncpg
import nats
import pytest
from aiokafka import AIOKafkaConsumer
from redis.asyncio import Redis

from engine import until
from evertick import inbox
from evertick.client import AsyncClient
from evertick.contract.workers import OutcomeReport
from evertick.receive import MessageRun
from evertick.roles.dispatcher import Dispatcher
from evertick.roles.dispatcher.settings import Egress
from evertick.usecases.context import TenantContext
from evertick.usecases.tenants import connections
from examples.test_receivers_guide import guide as guide  # noqa: PLC0414 - a fixture
from real_brokers import DESTINATION, KINDS, Broker, real_broker
from roles.dispatching import LOOPBACK, SEAL
from sdk.served import Served, served
from targets.brokers.sqs_reading import call

RUNS = 5
SLOW_TO_START = ("kafka", "rabbitmq")


class Site:
    """A server, a dispatcher, a job whose outcomes its consumer reports, and the consumer's database."""

    def __init__(
        self, broker: Broker, house: Served, client: AsyncClient, pool: asyncpg.Pool, guide: SimpleNamespace
    ) -> None:
        self.broker = broker
        self.house = house
        self.client = client
        self.pool = pool
        self.guide = guide

    async def publish(self, runs: int = RUNS, **fields: Any) -> list[str]:
        job = await self.client.jobs.create(
            schedule="manual",
            target=self.broker.target(completion="reported"),
            payload={"account": "rent", "amount": 7},
            concurrent_policy="ALLOW",
            max_concurrent=RUNS,
            **fields,
        )
        return [(await self.client.jobs.trigger(job.job_id)).run_id for _ in range(runs)]

    async def balance(self) -> int:
        balance: int = await self.pool.fetchval("SELECT balance FROM accounts")
        return balance

    async def consume(self) -> None:
        """Consume from the beginning, until cancelled."""
        match self.broker.kind:
            case "redis_stream":
                await self._consume_redis()
            case "kafka":
                await self._consume_kafka()
            case "rabbitmq":
                await self._consume_rabbitmq()
            case _:
                await self._consume_nats()

    async def _consume_redis(self) -> None:
        async with Redis.from_url(self.broker.server.url, socket_timeout=60) as redis:
            await redis.xgroup_create(DESTINATION, "billing", id="0", mkstream=True)
            await self.guide.consume_redis(redis, self.client, self.pool)

    async def _consume_kafka(self) -> None:
        servers = f"127.0.0.1:{self.broker.server.port}"
        options: dict[str, Any] = {"group_id": "billing", "auto_offset_reset": "earliest", "enable_auto_commit": False}
        async with AIOKafkaConsumer(DESTINATION, bootstrap_servers=servers, **options) as consumer:
            await self.guide.consume_kafka(consumer, self.client, self.pool)

    async def _consume_rabbitmq(self) -> None:
        async with await aio_pika.connect(self.broker.server.url) as connection:
            queue = await (await connection.channel()).declare_queue(DESTINATION, passive=True)
            await self.guide.consume_rabbitmq(queue, self.client, self.pool)

    async def _consume_nats(self) -> None:
        client = await nats.connect(f"nats://127.0.0.1:{self.broker.server.port}")
        try:
            stream = client.jetstream()
            subscription = await stream.pull_subscribe(f"{DESTINATION}.>", durable="billing", stream=DESTINATION)
            while True:
                await self.guide.consume_nats(subscription, self.client, self.pool)
        finally:
            await client.close()


@asynccontextmanager
async def _site(kind: str, database_url: str, guide: SimpleNamespace) -> AsyncIterator[Site]:
    dispatcher = Dispatcher(database_url, SEAL, lambda _: Egress(LOOPBACK, "to this machine"))
    async with (
        real_broker(kind) as broker,
        served(database_url) as house,
        house.client() as client,
        asyncpg.create_pool(database_url, min_size=1, max_size=2) as pool,
    ):
        await connections.create(TenantContext(house.pool, 1), broker.connection(), SEAL)
        await pool.execute("CREATE TABLE accounts (name text, balance integer)")
        await pool.execute("INSERT INTO accounts VALUES ('rent', 0)")
        await pool.execute(inbox.schema)
        await dispatcher.start()
        try:
            yield Site(broker, house, client, pool, guide)
        finally:
            await dispatcher.stop()


@asynccontextmanager
async def _consuming(site: Site) -> AsyncIterator[None]:
    consumer = asyncio.create_task(site.consume())
    try:
        yield
    finally:
        consumer.cancel()
        with suppress(asyncio.CancelledError):
            await consumer


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.campaign) if kind in SLOW_TO_START else kind
        for kind in KINDS
        if kind != "sqs"  # its consumer is not a coroutine
    ],
)
async def test_runs_that_a_consumer_of_a_real_broker_reports_have_one_effect_each(
    kind: str, database_url: str, guide: SimpleNamespace
) -> None:
    async with _site(kind, database_url, guide) as site:
        runs = await site.publish()

        async def are_done() -> bool:
            return {(await site.client.runs.get(run)).status for run in runs} == {"success"}

        async with _consuming(site):
            await until(are_done)
        assert await site.balance() == RUNS * 7
        again = await site.broker.read()
        assert len(again) == (0 if kind == "rabbitmq" else RUNS), "its queue has no more what was acknowledged"
        for run in again:
            await guide.book(run, site.pool)
        assert await site.balance() == RUNS * 7


async def test_a_consumer_that_fails_gets_the_next_attempt_from_a_broker_that_drops_repetitions(
    database_url: str, guide: SimpleNamespace
) -> None:
    async with _site("nats", database_url, guide) as site:
        (run_id,) = await site.publish(1, max_retries=1, retry_delay_seconds=1)
        seen: dict[int, MessageRun] = {}

        async def report(attempt: int, result: str) -> None:
            async def has_come() -> bool:
                seen.update({run.attempt: run for run in await site.broker.read()})
                return attempt in seen

            await until(has_come)
            report = OutcomeReport(token=seen[attempt].token, result=result)
            assert (await site.client.workers.record("billing-1", [report])).stale == ()

        await report(1, "failed")
        await report(2, "success")
        assert (await site.client.runs.get(run_id)).status == "success"
        assert seen[1].idempotency_key == seen[2].idempotency_key


class PlainSqs:
    """Calls SQS as boto3's client does."""

    def __init__(self, site: Site) -> None:
        self._server = site.broker.server

    def receive_message(self, **fields: Any) -> dict[str, Any]:
        return asyncio.run(call(self._server, "ReceiveMessage", **fields))

    def delete_message(self, **fields: Any) -> None:
        asyncio.run(call(self._server, "DeleteMessage", **fields))


def book_all(site: Site, path: Path) -> int:
    """Receive as many messages as there are runs; the balance then, which is in SQLite."""
    with closing(sqlite3.connect(path)) as connection, site.house.sync_client() as client:
        connection.execute("CREATE TABLE accounts (name text, balance integer)")
        connection.execute("INSERT INTO accounts VALUES ('rent', 0)")
        inbox.create_table(connection)
        connection.commit()
        for _ in range(RUNS):
            site.guide.consume_sqs(PlainSqs(site), site.broker.address["queue_url"], client, connection)
        (balance,) = connection.execute("SELECT balance FROM accounts").fetchone()
        return int(balance)


async def test_runs_that_a_consumer_of_sqs_reports_have_one_effect_each(
    database_url: str, guide: SimpleNamespace, tmp_path: Path
) -> None:
    async with _site("sqs", database_url, guide) as site:
        runs = await site.publish()
        assert await asyncio.to_thread(book_all, site, tmp_path / "consumer.db") == RUNS * 7
        assert {(await site.client.runs.get(run)).status for run in runs} == {"success"}
        assert await site.broker.read() == [], "each was deleted when it was reported"
