"""Consumers of messages: how runs are read from each broker's, and how their outcomes are reported."""

import asyncio
import base64
import json
import threading
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from engine import PATIENCE_SECONDS, until
from evertick import DoNotRetry, RetryLater, receive
from evertick.client import AsyncClient, Invalid, Unreachable
from evertick.client.errors import ApiProblem
from evertick.contract.workers import Heartbeat, OutcomeReport, Recorded
from evertick.domain.ids import Prefix, format_id, format_run_id
from evertick.receive import AsyncReporting, MessageRun, Receiver, Reporting, StaleToken, Unreadable
from publishing import MAKE_REPORTED, Publisher, publishing
from sdk.served import Served, worker_target

JOB_ID = format_id(Prefix.JOB, 4711)
ATTRIBUTES = {
    "specversion": "1.0",
    "id": format_run_id(4711, 1_790_000_000_000_000),
    "source": f"/evertick/jobs/{JOB_ID}",
    "type": "evertick.run.fired",
    "subject": "r\N{LATIN SMALL LETTER E WITH ACUTE}port % 7",
    "time": "2026-09-21T14:13:20Z",
    "idempotencykey": "report:2026-09-21",
    "fencingtoken": "1790000000000001",
    "token": "412.1790000000000001",
    "attempt": "2",
    "reason": "tick",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
}
BODY = b'{"n": 1}'


def _named(prefix: str) -> dict[str, str]:
    return {"content-type": "application/json", **{prefix + name: value for name, value in ATTRIBUTES.items()}}


def _bytes(named: dict[str, str]) -> list[tuple[str, bytes]]:
    return [(name, value.encode()) for name, value in named.items()]


def _quoted(named: dict[str, str]) -> dict[str, str]:
    return named | {"ce-subject": "r%C3%A9port%20%25%207"}


def _sqs(body: str, **more: str) -> dict[str, Any]:
    texts = {"content-type": "application/json", "cloudevents": json.dumps(ATTRIBUTES), **more}
    attributes = {name: {"DataType": "String", "StringValue": text} for name, text in texts.items()}
    return {"MessageId": "1", "Body": body, "MessageAttributes": attributes}


def _lambda() -> dict[str, Any]:
    attributes = {"cloudevents": {"dataType": "String", "stringValue": json.dumps(ATTRIBUTES)}}
    return {"messageId": "1", "body": BODY.decode(), "messageAttributes": attributes}


MESSAGES: dict[str, tuple[Receiver, Any]] = {
    "aiokafka": (receive.kafka, SimpleNamespace(headers=tuple(_bytes(_named("ce_"))), value=BODY)),
    "confluent": (receive.kafka, SimpleNamespace(headers=lambda: _bytes(_named("ce_")), value=lambda: BODY)),
    "aio-pika": (receive.rabbitmq, SimpleNamespace(headers=_named("cloudEvents_"), body=BODY)),
    "another binding": (receive.rabbitmq, SimpleNamespace(headers=_named("cloudEvents:"), body=BODY)),
    "pika": (receive.rabbitmq, (SimpleNamespace(headers=dict(_bytes(_named("cloudEvents_")))), BODY)),
    "redis": (receive.redis, (b"1-0", {name.encode(): v for name, v in _bytes(_named("ce_"))} | {b"data": BODY})),
    "redis text": (receive.redis, _named("ce-") | {"data": BODY.decode()}),
    "nats": (receive.nats, SimpleNamespace(headers=_quoted(_named("ce-")), data=BODY)),
    "sqs": (receive.sqs, _sqs(BODY.decode())),
    "sqs base64": (receive.sqs, _sqs(base64.b64encode(BODY).decode(), encoding="base64")),
    "lambda": (receive.sqs, _lambda()),
}


@pytest.mark.parametrize("kind", MESSAGES)
def test_a_run_is_read_from_the_message_of_any_library(kind: str) -> None:
    receiver, message = MESSAGES[kind]
    run = receiver(message)
    assert (run.run_id, run.job_id, run.job_name) == (ATTRIBUTES["id"], JOB_ID, ATTRIBUTES["subject"])
    assert run.scheduled_at.isoformat() == "2026-09-21T14:13:20+00:00"
    assert (run.attempt, run.reason, run.payload) == (2, "tick", {"n": 1})
    assert (run.idempotency_key, run.fencing_token) == ("report:2026-09-21", 1790000000000001)
    assert (run.token, run.traceparent) == ("412.1790000000000001", ATTRIBUTES["traceparent"])


