"""From a ready attempt to a message of a real broker, or to the reason why there is none, by a dispatcher."""

import json
import re
from typing import Any

import nats
import pytest

from evertick.store.tenants import broker_connections
from evertick.store.tenants.broker_connections import ConnectionKey, Content
from real_brokers import CONNECTION, Broker, KafkaBroker, RabbitMqBroker, real_broker
from roles.dispatching import SEAL, PostOffice
from servers.nats import NatsServer

LARGEST_BYTES = 20_000


async def connect(office: PostOffice, broker: Broker, name: str = CONNECTION, **changes: Any) -> None:
    given = broker.connection(**changes)
    content = Content(given["type"], json.dumps(given["settings"]), given["secrets"])
    assert await broker_connections.add(office.connection, ConnectionKey(1, name), content, SEAL)


def with_wrong_password(broker: Broker) -> dict[str, Any]:
    """What to change in its connection."""
    if isinstance(broker, RabbitMqBroker):
        return {"secrets": {"password": "wrong"}}
    assert isinstance(broker, KafkaBroker)
    return {
        "bootstrap_servers": [f"127.0.0.1:{broker.server.sasl_port}"],
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "username": "evertick",
        "secrets": {"password": "wrong"},
    }


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("kind", "config", "nowhere"),
    [
        ("kafka", {"message.max.bytes": str(LARGEST_BYTES)}, {"topic": "nowhere"}),
        ("rabbitmq", {"max_message_size": str(LARGEST_BYTES)}, {"exchange": "nowhere"}),
    ],
)
async def test_what_a_broker_refuses_says_why_and_harms_no_neighbour(
    office: PostOffice, kind: str, config: dict[str, str], nowhere: dict[str, str]
) -> None:
    async with real_broker(kind, config) as broker:
        await connect(office, broker)
        await connect(office, broker, "wrong", **with_wrong_password(broker))
        too_large = await office.addressed(broker.target(), payload="x" * (LARGEST_BYTES + 1))
        missing = await office.addressed(broker.target(**nowhere))
        unknown = await office.addressed(broker.target(connection="wrong"))
        good = await office.addressed(broker.target(), count=50)
        await office.deliver()
        stored = await broker.read()
    assert await office.results(good) == ["success"] * 50
    assert len(stored) == 50
    ended = [await office.outcome(job) for job in (too_large, missing, unknown)]
    assert [(each.result, each.is_final) for each in ended] == [("failed", True), ("failed", False), ("failed", False)]
    for outcome, word in zip(ended, ("larg", "nowhere", "refused|auth|credential"), strict=True):
        assert outcome.error is not None
        assert re.search(word, outcome.error, re.IGNORECASE), outcome.error


async def test_an_attempt_becomes_a_message_of_a_stream(office: PostOffice) -> None:
    with NatsServer.running() as server:
        client = await nats.connect(f"nats://127.0.0.1:{server.port}")
        stream = client.jetstream()
        await stream.add_stream(name="invoices", subjects=["invoices.*"])
        settings = {"servers": [f"127.0.0.1:{server.port}"], "tls": False}
        content = Content("nats", json.dumps(settings), {})
        assert await broker_connections.add(office.connection, ConnectionKey(1, "orders"), content, SEAL)
        target = {"type": "nats", "connection": "orders", "subject": "invoices.{{payload.account}}"}
        job = await office.addressed(target, payload={"account": 7}, count=3)
        stray = await office.addressed({**target, "subject": "elsewhere"}, payload={"account": 7})
        await office.deliver()
        found = await stream.get_last_msg("invoices", "invoices.7")
        state = (await stream.stream_info("invoices")).state
        await client.close()
    assert await office.results(job) == ["success"] * 3
    assert state.messages == 3
    assert found.data is not None
    assert json.loads(found.data) == {"account": 7}
    assert found.headers is not None
    assert found.headers["ce-type"] == "evertick.run.fired"
    assert found.headers["ce-idempotencykey"] == found.headers["Nats-Msg-Id"]
    (refused,) = await office.outcomes(stray)
    assert (refused.result, refused.is_final) == ("failed", False), "a stream for its subject may come"
