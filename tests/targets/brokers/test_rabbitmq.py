"""Publishing to a real RabbitMQ, read back by aio-pika."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel

from evertick.targets.brokers import rabbitmq as rabbitmq_module, stream
from evertick.targets.brokers.rabbitmq import open_publisher
from ports import free_port, free_ports
from servers.rabbitmq import PASSWORD, USER, RabbitMqServer
from targets.brokers.publishing import (
    ATTRIBUTES,
    BODY,
    MANY,
    NAMES,
    PLAIN,
    UNWRITABLE_ENVELOPE,
    WAIT_SECONDS,
    Guard,
    failure_beside,
    failure_in_batch,
    failure_of,
    message,
    publishing,
    until_published,
)

SECRETS = {"password": PASSWORD}


def settings(server: RabbitMqServer, **changes: object) -> dict[str, object]:
    return {"host": "localhost", "port": server.port, "username": USER, "tls": False, **changes}


@asynccontextmanager
async def channel(server: RabbitMqServer) -> AsyncIterator[AbstractChannel]:
    async with await aio_pika.connect(server.url) as connection:
        yield await connection.channel()


async def count(reader: AbstractChannel, name: str) -> int:
    queue = await reader.declare_queue(name, passive=True)
    return queue.declaration_result.message_count or 0


async def test_a_message_that_cannot_be_written_fails_alone(rabbitmq_server: RabbitMqServer) -> None:
    async with (
        channel(rabbitmq_server) as reader,
        publishing(open_publisher, settings(rabbitmq_server), SECRETS) as rabbitmq,
    ):
        await reader.declare_queue("written", durable=True)
        bad = message(routing_key="written")._replace(envelope=UNWRITABLE_ENVELOPE)
        failure = await failure_in_batch(rabbitmq, bad, message(routing_key="written"))
    assert str(failure) == "the message cannot be written: UnicodeEncodeError"
    assert (failure.retryable, failure.is_broker_down) == (False, False)


async def test_a_message_is_stored_with_its_attributes_and_headers(rabbitmq_server: RabbitMqServer) -> None:
    async with (
        channel(rabbitmq_server) as reader,
        publishing(open_publisher, settings(rabbitmq_server), SECRETS) as rabbitmq,
    ):
        exchange = await reader.declare_exchange("arrives", "topic", durable=True)
        queue = await reader.declare_queue("arrives", durable=True)
        await queue.bind(exchange, "orders.#")
        told = await rabbitmq.publish(message(exchange="arrives", routing_key="orders.new"))
        found = await queue.get()
        await found.ack()
    assert told == "exchange arrives, routing key orders.new"
    assert found.body == BODY
    expected = {f"cloudEvents_{name}": text for name, text in ATTRIBUTES.items()}
    assert found.headers == {"X-Team": "billing", **expected, **PLAIN}
    assert (found.content_type, found.message_id) == ("application/json", "key-1")
    assert found.delivery_mode == aio_pika.DeliveryMode.PERSISTENT


async def test_names_of_any_length_and_characters_arrive(rabbitmq_server: RabbitMqServer) -> None:
    async with (
        channel(rabbitmq_server) as reader,
        publishing(open_publisher, settings(rabbitmq_server), SECRETS) as rabbitmq,
    ):
        queue = await reader.declare_queue("names", durable=True)
        for name in NAMES:
            await rabbitmq.publish(message(exchange="", routing_key="names", name=name))
            found = await queue.get()
            await found.ack()
            assert found.headers["cloudEvents_subject"] == name
            assert found.headers["cloudEvents_token"] == "412.17"


async def test_large_and_empty_messages_arrive_whole(rabbitmq_server: RabbitMqServer) -> None:
    bodies = [b"", b"x" * 131_064, b"y" * 400_000]
    async with (
        channel(rabbitmq_server) as reader,
        publishing(open_publisher, settings(rabbitmq_server), SECRETS) as rabbitmq,
    ):
        queue = await reader.declare_queue("whole", durable=True)
        for body in bodies:
            await rabbitmq.publish(message(body=body, exchange="", routing_key="whole"))
        found = [await queue.get(no_ack=True) for _ in bodies]
    assert [each.body for each in found] == bodies


async def test_many_messages_at_once_are_all_stored(rabbitmq_server: RabbitMqServer) -> None:
    async with (
        channel(rabbitmq_server) as reader,
        publishing(open_publisher, settings(rabbitmq_server), SECRETS) as rabbitmq,
    ):
        await reader.declare_queue("many", durable=True)
        await asyncio.gather(*(rabbitmq.publish(message(number, routing_key="many")) for number in range(MANY)))
        assert await count(reader, "many") == MANY


async def test_a_message_that_no_queue_gets_fails_alone(rabbitmq_server: RabbitMqServer) -> None:
    async with (
        channel(rabbitmq_server) as reader,
        publishing(open_publisher, settings(rabbitmq_server), SECRETS) as rabbitmq,
    ):
        await reader.declare_queue("routed", durable=True)
        lost = rabbitmq.publish(message(1, routing_key="nowhere"))
        failure = await failure_beside(
            lost, *(rabbitmq.publish(message(number, routing_key="routed")) for number in range(2, 20))
        )
    assert str(failure) == "no queue gets it: exchange (default): NO_ROUTE for routing key 'nowhere'"
    assert (failure.retryable, failure.is_broker_down) == (True, False)


async def test_a_missing_exchange_fails_its_messages_alone(rabbitmq_server: RabbitMqServer) -> None:
    async with (
        channel(rabbitmq_server) as reader,
        publishing(open_publisher, settings(rabbitmq_server), SECRETS) as rabbitmq,
    ):
        await reader.declare_queue("beside", durable=True)
        missing = [failure_of(rabbitmq.publish(message(exchange="no-such", routing_key="a"))) for _ in range(3)]
        good = (rabbitmq.publish(message(number, routing_key="beside")) for number in range(20))
        failures, _ = await asyncio.gather(asyncio.gather(*missing), asyncio.gather(*good))
        assert await count(reader, "beside") == 20
    assert {str(each) for each in failures} == {"NOT_FOUND - no exchange 'no-such' in vhost '/'"}
    assert {(each.retryable, each.is_broker_down) for each in failures} == {(True, False)}


async def test_an_exchange_that_is_deleted_disturbs_no_other(rabbitmq_server: RabbitMqServer) -> None:
    async with (
        channel(rabbitmq_server) as reader,
        publishing(open_publisher, settings(rabbitmq_server), SECRETS) as rabbitmq,
    ):
        queue = await reader.declare_queue("stays", durable=True)
        exchange = await reader.declare_exchange("deleted", "fanout")
        await queue.bind(exchange)
        await rabbitmq.publish(message(exchange="deleted", routing_key="a"))
        await exchange.delete()
        gone = rabbitmq.publish(message(exchange="deleted", routing_key="a"))
        good = (rabbitmq.publish(message(number, routing_key="stays")) for number in range(20))
        failure = await failure_beside(gone, *good)
        assert await count(reader, "stays") >= 21
    assert str(failure) == "NOT_FOUND - no exchange 'deleted' in vhost '/'"


async def test_a_full_queue_refuses(rabbitmq_server: RabbitMqServer) -> None:
    async with (
        channel(rabbitmq_server) as reader,
        publishing(open_publisher, settings(rabbitmq_server), SECRETS) as rabbitmq,
    ):
        limits: dict[str, Any] = {"x-max-length": 1, "x-overflow": "reject-publish"}
        await reader.declare_queue("full", durable=True, arguments=limits)
        await rabbitmq.publish(message(1, routing_key="full"))
        failure = await failure_of(rabbitmq.publish(message(2, routing_key="full")))
    assert str(failure) == "the broker refused the message: a queue is full or has failed"
    assert (failure.retryable, failure.is_broker_down) == (True, False)


async def test_a_queue_that_refuses_delays_and_doubles_nothing_of_others(
    rabbitmq_server: RabbitMqServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rabbitmq_module, "RENEW_SECONDS", 0.0)  # each refusal opens the channel anew
    limits: dict[str, Any] = {"x-max-length": 1, "x-overflow": "reject-publish"}
    async with (
        channel(rabbitmq_server) as reader,
        publishing(open_publisher, settings(rabbitmq_server), SECRETS) as rabbitmq,
    ):
        queue = await reader.declare_queue("refusing", durable=True, arguments=limits)
        await reader.declare_queue("taking", durable=True)
        await rabbitmq.publish(message(0, routing_key="refusing"))

        async def publish(number: int) -> None:
            await failure_of(rabbitmq.publish(message(number, routing_key="refusing")))
            await rabbitmq.publish(message(number, routing_key="taking"))

        await asyncio.gather(*(publish(number) for number in range(100)))
        assert await count(reader, "taking") == 100
        await queue.purge()
        await rabbitmq.publish(message(1, routing_key="refusing"))


async def test_another_node_is_used_when_the_first_takes_no_connection(rabbitmq_server: RabbitMqServer) -> None:
    nodes = settings(rabbitmq_server, port=free_port(), other_nodes=[f"localhost:{rabbitmq_server.port}"])
    async with (
        channel(rabbitmq_server) as reader,
        publishing(open_publisher, nodes, SECRETS) as rabbitmq,
    ):
        await reader.declare_queue("nodes", durable=True)
        await rabbitmq.publish(message(routing_key="nodes"))
        assert f"localhost:{rabbitmq_server.port}" in await rabbitmq.check()
        assert await count(reader, "nodes") == 1


async def test_when_no_node_takes_a_connection_the_reason_is_that_of_the_first() -> None:
    first, second = free_ports(2)
    nodes = {"host": "localhost", "port": first, "other_nodes": [f"localhost:{second}"], "username": USER, "tls": False}
    async with publishing(open_publisher, nodes, SECRETS) as rabbitmq:
        failure = await failure_of(rabbitmq.publish(message(routing_key="nodes")))
    assert str(failure) == f"cannot connect to localhost:{first}: Connection refused"
    assert (failure.retryable, failure.is_broker_down) == (True, True)


@pytest.mark.parametrize(
    ("changes", "secrets", "reason"),
    [
        ({}, {"password": "wrong"}, "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN."),
        ({"vhost": "none"}, SECRETS, "NOT_ALLOWED - vhost none not found"),
    ],
)
async def test_a_login_that_is_refused_says_why(
    rabbitmq_server: RabbitMqServer, changes: dict[str, object], secrets: dict[str, str], reason: str
) -> None:
    async with publishing(open_publisher, settings(rabbitmq_server, **changes), secrets) as rabbitmq:
        failure = await failure_of(rabbitmq.check())
    assert reason in str(failure)
    assert (failure.retryable, failure.is_broker_down) == (True, True)


async def test_a_check_says_what_was_found(rabbitmq_server: RabbitMqServer) -> None:
    async with publishing(open_publisher, settings(rabbitmq_server), SECRETS) as rabbitmq:
        assert (await rabbitmq.check()).startswith("RabbitMQ ")


async def test_a_host_that_the_guard_refuses_is_not_called(rabbitmq_server: RabbitMqServer) -> None:
    async with publishing(open_publisher, settings(rabbitmq_server), SECRETS, Guard("localhost")) as rabbitmq:
        failure = await failure_of(rabbitmq.check())
    assert str(failure) == f"localhost:{rabbitmq_server.port}: not a public address"
    assert not failure.retryable


async def test_a_certificate_is_checked_against_the_name(rabbitmq_server: RabbitMqServer) -> None:
    authority = rabbitmq_server.authority.read_text(encoding="utf-8")
    tls = settings(rabbitmq_server, port=rabbitmq_server.tls_port, tls=True, tls_ca=authority)
    async with publishing(open_publisher, tls, SECRETS) as rabbitmq:
        await rabbitmq.check()
    async with publishing(open_publisher, {**tls, "host": "other.example"}, SECRETS) as rabbitmq:
        assert "its certificate is not valid: Hostname mismatch" in str(await failure_of(rabbitmq.check()))
    async with publishing(open_publisher, {**tls, "tls_ca": None}, SECRETS) as rabbitmq:
        assert "its certificate is not valid: " in str(await failure_of(rabbitmq.check()))


async def test_a_cancelled_publish_leaves_the_publisher_usable(rabbitmq_server: RabbitMqServer) -> None:
    async with (
        channel(rabbitmq_server) as reader,
        publishing(open_publisher, settings(rabbitmq_server), SECRETS) as rabbitmq,
    ):
        await reader.declare_queue("cancelled", durable=True)
        for rounds in range(6):
            task = asyncio.create_task(rabbitmq.publish(message(routing_key="cancelled")))
            for _ in range(rounds):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await rabbitmq.publish(message(2, routing_key="cancelled"))


@pytest.mark.campaign  # a start takes long
async def test_after_a_kill_of_the_server_the_same_publisher_goes_on(rabbitmq_server: RabbitMqServer) -> None:
    async with channel(rabbitmq_server) as reader:
        await reader.declare_queue("kept", durable=True)
    await asyncio.to_thread(rabbitmq_server.stop)  # a queue that was declared a moment ago may not outlast a kill
    await asyncio.to_thread(rabbitmq_server.start)
    async with publishing(open_publisher, settings(rabbitmq_server), SECRETS) as rabbitmq:
        await rabbitmq.publish(message(1, routing_key="kept"))
        await asyncio.to_thread(rabbitmq_server.kill)
        failure = await failure_of(rabbitmq.publish(message(2, routing_key="kept")))
        async with asyncio.timeout(WAIT_SECONDS):
            while "Connection refused" not in str(failure):  # lost or reset, until all processes of the server are gone
                assert (failure.retryable, failure.is_broker_down) == (True, True)
                failure = await failure_of(rabbitmq.publish(message(2, routing_key="kept")))
        assert str(failure) == f"cannot connect to localhost:{rabbitmq_server.port}: Connection refused"
        assert (failure.retryable, failure.is_broker_down) == (True, True)
        await asyncio.to_thread(rabbitmq_server.start)
        await until_published(rabbitmq, message(3, routing_key="kept"))
        async with channel(rabbitmq_server) as reader:
            queue = await reader.declare_queue("kept", durable=True)
            found = [(await queue.get(no_ack=True)).message_id for _ in range(2)]
    assert found == ["key-1", "key-3"]


async def test_a_server_that_hangs_is_left(rabbitmq_server: RabbitMqServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "SILENCE_SECONDS", 1.0)
    async with channel(rabbitmq_server) as reader:
        await reader.declare_queue("hangs", durable=True)
    async with publishing(open_publisher, settings(rabbitmq_server), SECRETS) as rabbitmq:
        await rabbitmq.publish(message(1, routing_key="hangs"))
        rabbitmq_server.suspend()
        try:
            failure = await failure_of(rabbitmq.publish(message(2, routing_key="hangs")))
        finally:
            rabbitmq_server.resume()
        assert str(failure) == f"localhost:{rabbitmq_server.port}: the broker has not answered for 1 s"
        await until_published(rabbitmq, message(3, routing_key="hangs"))


async def test_a_publish_that_is_cancelled_while_its_exchange_is_looked_for_leaves_the_connection_to_others(
    rabbitmq_server: RabbitMqServer,
) -> None:
    async with (
        channel(rabbitmq_server) as reader,
        publishing(open_publisher, settings(rabbitmq_server), SECRETS) as rabbitmq,
    ):
        await reader.declare_queue("looking", durable=True)
        await rabbitmq.publish(message(0, exchange="", routing_key="looking"))
        stopped = asyncio.create_task(rabbitmq.publish(message(1, exchange="nowhere", routing_key="looking")))
        for _ in range(3):  # turns of the event loop: it has asked, and the broker has not answered
            await asyncio.sleep(0)
        stopped.cancel()
        failure = await failure_of(rabbitmq.publish(message(2, exchange="amq.direct", routing_key="nobody")))
        assert "NO_ROUTE" in str(failure)
        await rabbitmq.publish(message(3, exchange="", routing_key="looking"))