def test_an_empty_body_is_no_payload() -> None:
    assert receive.sqs(_sqs("-", encoding="empty")).payload is None
    assert receive.kafka(SimpleNamespace(headers=_bytes(_named("ce_")), value=None)).payload is None


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (SimpleNamespace(headers=None, value=b"x"), "no attribute 'token'"),
        (SimpleNamespace(headers=_bytes(_named("ce_")), value=b"{"), "cannot be read"),
        (SimpleNamespace(headers=_bytes(_named("ce_") | {"ce_attempt": "two"}), value=BODY), "cannot be read"),
        (SimpleNamespace(headers=_bytes(_named("ce_") | {"ce_token": "7"}), value=BODY), "cannot be read"),
    ],
)
def test_what_is_no_message_of_a_run_is_refused(message: Any, words: str) -> None:
    with pytest.raises(Unreadable, match=words):
        receive.kafka(message)


def test_sqs_without_attributes_says_what_to_ask_for() -> None:
    with pytest.raises(Unreadable, match="MessageAttributeNames"):
        receive.sqs({"Body": "{}"})
    with pytest.raises(Unreadable, match="'cloudevents' cannot be read"):
        receive.sqs(_sqs("{}", cloudevents="["))


class Broker:
    """Jobs that are published and reported, and their messages, as aiokafka gives them."""

    def __init__(self, house: Served, client: AsyncClient, publisher: Publisher) -> None:
        self.house = house
        self.client = client
        self.publisher = publisher

    async def publish(self, **fields: Any) -> tuple[str, SimpleNamespace]:
        job = await self.client.jobs.create(
            schedule="manual", target=worker_target(), payload={"n": 1}, retry_delay_seconds=0, **fields
        )
        await self.house.pool.execute(MAKE_REPORTED)
        run_id = (await self.client.jobs.trigger(job.job_id)).run_id
        return run_id, await self.message()

    async def message(self) -> SimpleNamespace:
        attributes, body = await self.publisher.next_message()
        return SimpleNamespace(
            headers=[(f"ce_{name}", value.encode()) for name, value in attributes.items()], value=body
        )


@pytest.fixture
async def broker(house: Served, client: AsyncClient, database_url: str) -> AsyncIterator[Broker]:
    publisher = Publisher()
    async with publishing(database_url, publisher, "default"):
        yield Broker(house, client, publisher)


async def test_a_block_that_ends_is_a_success(broker: Broker) -> None:
    run_id, message = await broker.publish()
    async with receive.kafka(message, broker.client, worker_id="reports-1") as run:
        assert (run.run_id, run.payload) == (run_id, {"n": 1})
        during = await broker.client.runs.get(run_id)
        assert (during.status, during.worker_id) == ("running", "reports-1")
    after = await broker.client.runs.get(run_id)
    assert (after.status, after.worker_id, after.started_at is not None) == ("success", "reports-1", True)


async def test_a_block_that_raises_is_a_failure_and_the_next_message_a_new_attempt(broker: Broker) -> None:
    run_id, message = await broker.publish()
    async with receive.kafka(message, broker.client):
        raise ValueError("no paper")
    async with receive.kafka(await broker.message(), broker.client) as run:
        assert run.attempt == 2
    attempts = (await broker.client.runs.get(run_id)).attempts
    assert [each.result for each in attempts] == ["failed", "success"]
    assert (attempts[0].error or "").startswith("ValueError: no paper")


async def test_handlers_return_outputs_and_say_how_to_go_on(broker: Broker) -> None:
    def fail(run: MessageRun) -> None:
        raise RetryLater(0, "the printer warms up") if run.attempt == 1 else DoNotRetry("it is broken")

    async def fail_async(run: MessageRun) -> None:
        fail(run)

    run_id, message = await broker.publish()
    assert await receive.kafka.handle_async(message, broker.client, fail_async)
    assert await receive.kafka.handle_async(await broker.message(), broker.client, fail_async)
    run = await broker.client.runs.get(run_id)
    assert (run.status, [(each.error or "").split("\n")[0] for each in run.attempts]) == (
        "dead",
        ["RetryLater: the printer warms up", "DoNotRetry: it is broken"],
    )

    async def count(run: MessageRun) -> dict[str, Any]:
        return {"pages": run.payload["n"]}

    run_id, message = await broker.publish()
    assert await receive.kafka.handle_async(message, broker.client, count)
    assert (await broker.client.runs.get(run_id)).attempts[0].excerpt == '{"pages":1}'


async def test_a_message_of_an_attempt_that_is_over_or_claimed_is_not_handled(broker: Broker) -> None:
    run_id, message = await broker.publish()
    async with receive.kafka(message, broker.client, worker_id="a"):
        with pytest.raises(StaleToken, match=run_id):
            async with receive.kafka(message, broker.client, worker_id="b"):
                pytest.fail("two consumers have it")
    assert not await receive.kafka.handle_async(message, broker.client, _fail)


async def _fail(_: MessageRun) -> None:
    pytest.fail("it was handled")


