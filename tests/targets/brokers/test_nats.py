"""Publishing to a real NATS server with JetStream, read back by nats-py."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import unquote

import nats
import pytest
from nats.aio.msg import Msg
from nats.js import JetStreamContext

from engine import until
from evertick.targets.brokers import stream
from evertick.targets.brokers.nats import open_publisher
from ports import free_ports
from secured_server import write_certificates
from servers.nats import NatsServer
from targets.brokers.publishing import (
    ATTRIBUTES,
    BODY,
    MANY,
    NAMES,
    PLAIN,
    UNWRITABLE_ENVELOPE,
    Guard,
    failure_beside,
    failure_in_batch,
    failure_of,
    message,
    publishing,
    until_published,
)


def settings(server: NatsServer, **changes: object) -> dict[str, object]:
    return {"servers": [f"localhost:{server.port}"], "tls": False, **changes}


@asynccontextmanager
async def jetstream(server: NatsServer, name: str | None = None, **options: str) -> AsyncIterator[JetStreamContext]:
    client = await nats.connect(f"nats://127.0.0.1:{server.port}", **options)
    try:
        context = client.jetstream()
        if name is not None:
            await context.add_stream(name=name, subjects=[f"{name}.>"])
        yield context
    finally:
        await client.close()


async def test_a_message_that_cannot_be_written_fails_alone(nats_server: NatsServer) -> None:
    async with jetstream(nats_server, "written"), publishing(open_publisher, settings(nats_server)) as nats:
        bad = message(subject="written.a")._replace(envelope=UNWRITABLE_ENVELOPE)
        failure = await failure_in_batch(nats, bad, message(subject="written.a"))
    assert str(failure) == "the message cannot be written: UnicodeEncodeError"
    assert (failure.retryable, failure.is_broker_down) == (False, False)


async def test_a_message_is_stored_with_its_attributes_and_headers(nats_server: NatsServer) -> None:
    async with jetstream(nats_server, "arrives") as reader, publishing(open_publisher, settings(nats_server)) as nats:
        told = await nats.publish(message(subject="arrives.orders"))
        found = await reader.get_msg("arrives", 1)
    assert told == "subject arrives.orders, stream arrives, sequence 1"
    assert found.data == BODY
    assert found.subject == "arrives.orders"
    assert found.headers is not None
    expected = {**PLAIN, **{f"ce-{name}": text for name, text in ATTRIBUTES.items()}}
    assert {name: unquote(found.headers[name]) for name in expected} == expected
    assert found.headers["content-type"] == "application/json"
    assert found.headers["X-Team"] == "billing"
    assert found.headers["Nats-Msg-Id"] == "key-1"


async def test_names_of_any_length_and_characters_arrive(nats_server: NatsServer) -> None:
    async with jetstream(nats_server, "names") as reader, publishing(open_publisher, settings(nats_server)) as nats:
        for number, name in enumerate(NAMES, start=1):
            await nats.publish(message(number, subject="names.a", name=name))
            found = (await reader.get_msg("names", number)).headers or {}
            assert (unquote(found["ce-subject"]), found["ce-token"]) == (name, "412.17")


async def test_many_messages_at_once_are_all_stored(nats_server: NatsServer) -> None:
    async with jetstream(nats_server, "many") as reader, publishing(open_publisher, settings(nats_server)) as nats:
        await asyncio.gather(*(nats.publish(message(number, subject="many.a")) for number in range(MANY)))
        assert (await reader.stream_info("many")).state.messages == MANY


async def test_a_repeated_message_is_stored_once(nats_server: NatsServer) -> None:
    async with jetstream(nats_server, "twice") as reader, publishing(open_publisher, settings(nats_server)) as nats:
        await nats.publish(message(subject="twice.a"))
        assert await nats.publish(message(subject="twice.a")) == (
            "subject twice.a, stream twice, sequence 1, which had it already"
        )
        assert (await reader.stream_info("twice")).state.messages == 1


async def test_a_subject_that_no_stream_takes_fails_with_the_reason(nats_server: NatsServer) -> None:
    async with publishing(open_publisher, settings(nats_server)) as nats:
        failure = await failure_of(nats.publish(message(subject="nobody.takes.it")))
    assert str(failure) == "no stream of JetStream takes the subject nobody.takes.it"
    assert (failure.retryable, failure.is_broker_down) == (True, False)


@pytest.mark.parametrize("subject", ["", "two words", "a\r\nPUB b 1", "a.*", "a.>", "a..b", ".a", "a.", "$JS.API.INFO"])
async def test_a_text_that_is_no_subject_is_not_sent(nats_server: NatsServer, subject: str) -> None:
    async with publishing(open_publisher, settings(nats_server)) as nats:
        failure = await failure_of(nats.publish(message(subject=subject)))
    assert str(failure).startswith(f"{subject!r} is no subject to publish to: it must ")
    assert not failure.retryable


@pytest.mark.parametrize("answer", [b"OK", b"", b"{}", b"[1]", b'{"stream": 7}', b"\xff"])
async def test_what_a_subscriber_answers_is_no_acknowledgement_and_fails_no_other_message(
    nats_server: NatsServer, answer: bytes
) -> None:
    async with jetstream(nats_server, "beside"), publishing(open_publisher, settings(nats_server)) as publisher:
        client = await nats.connect(f"nats://127.0.0.1:{nats_server.port}")

        async def respond(request: Msg) -> None:
            await request.respond(answer)

        await client.subscribe("served.by.nobody", cb=respond)
        await client.flush()
        failure = await failure_in_batch(publisher, message(subject="served.by.nobody"), message(subject="beside.a"))
        await client.close()
    assert str(failure) == "no stream of JetStream answered for the subject served.by.nobody, but a subscriber of it"
    assert (failure.retryable, failure.is_broker_down) == (True, False)


async def test_a_subject_that_is_too_long_fails_alone(nats_server: NatsServer) -> None:
    """NATS would close the connection."""
    async with jetstream(nats_server, "long"), publishing(open_publisher, settings(nats_server)) as nats:
        await nats.publish(message(subject=f"long.{'a' * 3995}"))
        failure = await failure_in_batch(nats, message(subject=f"long.{'a' * 5000}"), message(subject="long.a"))
    assert str(failure).endswith("it must have at most 4000 bytes, not 5005")
    assert len(str(failure)) < 250
    assert (failure.retryable, failure.is_broker_down) == (False, False)


async def test_a_message_that_is_too_large_fails_alone(nats_server: NatsServer) -> None:
    async with jetstream(nats_server, "large"), publishing(open_publisher, settings(nats_server)) as nats:
        failure = await failure_of(nats.publish(message(body=b"x" * 2_000_000, subject="large.a")))
        await nats.publish(message(subject="large.a"))
    assert "the server takes at most 1048576" in str(failure)
    assert (failure.retryable, failure.is_broker_down) == (False, False)


async def test_a_cancelled_publish_leaves_the_publisher_usable(nats_server: NatsServer) -> None:
    async with jetstream(nats_server, "cancelled"), publishing(open_publisher, settings(nats_server)) as nats:
        for rounds in range(4):  # before it has connected, while it connects, after it has sent
            task = asyncio.create_task(nats.publish(message(subject="cancelled.a")))
            for _ in range(rounds):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await nats.publish(message(2, subject="cancelled.a"))


async def test_wrong_credentials_fail_with_what_the_server_says() -> None:
    users = [
        {"user": "good", "password": "right"},
        {"user": "narrow", "password": "right", "permissions": {"publish": ["open.>", "$JS.API.>"]}},
    ]
    with NatsServer.running(config={"authorization": {"users": users}}) as server:
        async with publishing(open_publisher, settings(server, username="good"), {"password": "wrong"}) as nats:
            failure = await failure_of(nats.check())
            assert str(failure) == f"localhost:{server.port}: Authorization Violation"
            assert (failure.retryable, failure.is_broker_down) == (True, True)
        async with publishing(open_publisher, settings(server, username="good"), {"password": "right"}) as nats:
            assert (await nats.check()).startswith("NATS 2.")
            assert (await nats.check()).endswith("JetStream with 0 streams")
            async with jetstream(server, "only", user="good", password="right"):
                assert (await nats.check()).endswith("JetStream with 1 stream")
        async with (
            jetstream(server, "open", user="good", password="right"),
            publishing(open_publisher, settings(server, username="narrow"), {"password": "right"}) as nats,
        ):
            denied, allowed = nats.publish(message(subject="closed.a")), nats.publish(message(subject="open.a"))
            failure = await failure_beside(denied, allowed)
            assert str(failure) == 'Permissions Violation for Publish to "closed.a"'
            assert (failure.retryable, failure.is_broker_down) == (False, False)


async def test_a_user_needs_no_more_than_to_publish_to_its_subject() -> None:
    permissions = {"publish": ["orders.a"], "subscribe": ["_INBOX.>"]}
    users = [{"user": "admin", "password": "a"}, {"user": "u", "password": "p", "permissions": permissions}]
    with NatsServer.running(config={"authorization": {"users": users}}) as server:
        client = await nats.connect(f"nats://admin:a@127.0.0.1:{server.port}")
        await client.jetstream().add_stream(name="orders", subjects=["orders.>"])
        await client.close()
        settings = {"servers": [f"localhost:{server.port}"], "tls": False, "username": "u"}
        async with publishing(open_publisher, settings, {"password": "p"}) as publisher:
            assert "knows the user, who may not ask about JetStream" in await publisher.check()
            await publisher.publish(message(subject="orders.a"))
            failure = await failure_of(publisher.publish(message(subject="orders.b")))
    assert "Permissions Violation" in str(failure)
    assert not failure.retryable


async def test_after_a_kill_of_the_server_the_same_publisher_goes_on() -> None:
    with NatsServer.running() as server:
        async with publishing(open_publisher, settings(server)) as nats:
            async with jetstream(server, "kept"):
                await nats.publish(message(1, subject="kept.a"))
            await asyncio.to_thread(server.kill)
            await failure_of(nats.publish(message(2, subject="kept.a")))  # perhaps on the lost connection
            failure = await failure_of(nats.publish(message(2, subject="kept.a")))
            assert str(failure) == f"cannot connect to localhost:{server.port}: Connection refused"
            assert (failure.retryable, failure.is_broker_down) == (True, True)
            restart = asyncio.to_thread(server.start)
            await asyncio.gather(restart, until_published(nats, message(3, subject="kept.a")))
            async with jetstream(server) as reader:
                found = [(await reader.get_msg("kept", number)).headers for number in (1, 2)]
    assert [headers and headers["Nats-Msg-Id"] for headers in found] == ["key-1", "key-3"]


async def test_a_server_that_hangs_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "SILENCE_SECONDS", 1.0)
    with NatsServer.running() as server:
        async with publishing(open_publisher, settings(server)) as nats, jetstream(server, "hangs"):
            await until_published(nats, message(1, subject="hangs.a"))
            server.suspend()
            failure = await failure_of(nats.publish(message(2, subject="hangs.a")))
            server.resume()
            assert str(failure) == f"localhost:{server.port}: the broker has not answered for 1 s"
            await until_published(nats, message(3, subject="hangs.a"))


async def test_a_host_that_the_guard_refuses_is_not_called(nats_server: NatsServer) -> None:
    async with publishing(open_publisher, settings(nats_server), dial=Guard("localhost")) as nats:
        failure = await failure_of(nats.check())
    assert str(failure) == f"localhost:{nats_server.port}: not a public address"
    assert not failure.retryable


async def test_servers_that_a_server_advertises_go_through_the_guard() -> None:
    first_port, second_port = free_ports(2)
    first = {"cluster": {"name": "two", "listen": f"127.0.0.1:{first_port}"}, "jetstream": False}
    second = {
        "cluster": {
            "name": "two",
            "listen": f"127.0.0.1:{second_port}",
            "routes": [f"nats://127.0.0.1:{first_port}"],
        },
        "jetstream": False,
        "client_advertise": "inside.example:4222",
    }
    with NatsServer.running(config=first) as server, NatsServer.running(config=second):
        await until(lambda: advertises(server, b"inside.example"))
        guard = Guard("inside.example")
        async with publishing(open_publisher, settings(server), dial=guard) as nats:
            assert str(await failure_of(nats.check())) == f"localhost:{server.port}: JetStream is not enabled"
            await asyncio.to_thread(server.kill)
            await failure_of(nats.check())  # perhaps on the lost connection
            failure = await failure_of(nats.check())
    assert str(failure) == f"cannot connect to localhost:{server.port}: Connection refused"
    assert "inside.example" in guard.asked


async def advertises(server: NatsServer, host: bytes) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        return host in await reader.readline()
    finally:
        writer.close()
        await writer.wait_closed()


async def test_a_certificate_is_checked_against_the_name(tmp_path: Path) -> None:
    authority, certificate, key = tmp_path / "authority.pem", tmp_path / "server.pem", tmp_path / "server.key"
    write_certificates(authority, certificate, key)
    with NatsServer.running(config={"tls": {"cert_file": str(certificate), "key_file": str(key)}}) as server:
        tls = settings(server, tls=True, tls_ca=authority.read_text(encoding="utf-8"))
        async with publishing(open_publisher, tls) as nats:
            await nats.check()
        async with publishing(open_publisher, {**tls, "servers": [f"other.example:{server.port}"]}) as nats:
            assert "its certificate is not valid: Hostname mismatch" in str(await failure_of(nats.check()))
        async with publishing(open_publisher, settings(server)) as nats:
            assert str(await failure_of(nats.check())) == "the server requires TLS; the connection has tls false"
