"""Publishing to moto's SQS, read back over its plain protocol."""

import asyncio
import json
import socket
from base64 import b64decode
from datetime import UTC, datetime
from ipaddress import ip_network
from typing import Any

import pytest

from evertick.contract.connections import SqsConnection
from evertick.targets.brokers.publisher import PublishFailed
from evertick.targets.brokers.publishers import ConnectionSettings, open_publisher as guarded_publisher
from evertick.targets.brokers.sqs import Endpoint, open_publisher, signed_headers
from evertick.targets.egress.guard import EgressPolicy, Guard as EgressGuard
from evertick.targets.egress.resolution import SystemResolver
from evertick.targets.egress.slots import one_tenant
from ports import free_ports
from servers.aws import REGION, AwsServer
from targets.brokers.publishing import (
    ATTRIBUTES,
    BODY,
    PLAIN,
    WAIT_SECONDS,
    Guard,
    failure_beside,
    failure_of,
    message,
    publishing,
    until_published,
)
from targets.brokers.sqs_reading import KEY_ID, create_queue, read_queue

SECRETS = {"secret_access_key": "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"}
SOME = 95


def settings(server: AwsServer, **changes: object) -> dict[str, object]:
    return {"region": REGION, "access_key_id": KEY_ID, "endpoint_url": f"http://localhost:{server.port}", **changes}


def attributes(found: dict[str, Any]) -> dict[str, str]:
    return {name: each["StringValue"] for name, each in found["MessageAttributes"].items()}


async def test_a_message_is_stored_with_its_attributes_and_headers(aws_server: AwsServer) -> None:
    url = await create_queue(aws_server, "arrives")
    async with publishing(open_publisher, settings(aws_server), SECRETS) as sqs:
        told = await sqs.publish(message(queue_url=url))
    (found,) = await read_queue(aws_server, url)
    assert told == f"queue arrives, message {found['MessageId']}"
    assert found["Body"] == BODY.decode()
    said = attributes(found)
    assert json.loads(said.pop("cloudevents")) == ATTRIBUTES
    assert json.loads(said.pop("headers")) == {"X-Team": "billing"}
    assert said == {"content-type": "application/json", **PLAIN}


@pytest.mark.parametrize("body", [b"\xff\x00", b"a\x00b", "\ufffe".encode()])
async def test_a_body_that_is_no_text_is_encoded(aws_server: AwsServer, body: bytes) -> None:
    url = await create_queue(aws_server, "binary")
    async with publishing(open_publisher, settings(aws_server), SECRETS) as sqs:
        await sqs.publish(message(body=body, queue_url=url))
    (found,) = await read_queue(aws_server, url)
    assert attributes(found)["encoding"] == "base64"
    assert b64decode(found["Body"]) == body


async def test_an_empty_body_is_marked(aws_server: AwsServer) -> None:
    url = await create_queue(aws_server, "empty")
    async with publishing(open_publisher, settings(aws_server), SECRETS) as sqs:
        await sqs.publish(message(body=b"", queue_url=url))
    (found,) = await read_queue(aws_server, url)
    assert attributes(found)["encoding"] == "empty"


async def test_many_messages_at_once_are_all_stored(aws_server: AwsServer) -> None:
    url = await create_queue(aws_server, "many")
    async with publishing(open_publisher, settings(aws_server), SECRETS) as sqs:
        await asyncio.gather(*(sqs.publish(message(number, queue_url=url)) for number in range(SOME)))
    ids = [json.loads(attributes(each)["cloudevents"])["id"] for each in await read_queue(aws_server, url)]
    assert sorted(ids) == sorted(f"run_{number}" for number in range(SOME))


async def test_a_fifo_queue_keeps_order_and_drops_repeats(aws_server: AwsServer) -> None:
    url = await create_queue(aws_server, "ordered.fifo")
    numbers = [*range(25), 3, 4]
    async with publishing(open_publisher, settings(aws_server), SECRETS) as sqs:
        await asyncio.gather(*(sqs.publish(message(number, queue_url=url, group_id="job_1")) for number in numbers))
    found = await read_queue(aws_server, url)
    assert [each["Attributes"]["MessageDeduplicationId"] for each in found] == [f"key-{n}" for n in range(25)]
    assert {each["Attributes"]["MessageGroupId"] for each in found} == {"job_1"}


async def test_a_fifo_queue_takes_one_message_after_the_other(aws_server: AwsServer) -> None:
    url = await create_queue(aws_server, "in-turn.fifo")
    async with publishing(open_publisher, settings(aws_server), SECRETS) as sqs, asyncio.timeout(WAIT_SECONDS):
        for number in range(3):
            await sqs.publish(message(number, queue_url=url, group_id="job_1"))
    assert len(await read_queue(aws_server, url)) == 3


