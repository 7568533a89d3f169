"""Publishing to a real Kafka, read back by aiokafka."""

import asyncio

import pytest
from aiokafka.partitioner import DefaultPartitioner, murmur2

from evertick.targets.brokers import stream
from evertick.targets.brokers.kafka import open_publisher
from evertick.targets.brokers.kafka_protocol import partition_hash
from servers.kafka import PASSWORD, USER, KafkaServer
from targets.brokers.kafka_reading import admin, create, read
from targets.brokers.publishing import (
    ATTRIBUTES,
    BODY,
    MANY,
    NAMES,
    PLAIN,
    UNWRITABLE,
    WAIT_SECONDS,
    Guard,
    failure_beside,
    failure_in_batch,
    failure_of,
    message,
    publishing,
    until_published,
)


def settings(server: KafkaServer, **changes: object) -> dict[str, object]:
    return {"bootstrap_servers": [f"localhost:{server.port}"], "security_protocol": "PLAINTEXT", **changes}


def sasl(server: KafkaServer, mechanism: str) -> dict[str, object]:
    return {
        "bootstrap_servers": [f"localhost:{server.sasl_port}"],
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "username": USER,
    }


async def test_a_message_is_stored_with_its_attributes_and_headers(kafka_server: KafkaServer) -> None:
    await create(kafka_server, "arrives")
    async with publishing(open_publisher, settings(kafka_server)) as kafka:
        told = await kafka.publish(message(topic="arrives", key="job_1"))
    (found,) = await read(kafka_server, "arrives")
    assert told == "topic arrives, partition 0, offset 0"
    assert (found.key, found.value) == (b"job_1", BODY)
    assert {name: text.decode() for name, text in found.headers} == {
        "X-Team": "billing",
        "content-type": "application/json",
        **{f"ce_{name}": text for name, text in ATTRIBUTES.items()},
        **PLAIN,
    }


async def test_names_of_any_length_and_characters_arrive(kafka_server: KafkaServer) -> None:
    await create(kafka_server, "names")
    async with publishing(open_publisher, settings(kafka_server)) as kafka:
        for name in NAMES:
            await kafka.publish(message(topic="names", key="job_1", name=name))
    found = [dict(each.headers) for each in await read(kafka_server, "names")]
    assert [each["ce_subject"].decode() for each in found] == NAMES
    assert [each["ce_token"] for each in found] == [b"412.17"] * len(NAMES)


async def test_many_messages_at_once_are_all_stored_once(kafka_server: KafkaServer) -> None:
    await create(kafka_server, "many", partitions=6)
    async with publishing(open_publisher, settings(kafka_server)) as kafka:
        await asyncio.gather(
            *(kafka.publish(message(number, topic="many", key=f"job_{number % 50}")) for number in range(MANY))
        )
    found = await read(kafka_server, "many")
    assert sorted(dict(each.headers)["ce_id"] for each in found) == sorted(f"run_{n}".encode() for n in range(MANY))
    assert len({each.partition for each in found}) == 6
    assert all(len({each.partition for each in found if each.key == key}) == 1 for key in (b"job_1", b"job_2"))


@pytest.mark.parametrize("key", ["", "a", "ab", "abc", "abcd", "job_01hzxw", "Ünïcode"])
def test_a_key_has_the_partition_that_other_producers_give_it(key: str) -> None:
    raw = key.encode()
    assert partition_hash(raw) == murmur2(raw) & 0x7FFF_FFFF
    assert list(range(7))[partition_hash(raw) % 7] == DefaultPartitioner()(raw, list(range(7)), list(range(7)))


async def test_a_missing_topic_fails_at_once_and_is_not_created(kafka_server: KafkaServer) -> None:
    async with publishing(open_publisher, settings(kafka_server)) as kafka, asyncio.timeout(WAIT_SECONDS):
        failure = await failure_of(kafka.publish(message(topic="no-such", key="a")))
    assert str(failure) == "topic no-such does not exist"
    assert (failure.retryable, failure.is_broker_down) == (True, False)
    async with admin(kafka_server) as client:
        assert "no-such" not in await client.list_topics()


async def test_a_name_that_no_topic_can_have_fails(kafka_server: KafkaServer) -> None:
    async with publishing(open_publisher, settings(kafka_server)) as kafka:
        failure = await failure_of(kafka.publish(message(topic="no topic!", key="a")))
    assert str(failure) == "topic no topic!: the name of the topic is not valid"
    assert (failure.retryable, failure.is_broker_down) == (False, False)


async def test_a_message_that_is_too_large_fails_alone(kafka_server: KafkaServer) -> None:
    await create(kafka_server, "small", max_message_bytes="4000")
    async with publishing(open_publisher, settings(kafka_server)) as kafka:
        large = kafka.publish(message(body=b"x" * 5000, topic="small", key="a"))
        # Together they are larger than a batch may be.
        small = (kafka.publish(message(number, topic="small", key="a")) for number in range(40))
        failure = await failure_beside(large, *small)
    assert str(failure) == "the message is larger than topic small takes (max.message.bytes)"
    assert (failure.retryable, failure.is_broker_down) == (False, False)
    assert len(await read(kafka_server, "small")) == 40