async def test_a_cancellation_stops_the_block(broker: Broker) -> None:
    run_id, message = await broker.publish()

    async def wait_for_ever(_: MessageRun) -> None:
        await broker.client.runs.cancel(run_id)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.Event().wait()

    assert not await receive.kafka.handle_async(message, broker.client, wait_for_ever, heartbeat_seconds=0.05)
    current = asyncio.current_task()
    assert current is not None
    assert not current.cancelling()


async def test_heartbeats_keep_an_attempt_for_longer_than_a_lease(broker: Broker) -> None:
    run_id, message = await broker.publish()
    async with receive.kafka(message, broker.client, heartbeat_seconds=0.05):
        expires = "SELECT expires_at FROM leases WHERE ends_at IS NOT NULL"
        first = await broker.house.pool.fetchval(expires)

        async def is_extended() -> bool:
            return bool(await broker.house.pool.fetchval(expires) > first)

        await until(is_extended)
    assert (await broker.client.runs.get(run_id)).status == "success"


async def test_a_consumer_that_is_stopped_gives_the_attempt_back(broker: Broker) -> None:
    run_id, message = await broker.publish()
    is_inside = asyncio.Event()

    async def consume() -> None:
        async with receive.kafka(message, broker.client):
            is_inside.set()
            await asyncio.Event().wait()

    consuming = asyncio.create_task(consume())
    await is_inside.wait()
    consuming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consuming
    again = receive.kafka(await broker.message())
    assert again.attempt == 1
    [first, *_] = (await broker.client.runs.get(run_id)).attempts
    assert (first.result, first.error) == ("deferred", "its consumer stopped")


async def test_a_server_that_is_away_is_told_to_the_consumer(broker: Broker, unused_tcp_port: int) -> None:
    _, message = await broker.publish()
    async with AsyncClient(f"http://127.0.0.1:{unused_tcp_port}", "key", retries=0) as away:
        with pytest.raises(Unreachable):
            async with receive.kafka(message, away):
                pytest.fail("it was handled although it cannot be reported")


class FormerServer:
    """The calls of a server of the version before, which refuses excerpts; the results that it took."""

    def __init__(self) -> None:
        self.results: list[str] = []

    def heartbeat(self, *_: Any) -> Heartbeat:
        return Heartbeat(cancel=())

    def record(self, _: str, outcomes: list[OutcomeReport]) -> Recorded:
        if any(each.excerpt is not None for each in outcomes):
            raise Invalid(ApiProblem(method="POST", path="/outcomes", status=422))
        self.results += [each.result for each in outcomes]
        return Recorded(recorded=len(outcomes), stale=())

    async def heartbeat_async(self, *given: Any) -> Heartbeat:
        return self.heartbeat(*given)

    async def record_async(self, *given: Any) -> Recorded:
        return self.record(*given)


async def test_a_success_whose_output_is_refused_is_one_without() -> None:
    server = FormerServer()
    run = receive.kafka(SimpleNamespace(headers=_bytes(_named("ce_")), value=BODY))
    plain: Any = SimpleNamespace(workers=server)
    reporting = Reporting(run, plain)
    with reporting:
        reporting.output = object()
    asynchronous: Any = SimpleNamespace(
        workers=SimpleNamespace(heartbeat=server.heartbeat_async, record=server.record_async)
    )
    reporting_async = AsyncReporting(run, asynchronous)
    async with reporting_async:
        reporting_async.output = object()
    assert server.results == ["success"] * 2


async def in_thread(function: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(function)


async def test_plain_code_reports_successes_failures_and_stale_ones(broker: Broker) -> None:
    run_id, message = await broker.publish()

    def consume(message: Any, effect: Callable[[MessageRun], Any]) -> bool:
        with broker.house.sync_client() as client:
            return receive.kafka.handle(message, client, effect, heartbeat_seconds=0.05)

    def fail(_: MessageRun) -> None:
        raise ValueError("no paper")

    assert await in_thread(lambda: consume(message, fail))
    assert not await in_thread(lambda: consume(message, fail))
    second = await broker.message()
    assert await in_thread(lambda: consume(second, lambda run: run.attempt))
    attempts = (await broker.client.runs.get(run_id)).attempts
    assert [(each.result, each.excerpt) for each in attempts] == [("failed", None), ("success", "2")]


async def test_plain_code_sees_that_it_is_cancelled(broker: Broker) -> None:
    run_id, message = await broker.publish()
    is_inside, was_seen = threading.Event(), threading.Event()

    def consume() -> None:
        with broker.house.sync_client() as client:
            reporting = receive.kafka(message, client, heartbeat_seconds=0.05)
            with reporting:
                is_inside.set()
                while not reporting.is_cancelled:
                    was_seen.wait(0.01)
                was_seen.set()

    consuming = asyncio.create_task(in_thread(consume))
    await asyncio.to_thread(is_inside.wait, 60)
    await broker.client.runs.cancel(run_id)
    with pytest.raises(StaleToken):
        await consuming
    assert was_seen.is_set()
