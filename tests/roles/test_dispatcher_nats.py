"""From a ready attempt to a message in a stream of a real JetStream, by a dispatcher."""

import json

import nats

from evertick.store.tenants import broker_connections
from evertick.store.tenants.broker_connections import ConnectionKey, Content
from roles.dispatching import SEAL, PostOffice
from servers.nats import NatsServer


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