async def test_a_missing_queue_fails_with_the_reason(aws_server: AwsServer) -> None:
    async with publishing(open_publisher, settings(aws_server), SECRETS) as sqs:
        failure = await failure_of(sqs.publish(message(queue_url=f"{aws_server.url}/123456789012/no-such")))
    assert str(failure).startswith("the queue does not exist: localhost: ")
    assert (failure.retryable, failure.is_broker_down) == (True, False)


async def test_a_message_that_is_too_large_fails_alone(aws_server: AwsServer) -> None:
    url = await create_queue(aws_server, "large")
    async with publishing(open_publisher, settings(aws_server), SECRETS) as sqs:
        large = sqs.publish(message(body=b"x" * 2_000_000, queue_url=url))
        failure = await failure_beside(large, *(sqs.publish(message(n, queue_url=url)) for n in range(5)))
    assert (failure.retryable, failure.is_broker_down) == (False, False)
    assert len(await read_queue(aws_server, url)) == 5


async def test_a_key_that_is_not_known_fails() -> None:
    with AwsServer.running(checks_signatures_after=1) as server:
        url = await create_queue(server, "closed")
        async with publishing(open_publisher, settings(server), SECRETS) as sqs:
            failure = await failure_of(sqs.publish(message(queue_url=url)))
    assert str(failure).startswith("wrong credentials: localhost: InvalidClientTokenId")
    assert (failure.retryable, failure.is_broker_down) == (True, True)


def test_a_signature_is_the_one_that_aws_computes() -> None:
    """Computed by botocore's SigV4Auth for the same request."""
    connection = SqsConnection(region=REGION, access_key_id=KEY_ID)
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    body = b'{"MaxResults":1}'
    headers = signed_headers(
        connection, {**SECRETS, "session_token": "token/1"}, "sqs.eu-central-1.amazonaws.com", "ListQueues", body, now
    )
    assert headers["authorization"] == (
        "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20260102/eu-central-1/sqs/aws4_request, SignedHeaders=content-type;"
        "host;x-amz-date;x-amz-security-token;x-amz-target,"
        " Signature=a13fbbe406c62412048fcba4b07b5f6d09dad24b11974d3b5867c4b74d8a521c"
    )


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_a_host_that_the_guard_refuses_is_not_called(aws_server: AwsServer, host: str) -> None:
    given = settings(aws_server, endpoint_url=f"http://{host}:{aws_server.port}")
    async with publishing(open_publisher, given, SECRETS, Guard(host)) as sqs:
        failure = await failure_of(sqs.check())
    assert str(failure) == f"{host}: not a public address"
    assert not failure.retryable


async def test_a_host_whose_addresses_cannot_be_found_is_named() -> None:
    async def dial(host: str, port: int) -> list[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    settings = SqsConnection(region="eu-central-1", access_key_id="key", endpoint_url="http://sqs.example.invalid")
    endpoint = Endpoint(settings, {"secret_access_key": "secret"}, dial)
    failure = await failure_of(endpoint.call("ListQueues", {}))
    await endpoint.close()
    assert str(failure) == "the addresses of sqs.example.invalid cannot be found"
    assert (failure.retryable, failure.is_broker_down) == (True, True)


async def test_a_cancelled_publish_leaves_the_publisher_usable(aws_server: AwsServer) -> None:
    url = await create_queue(aws_server, "cancelled")
    async with publishing(open_publisher, settings(aws_server), SECRETS) as sqs:
        for rounds in range(4):
            task = asyncio.create_task(sqs.publish(message(queue_url=url)))
            for _ in range(rounds):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await sqs.publish(message(2, queue_url=url))


async def test_after_a_kill_of_the_server_the_same_publisher_goes_on() -> None:
    with AwsServer.running() as server:
        async with publishing(open_publisher, settings(server), SECRETS) as sqs:
            url = await create_queue(server, "kept")
            await sqs.publish(message(1, queue_url=url))
            await asyncio.to_thread(server.kill)
            failure = await failure_of(sqs.publish(message(2, queue_url=url)))
            assert (failure.retryable, failure.is_broker_down) == (True, True)
            await asyncio.to_thread(server.start)
            await create_queue(server, "kept")  # moto keeps nothing
            await until_published(sqs, message(3, queue_url=url))
            assert len(await read_queue(server, url)) == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_an_endpoint_without_tls_is_refused_unless_the_settings_allow_plain_http(host: str) -> None:
    given = {"region": "eu-central-1", "access_key_id": "key", "endpoint_url": f"http://{host}:{free_ports(1)[0]}"}
    connection = ConnectionSettings(1, "orders", "sqs", "1", given, SECRETS)
    opened = (ip_network("127.0.0.0/8"), ip_network("::1/128"))
    closed, allowed = (EgressPolicy(opened, allow_http=allow_http) for allow_http in (False, True))
    for policy, reason in ((closed, "plain http is not allowed here"), (allowed, "cannot connect")):
        publisher = guarded_publisher(connection, EgressGuard(policy, SystemResolver(), one_tenant))
        with pytest.raises(PublishFailed, match=reason):
            await publisher.check()
        await publisher.close()
