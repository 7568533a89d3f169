"""The examples of docs/receivers.md, with a real server and real databases. Of the brokers' libraries only the messages
are here, as they give them.
"""

import asyncio
import json
import re
import sqlite3
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from evertick import inbox, receive
from evertick.client import AsyncClient
from evertick.domain.ids import Prefix, format_id, format_run_id
from evertick.sdk.webhooks import Receiver
from evertick.targets.http.request import headers_of
from publishing import MAKE_REPORTED, Publisher, publishing
from sdk.served import Served, served, worker_target
from targets.receivers import ATTEMPT, NOW, SECRET

GUIDE = Path(__file__).parents[2] / "docs" / "receivers.md"


@pytest.fixture(scope="module")
def guide() -> SimpleNamespace:
    """All that the page defines, block after block."""
    names: dict[str, Any] = {}
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)):
        exec(compile(block, f"{GUIDE.name}, block {number + 1}", "exec"), names)
    return SimpleNamespace(**names)


class Site:
    """A server, a client, a published job, and an account in the consumer's database."""

    def __init__(self, house: Served, client: AsyncClient, publisher: Publisher, pool: asyncpg.Pool) -> None:
        self.house = house
        self.client = client
        self.pool = pool
        self._publisher = publisher

    async def publish(self) -> tuple[str, dict[str, str], bytes]:
        """A run, and its message: attributes and body."""
        payload = {"account": "rent", "amount": 7}
        job = await self.client.jobs.create(schedule="manual", target=worker_target(), payload=payload)
        await self.house.pool.execute(MAKE_REPORTED)
        run_id = (await self.client.jobs.trigger(job.job_id)).run_id
        return run_id, *(await self._publisher.next_message())

    async def status(self, run_id: str) -> str:
        return (await self.client.runs.get(run_id)).status

    async def balance(self) -> int:
        balance: int = await self.pool.fetchval("SELECT balance FROM accounts")
        return balance


@pytest.fixture
async def site(database_url: str) -> AsyncIterator[Site]:
    publisher = Publisher()
    async with (
        served(database_url) as house,
        house.client() as client,
        asyncpg.create_pool(database_url, min_size=1, max_size=2) as pool,
        publishing(database_url, publisher, "default"),
    ):
        await pool.execute("CREATE TABLE accounts (name text, balance integer)")
        await pool.execute("INSERT INTO accounts VALUES ('rent', 0)")
        await pool.execute(inbox.schema)
        yield Site(house, client, publisher, pool)


class Stream:
    """Messages as a library gives them, with what its consumers are told about them."""

    def __init__(self, *messages: Any) -> None:
        self.messages = list(messages)
        self.acknowledged: list[Any] = []

    async def __aiter__(self) -> AsyncIterator[Any]:
        for message in self.messages:
            yield message

    async def commit(self) -> None:  # aiokafka
        self.acknowledged.append("all")

    @asynccontextmanager
    async def iterator(self) -> AsyncIterator["Stream"]:  # aio-pika
        yield self

    async def fetch(self, most: int) -> list[Any]:  # nats-py
        return self.messages[:most]

    async def xreadgroup(self, *_: Any, **__: Any) -> list[Any]:  # redis-py
        entries, self.messages = self.messages, []
        return [[b"bookings", entries]] if entries else []

    async def xack(self, *names: Any) -> None:
        self.acknowledged.append(names)


def _headers(prefix: str, attributes: dict[str, str]) -> dict[str, str]:
    return {prefix + name: value for name, value in attributes.items()}


def _pairs(headers: dict[str, str]) -> Iterable[tuple[str, bytes]]:
    return [(name, value.encode()) for name, value in headers.items()]


