"""A job's target that is a message broker, and connections to brokers, as their authors write them."""

from typing import Any

import pytest

from evertick.contract.broker_targets import (
    BROKER_TARGETS,
    BrokerType,
    Completion,
    KafkaTarget,
    RedisStreamTarget,
    check_connection,
    render_address,
)
from evertick.contract.connections import (
    REQUESTS,
    SECRETS,
    SETTINGS,
    RedisStreamConnection,
    read_connection,
    settings_in_force,
)
from evertick.contract.job_reading import read_spec
from evertick.contract.target import DISPATCHED_QUEUES, TARGETS, target_fields
from evertick.domain.errors import InvalidFields
from evertick.usecases.jobs.rows import read_stored, write_spec

KAFKA = {"type": "kafka", "connection": "orders", "topic": "invoices"}


def read(target: dict[str, Any], **fields: Any) -> Any:
    return read_spec({"schedule": "@daily", "target": target, **fields}).target


def faults(target: dict[str, Any], **fields: Any) -> dict[str, str]:
    with pytest.raises(InvalidFields) as refused:
        read(target, **fields)
    return dict(refused.value.faults)


def test_every_broker_has_a_target_a_queue_settings_and_secrets() -> None:
    types = {str(kind.__struct_config__.tag) for kind in BROKER_TARGETS}
    assert types == set(BrokerType) == SETTINGS.keys() == SECRETS.keys() == REQUESTS.keys()
    assert set(DISPATCHED_QUEUES) == {"http", *types}
    assert {str(kind.__struct_config__.tag) for kind in TARGETS} == {"http", "worker", *types}


def test_what_is_left_out_has_its_default_and_is_not_stored() -> None:
    found = read(KAFKA)
    assert found == KafkaTarget(connection="orders", topic="invoices")
    assert (found.queue_name, found.completion, found.key) == ("kafka", Completion.ACKNOWLEDGED, None)
    stored = write_spec(read_spec({"schedule": "@daily", "target": KAFKA}))
    assert '"target":{"type":"kafka","connection":"orders","topic":"invoices"}' in stored
    in_force: dict[str, Any] = {**KAFKA, "headers": {}, "completion": "acknowledged", "key": None}
    assert target_fields(read_stored(stored).target) == target_fields(found) == in_force


def test_a_fault_is_named_by_its_field() -> None:
    assert faults({**KAFKA, "connection": "Orders", "tpoic": "x", "completion": "later", "headers": {"Host": "x"}}) == {
        "/target/connection": "must be 1 to 63 characters of a-z, 0-9, '.', '_' and '-', the first a letter",
        "/target/tpoic": "is not a known field: did you mean 'topic'?",
        "/target/completion": "must be one of acknowledged, reported",
        "/target/headers/Host": "is set by Evertick",
    }
    assert faults({"type": "nats", "connection": "orders"}) == {"/target/subject": "is required"}
    stream = {"type": "redis_stream", "connection": "orders", "stream": "s", "max_length": 0}
    assert faults(stream) == {"/target/max_length": "must be from 1 to 1000000000"}
    assert "/target/queue_url" in faults({"type": "sqs", "connection": "orders", "queue_url": "orders"})


@pytest.mark.parametrize("name", list(DISPATCHED_QUEUES))
def test_a_worker_cannot_have_the_queue_of_a_broker(name: str) -> None:
    assert "is reserved" in faults({"type": "worker", "handler": "h", "queue": name})["/target/queue"]


def test_a_template_takes_fields_of_the_payload() -> None:
    target = read({**KAFKA, "key": "{{payload.account}}-{{payload.n}}"}, payload={"account": "a", "n": 7})
    assert render_address(target, {"account": "b", "n": 1.0}) == {"topic": "invoices", "key": "b-1"}
    assert faults({**KAFKA, "key": "{{payload.account}}"}, payload={"n": 7}) == {
        "/payload": "has no field 'account', which key names"
    }
    assert "/target/key" in faults({**KAFKA, "key": "{{account}}"})
    assert read({**KAFKA, "key": "{{payload.account}}"}, schedule="manual").key == "{{payload.account}}"


QUEUES = "https://sqs.eu-central-1.amazonaws.com/123456789012/"


