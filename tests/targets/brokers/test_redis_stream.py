"""Publishing to streams of a real Redis, read back by redis-py."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis

from engine import PATIENCE_SECONDS
from evertick.targets.brokers import redis_stream, stream
from evertick.targets.brokers.redis_stream import open_publisher
from redis_server import RedisServer, redis_server
from targets.brokers.publishing import (
    ATTRIBUTES,
    BODY,
    MANY,
    NAMES,
    PLAIN,
    Guard,
    failure_beside,
    failure_of,
    message,
    publishing,
    until_published,
)

PASSWORD = "correct horse"


@pytest.fixture
async def server() -> AsyncIterator[RedisServer]:
    async with redis_server(is_durable=True) as server:
        yield server


def settings(server: RedisServer, **changes: object) -> dict[str, object]:
    return {"host": "localhost", "port": server.port, "tls": False, **changes}


async def entries(server: RedisServer, name: str, database: int = 0) -> list[dict[str, str]]:
    async with Redis.from_url(server.url.removesuffix("0") + str(database), decode_responses=True) as client:
        found: Any = await client.xrange(name)
    return [fields for _, fields in found]


async def test_a_message_is_stored_with_its_attributes_and_headers(server: RedisServer) -> None:
    async with publishing(open_publisher, settings(server)) as redis:
        told = await redis.publish(message(stream="orders"))
        assert (await redis.check()).startswith("Redis 7")
    (found,) = await entries(server, "orders")
    assert told.startswith("stream orders, entry ")
    assert found == {
        "X-Team": "billing",
        "content-type": "application/json",
        "data": BODY.decode(),
        **{f"ce_{name}": text for name, text in ATTRIBUTES.items()},
        **PLAIN,
    }


async def test_names_of_any_length_and_characters_arrive(server: RedisServer) -> None:
    async with publishing(open_publisher, settings(server)) as redis:
        for name in NAMES:
            await redis.publish(message(stream="names", name=name))
    found = await entries(server, "names")
    assert [each["ce_subject"] for each in found] == NAMES
    assert [each["ce_token"] for each in found] == ["412.17"] * len(NAMES)


async def test_many_messages_at_once_are_all_stored_once_in_their_order(server: RedisServer) -> None:
    async with publishing(open_publisher, settings(server)) as redis:
        await asyncio.gather(*(redis.publish(message(number, stream="many")) for number in range(MANY)))
    assert [each["ce_id"] for each in await entries(server, "many")] == [f"run_{number}" for number in range(MANY)]


async def test_what_is_refused_fails_alone(server: RedisServer) -> None:
    async with Redis.from_url(server.url) as client:
        await client.set("text", "not a stream")
    async with publishing(open_publisher, settings(server)) as redis:
        refused = redis.publish(message(stream="text"))
        failure = await failure_beside(refused, *(redis.publish(message(n, stream="orders")) for n in range(40)))
    assert str(failure).startswith("Redis refused: WRONGTYPE")
    assert (failure.retryable, failure.is_broker_down) == (False, False)
    assert len(await entries(server, "orders")) == 40


async def test_a_message_is_stored_when_replicas_have_it(server: RedisServer) -> None:
    async with (
        redis_server(replica_of=server) as replica,
        publishing(open_publisher, settings(server, replicas=1)) as redis,
    ):
        told = await until_published(redis, message(stream="orders"))
        assert told is not None
        assert told.startswith("stream orders, entry ")
        assert await entries(replica, "orders"), "before the answer, not after"
        assert (await redis.check()).startswith("Redis 7")
        async with Redis.from_url(server.url) as client:
            await client.set("text", "not a stream")
        wrong = redis.publish(message(stream="text"))
        failure = await failure_beside(wrong, *(redis.publish(message(n, stream="many")) for n in range(40)))
        assert str(failure).startswith("Redis refused: WRONGTYPE")
        assert len(await entries(replica, "many")) == 40


async def test_a_message_that_replicas_do_not_have_is_not_stored(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_stream, "WAIT_SECONDS", 0.1)
    async with publishing(open_publisher, settings(server, replicas=1)) as redis:
        for failing in (redis.publish(message(stream="orders")), redis.check()):
            failure = await failure_of(failing)
            assert str(failure) == "0 of 1 replicas have acknowledged within 0.1 s"
            assert (failure.retryable, failure.is_broker_down) == (True, True)


async def test_a_user_who_may_not_wait_for_replicas_is_told_so_and_gives_up_no_message(server: RedisServer) -> None:
    async with Redis.from_url(server.url) as client:
        await client.acl_setuser("adder", enabled=True, passwords=["+secret"], keys=["*"], commands=["+xadd", "+ping"])
    given = settings(server, replicas=1, username="adder")
    async with publishing(open_publisher, given, {"password": "secret"}) as redis:
        for failing in (redis.publish(message(stream="orders")), redis.check()):
            failure = await failure_of(failing)
            assert "'wait'" in str(failure)
            assert (failure.retryable, failure.is_broker_down) == (True, True)


async def test_a_primary_that_becomes_a_replica_gives_up_no_message_that_waits_for_replicas(
    server: RedisServer,
) -> None:
    async with (
        redis_server() as other,
        Redis.from_url(server.url) as client,
        publishing(open_publisher, settings(server, replicas=1)) as redis,
    ):
        waiting = asyncio.create_task(failure_of(redis.publish(message(stream="orders"))))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (await client.info("clients"))["blocked_clients"]:
                assert not waiting.done()
            await client.replicaof("127.0.0.1", str(other.port))
            failure = await waiting
    assert str(failure).startswith("Redis refused: UNBLOCKED"), "not that the time is over"
    assert (failure.retryable, failure.is_broker_down) == (True, True)


async def test_a_database_is_chosen_and_a_missing_one_named(server: RedisServer) -> None:
    async with publishing(open_publisher, settings(server, database=3)) as redis:
        await redis.publish(message(stream="orders"))
    assert len(await entries(server, "orders", database=3)) == 1
    async with publishing(open_publisher, settings(server, database=99)) as redis:
        failure = await failure_of(redis.publish(message(stream="orders")))
    assert str(failure) == "Redis refused: DB index is out of range"
    assert not failure.retryable


async def test_a_login_with_the_right_password_only() -> None:
    async with redis_server(PASSWORD) as server:
        async with publishing(open_publisher, settings(server), {"password": PASSWORD}) as redis:
            await redis.publish(message(stream="orders"))
        async with publishing(open_publisher, settings(server, username="default"), {"password": PASSWORD}) as redis:
            await redis.publish(message(stream="orders"))
        for secrets in ({"password": "wrong"}, {}):
            async with publishing(open_publisher, settings(server), secrets) as redis:
                failure = await failure_of(redis.publish(message(stream="orders")))
            assert str(failure) == "Redis refused the user name or password"
            assert (failure.retryable, failure.is_broker_down) == (True, True)
        assert len(await entries(server, "orders")) == 2


async def test_a_password_that_the_server_does_not_want_is_refused(server: RedisServer) -> None:
    async with publishing(open_publisher, settings(server), {"password": PASSWORD}) as redis:
        failure = await failure_of(redis.check())
    assert str(failure) == "Redis refused the user name or password"


async def test_a_user_needs_no_more_than_to_add_to_streams(server: RedisServer) -> None:
    async with Redis.from_url(server.url) as client:
        await client.acl_setuser("adder", True, passwords=f"+{PASSWORD}", keys=["orders"], commands=["+xadd"])
    async with publishing(open_publisher, settings(server, username="adder"), {"password": PASSWORD}) as redis:
        assert await redis.check() == "Redis knows the user, who may not ask for its version"
        await redis.publish(message(stream="orders"))
        failure = await failure_of(redis.publish(message(stream="secrets")))
    assert "NOPERM" in str(failure)
    assert (failure.retryable, failure.is_broker_down) == (False, False)
    assert len(await entries(server, "orders")) == 1
    other = settings(server, username="adder", database=3)
    async with publishing(open_publisher, other, {"password": PASSWORD}) as redis:
        failure = await failure_of(redis.publish(message(stream="orders")))
    assert "select" in str(failure)
    assert (failure.retryable, failure.is_broker_down) == (True, True), "no fault of the message"


async def test_a_server_that_does_not_speak_tls_is_told_from_one_that_is_away(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "CONNECT_SECONDS", 1.0)  # Redis waits for the end of a line
    async with publishing(open_publisher, settings(server, tls=True)) as redis:
        failure = await failure_of(redis.check())
    assert str(failure).startswith(f"cannot connect with TLS to localhost:{server.port}: ")


async def test_the_guard_decides_about_the_address(server: RedisServer) -> None:
    async with publishing(open_publisher, settings(server), dial=Guard("localhost")) as redis:
        failure = await failure_of(redis.publish(message(stream="orders")))
    assert str(failure) == f"localhost:{server.port}: not a public address"
    assert not failure.retryable


async def test_a_cancelled_publish_leaves_the_publisher_usable(server: RedisServer) -> None:
    async with publishing(open_publisher, settings(server)) as redis:
        for rounds in range(6):
            task = asyncio.create_task(redis.publish(message(1, stream="orders")))
            for _ in range(rounds):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await redis.publish(message(2, stream="orders"))
    assert (await entries(server, "orders"))[-1]["ce_id"] == "run_2"


async def test_after_a_kill_of_the_server_the_same_publisher_goes_on(server: RedisServer) -> None:
    async with publishing(open_publisher, settings(server)) as redis:
        await redis.publish(message(1, stream="orders"))
        await server.kill()
        failure = await failure_of(redis.publish(message(2, stream="orders")))
        assert (failure.retryable, failure.is_broker_down) == (True, True)
        await server.start()
        await until_published(redis, message(3, stream="orders"))
    assert [each["ce_id"] for each in await entries(server, "orders")] == ["run_1", "run_3"]


async def test_a_server_that_hangs_is_left(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "SILENCE_SECONDS", 0.3)
    async with publishing(open_publisher, settings(server)) as redis, Redis.from_url(server.url) as client:
        await redis.publish(message(1, stream="orders"))
        await client.client_pause(2000)
        failure = await failure_of(redis.publish(message(2, stream="orders")))
        assert str(failure) == f"localhost:{server.port}: the broker has not answered for 0.3 s"
        await client.client_unpause()
        await until_published(redis, message(3, stream="orders"))