async def test_each_broker_is_consumed_and_what_comes_twice_is_booked_once(site: Site, guide: SimpleNamespace) -> None:
    runs: list[str] = []

    run_id, attributes, body = await site.publish()
    record = SimpleNamespace(headers=_pairs(_headers("ce_", attributes)), value=body)
    kafka = Stream(record, record)
    await guide.consume_kafka(kafka, site.client, site.pool)
    assert kafka.acknowledged == ["all", "all"]
    runs.append(run_id)

    run_id, attributes, body = await site.publish()
    processed: list[bool] = []

    @asynccontextmanager
    async def process(*, requeue: bool) -> AsyncIterator[None]:
        yield
        processed.append(requeue)

    message = SimpleNamespace(headers=_headers("cloudEvents_", attributes), body=body, process=process)
    await guide.consume_rabbitmq(Stream(message, message), site.client, site.pool)
    assert processed == [True, True]
    runs.append(run_id)

    run_id, attributes, body = await site.publish()
    fields = {name.encode(): value for name, value in _pairs(_headers("ce_", attributes))} | {b"data": body}
    redis = Stream((b"1-0", fields), (b"2-0", fields))
    await guide.consume_redis(redis, site.client, site.pool)
    assert redis.acknowledged == [("bookings", "billing", b"1-0"), ("bookings", "billing", b"2-0")]
    runs.append(run_id)

    run_id, attributes, body = await site.publish()
    nats = Stream()

    async def ack() -> None:
        nats.acknowledged.append("one")

    nats.messages = [SimpleNamespace(headers=_headers("ce-", attributes), data=body, ack=ack)]
    await guide.consume_nats(nats, site.client, site.pool)
    assert nats.acknowledged == ["one"]
    runs.append(run_id)

    run_id, attributes, body = await site.publish()
    await guide.consume_one(
        SimpleNamespace(headers=_pairs(_headers("ce_", attributes)), value=body), site.client, site.pool
    )
    runs.append(run_id)
    assert [await site.status(run) for run in runs] == ["success"] * 5
    assert await site.balance() == 5 * 7


async def test_sqs_is_consumed_by_plain_code_with_sqlite(site: Site, guide: SimpleNamespace, tmp_path: Path) -> None:
    run_id, attributes, body = await site.publish()
    packed = {"cloudevents": {"DataType": "String", "StringValue": json.dumps(attributes)}}
    message = {"Body": body.decode(), "ReceiptHandle": "r", "MessageAttributes": packed}
    deleted: list[str] = []

    class Sqs:
        def receive_message(self, **options: Any) -> dict[str, Any]:
            assert options["MessageAttributeNames"] == ["All"]
            return {"Messages": [message, message]}

        def delete_message(self, **options: Any) -> None:
            deleted.append(options["ReceiptHandle"])

    def consume() -> int:
        with closing(sqlite3.connect(tmp_path / "consumer.db")) as connection, site.house.sync_client() as client:
            connection.execute("CREATE TABLE accounts (name text, balance integer)")
            connection.execute("INSERT INTO accounts VALUES ('rent', 0)")
            inbox.create_table(connection)
            connection.commit()
            guide.consume_sqs(Sqs(), "http://queue", client, connection)
            (balance,) = connection.execute("SELECT balance FROM accounts").fetchone()
            return int(balance)

    assert await asyncio.to_thread(consume) == 7
    assert deleted == ["r", "r"]
    assert await site.status(run_id) == "success"


async def test_messages_that_are_done_when_they_are_stored_are_booked_once(site: Site, guide: SimpleNamespace) -> None:
    _, attributes, body = await site.publish()
    record = SimpleNamespace(headers=_pairs(_headers("ce_", attributes)), value=body)
    await guide.consume_stored(Stream(record, record), site.pool)
    assert await site.balance() == 7


async def test_each_library_of_a_database_books_once(site: Site, guide: SimpleNamespace, database_url: str) -> None:
    _, attributes, body = await site.publish()
    run = receive.kafka(SimpleNamespace(headers=_pairs(_headers("ce_", attributes)), value=body))
    engine = create_async_engine(database_url.replace("postgresql://", "postgresql+asyncpg://"))
    sessions = async_sessionmaker(engine)
    with psycopg.connect(database_url) as connection:
        for number in range(2):
            guide.book_by_psycopg(replace(run, idempotency_key="psycopg"), connection)
            await guide.book_by_sqlalchemy(replace(run, idempotency_key="sqlalchemy"), sessions)
            await guide.book(replace(run, idempotency_key="asyncpg"), site.pool)
            assert await site.balance() == 3 * 7, f"after {number + 1} deliveries to each"
    await engine.dispose()


async def test_a_webhook_that_comes_to_two_processes_is_booked_once(site: Site, guide: SimpleNamespace) -> None:
    sent = replace(
        ATTEMPT,
        run_id=format_run_id(4096, 1_780_923_600_000_000),
        job_id=format_id(Prefix.JOB, 4096),
        body=b'{"account": "rent", "amount": 7}',
    )

    async def deliver(token: int, body: bytes | None = None) -> Any:
        """To a process that remembers nothing."""
        receiver = Receiver([SECRET.text], now=NOW.timestamp)
        headers = headers_of(replace(sent, fencing_token=token), NOW)
        return await guide.on_webhook(headers, sent.body if body is None else body, receiver, site.pool)

    assert await deliver(5, b"{}") == 401
    assert [await deliver(token) for token in (5, 5, 7, 6)] == [204, 204, 204, 409]
    assert await site.balance() == 7