@pytest.mark.parametrize(
    ("kind", "field", "text", "reason"),
    [
        ("kafka", "topic", "invoices/eu", "1 to 249 letters, digits"),
        ("kafka", "topic", "a" * 250, "at most 249 characters"),
        ("kafka", "topic", "..", "neither '.' nor '..'"),
        ("kafka", "topic", "", "1 to 249 letters, digits"),
        ("nats", "subject", "orders. new", "without spaces"),
        ("nats", "subject", "orders..new", "words with a dot between two of them"),
        ("nats", "subject", ".orders", "words with a dot between two of them"),
        ("nats", "subject", "orders.*", "'*' and '>'"),
        ("nats", "subject", "orders.>", "'*' and '>'"),
        ("nats", "subject", "orders..{{payload.account}}", "words with a dot between two of them"),
        ("nats", "subject", "{{payload.account}}.*", "'*' and '>'"),
        ("nats", "subject", "$JS.API.STREAM.DELETE.{{payload.account}}", "must not begin with $JS or $SYS"),
        ("rabbitmq", "routing_key", "é" * 128, "at most 255 bytes, not 256"),
        ("rabbitmq", "exchange", "a b", "visible characters"),
        ("sqs", "queue_url", QUEUES, "must be the URL of a queue"),
        ("sqs", "queue_url", QUEUES + "my orders", "must be the URL of a queue"),
        ("sqs", "queue_url", QUEUES + "orders.new", "letters, digits, '-' and '_'"),
        ("sqs", "queue_url", QUEUES + "o" * 81, "up to 80"),
    ],
)
def test_an_address_that_its_broker_cannot_have_is_refused(kind: str, field: str, text: str, reason: str) -> None:
    required = {"rabbitmq": {"routing_key": "a"}}
    target = {"type": kind, "connection": "orders", **required.get(kind, {}), field: text}
    found = faults(target, payload={"account": "a"})
    assert list(found) == [f"/target/{field}"]
    assert reason in found[f"/target/{field}"]


@pytest.mark.parametrize(
    ("kind", "field", "text"),
    [
        ("kafka", "topic", ".invoices_v2-eu"),
        ("kafka", "topic", "a" * 249),
        ("nats", "subject", "orders.größe.{{payload.account}}"),
        ("nats", "subject", "$KV.prices.a"),
        ("rabbitmq", "routing_key", "orders new.é"),
        ("rabbitmq", "routing_key", "a" * 255),
        ("sqs", "queue_url", QUEUES + "o" * 75 + ".fifo"),
        ("sqs", "queue_url", "http://localhost:9324/queue/orders_2-b"),
    ],
)
def test_an_address_that_its_broker_can_have_is_taken(kind: str, field: str, text: str) -> None:
    target = {"type": kind, "connection": "orders", field: text}
    assert getattr(read(target, payload={"account": "a"}), field) == text


@pytest.mark.parametrize(
    ("kind", "field", "text", "value", "reason"),
    [
        ("nats", "subject", "orders.{{payload.account}}", "a b", "makes the subject 'orders.a b', which must be words"),
        ("nats", "subject", "orders.{{payload.account}}", "", "makes the subject 'orders.', which must be words"),
        ("nats", "subject", "{{payload.account}}.API.INFO", "$JS", "which must not begin with $JS or $SYS"),
        ("nats", "subject", "o.{{payload.account}}", "a" * 3999, "which must have at most 4000 bytes, not 4001"),
        ("rabbitmq", "routing_key", "o.{{payload.account}}", "a" * 254, "which must have at most 255 bytes, not 256"),
    ],
)
def test_a_payload_that_makes_an_address_of_no_use_is_refused(
    kind: str, field: str, text: str, value: str, reason: str
) -> None:
    target = {"type": kind, "connection": "orders", field: text}
    found = faults(target, payload={"account": value})
    assert list(found) == ["/payload"]
    assert reason in found["/payload"]
    assert len(found["/payload"]) < 250, "not as long as the payload"


def test_a_target_names_a_connection_of_its_type() -> None:
    target = RedisStreamTarget(connection="orders", stream="s")
    check_connection(target, {"orders": "redis_stream"})
    check_connection(object(), {})
    for known, reason in (
        ({"orders": "nats"}, "is a connection of type nats, not redis_stream"),
        ({"order": "redis_stream"}, "there is no connection 'orders': did you mean 'order'?"),
        ({}, "there is no connection 'orders': add it with POST /api/v1/connections, of type redis_stream"),
    ):
        with pytest.raises(InvalidFields) as refused:
            check_connection(target, known)
        assert refused.value.faults == (("/target/connection", reason),)


def test_a_connection_does_not_show_its_secrets() -> None:
    fields = {"type": "nats", "settings": {"servers": ["a"]}, "secrets": {"token": "never to be seen"}}
    found = read_connection(fields)
    assert found.secrets == {"token": "never to be seen"}
    assert "never to be seen" not in repr(found)


def test_settings_of_another_release_can_be_read() -> None:
    assert settings_in_force("nats", '{"servers":["a"],"reconnects":7}') == {
        "servers": ["a"],
        "username": None,
        "tls": True,
        "tls_ca": None,
    }


def test_a_name_may_have_any_characters_but_control_characters() -> None:
    redis = {"type": "redis_stream", "connection": "redis"}
    assert read({**redis, "stream": "\U0001f60dbr,\U0009b888"}).stream == "\U0001f60dbr,\U0009b888"
    assert list(faults({**redis, "stream": "a\nb"})) == ["/target/stream"]


def test_a_whole_number_of_a_connection_may_be_written_as_a_fraction() -> None:
    fields = {"name": "a", "type": "redis_stream", "settings": {"host": "redis.example.invalid", "port": 6379.0}}
    assert read_connection(fields).settings == RedisStreamConnection(host="redis.example.invalid", port=6379)