async def test_a_message_that_cannot_be_written_fails_alone(kafka_server: KafkaServer) -> None:
    await create(kafka_server, "written")
    async with publishing(open_publisher, settings(kafka_server)) as kafka:
        bad, good = message(topic="written", key=UNWRITABLE), message(topic="written", key="a")
        failure = await failure_in_batch(kafka, bad, good)
    assert str(failure) == "the message cannot be written: UnicodeEncodeError"
    assert (failure.retryable, failure.is_broker_down) == (False, False)


async def test_a_record_that_a_topic_refuses_fails_alone(kafka_server: KafkaServer) -> None:
    await create(kafka_server, "compacted", cleanup_policy="compact")  # which takes no record without a key
    async with publishing(open_publisher, settings(kafka_server)) as kafka:
        failure = await failure_in_batch(kafka, message(topic="compacted"), message(topic="compacted", key="a"))
    assert str(failure) == "topic compacted: the broker refused the record"
    assert (failure.retryable, failure.is_broker_down) == (False, False)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_a_login_with_the_right_password_only(kafka_server: KafkaServer, mechanism: str) -> None:
    async with publishing(open_publisher, sasl(kafka_server, mechanism), {"password": PASSWORD}) as kafka:
        assert (await kafka.check()).endswith("with 1 broker")
    async with publishing(open_publisher, sasl(kafka_server, mechanism), {"password": "wrong"}) as kafka:
        failure = await failure_of(kafka.check())
    assert "Authentication failed" in str(failure)
    assert (failure.retryable, failure.is_broker_down) == (True, True)


async def test_a_mechanism_that_the_broker_lacks_is_named(kafka_server: KafkaServer) -> None:
    async with publishing(open_publisher, sasl(kafka_server, "SCRAM-SHA-512"), {"password": PASSWORD}) as kafka:
        failure = await failure_of(kafka.check())
    assert "does not have the SASL mechanism; it offers PLAIN" in str(failure)


async def test_a_host_that_a_broker_advertises_goes_through_the_guard(kafka_server: KafkaServer) -> None:
    await create(kafka_server, "guarded")
    guard = Guard("127.0.0.1")  # the broker tells that it is there
    async with publishing(open_publisher, settings(kafka_server), dial=guard) as kafka:
        failure = await failure_of(kafka.publish(message(topic="guarded", key="a")))
    assert str(failure) == f"127.0.0.1:{kafka_server.port}: not a public address"
    assert not failure.retryable
    assert guard.asked == ["localhost", "127.0.0.1"]


async def test_a_cancelled_publish_leaves_the_publisher_usable(kafka_server: KafkaServer) -> None:
    await create(kafka_server, "cancelled")
    async with publishing(open_publisher, settings(kafka_server)) as kafka:
        for rounds in range(6):
            task = asyncio.create_task(kafka.publish(message(topic="cancelled", key="a")))
            for _ in range(rounds):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await kafka.publish(message(2, topic="cancelled", key="a"))


@pytest.mark.campaign  # a start takes long
async def test_after_a_kill_of_the_server_the_same_publisher_goes_on(kafka_server: KafkaServer) -> None:
    await create(kafka_server, "kept")
    async with publishing(open_publisher, settings(kafka_server)) as kafka:
        await kafka.publish(message(1, topic="kept", key="a"))
        await asyncio.to_thread(kafka_server.kill)
        failure = await failure_of(kafka.publish(message(2, topic="kept", key="a")))
        assert f":{kafka_server.port}: Connection refused" in str(failure)
        assert (failure.retryable, failure.is_broker_down) == (True, True)
        await asyncio.to_thread(kafka_server.start)
        await until_published(kafka, message(3, topic="kept", key="a"))
    assert [dict(each.headers)["ce_id"] for each in await read(kafka_server, "kept")] == [b"run_1", b"run_3"]


async def test_a_server_that_hangs_is_left(kafka_server: KafkaServer, monkeypatch: pytest.MonkeyPatch) -> None:
    await create(kafka_server, "hangs")
    async with publishing(open_publisher, settings(kafka_server)) as kafka:
        await kafka.publish(message(1, topic="hangs", key="a"))
    monkeypatch.setattr(stream, "SILENCE_SECONDS", 0.5)
    async with publishing(open_publisher, settings(kafka_server)) as kafka:
        await until_published(kafka, message(2, topic="hangs", key="a"))
        kafka_server.suspend()
        try:
            failure = await failure_of(kafka.publish(message(3, topic="hangs", key="a")))
        finally:
            kafka_server.resume()
        assert str(failure).endswith(f":{kafka_server.port}: the broker has not answered for 0.5 s")
        await until_published(kafka, message(4, topic="hangs", key="a"))
