"""What an attempt becomes at a broker: its address and its attributes."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from evertick.domain.errors import InvalidInput
from evertick.domain.ids import Prefix, format_id
from evertick.executor.sources.http.source import RemoteAttempt
from evertick.targets.brokers.message import message_of, target_in
from evertick.targets.brokers.publisher import Message

JOB_ID = 4096
JOB = format_id(Prefix.JOB, JOB_ID)
ATTEMPT = RemoteAttempt(
    token=(412, 1_781_532_000_000_001),
    lease_id=1,
    job_id=JOB_ID,
    name="nightly",
    fire_at=datetime(2026, 6, 15, 9, tzinfo=UTC),
    reason="tick",
    attempt=2,
    deferrals=0,
    handler=None,
    payload='{"account": "a-17"}',
    timeout_seconds=300,
    idempotency_key="report-25",
)


def message(target: dict[str, Any], payload: str | None = ATTEMPT.payload) -> Message:
    found = target_in(json.dumps({"target": {"connection": "orders", **target}}))
    assert found is not None
    return message_of(replace(ATTEMPT, payload=payload), found)


@pytest.mark.parametrize(
    ("target", "address"),
    [
        ({"type": "kafka", "topic": "t"}, {"topic": "t", "key": JOB}),
        ({"type": "kafka", "topic": "t", "key": "{{payload.account}}"}, {"topic": "t", "key": "a-17"}),
        ({"type": "sqs", "queue_url": "https://q/1/a.fifo"}, {"queue_url": "https://q/1/a.fifo", "group_id": JOB}),
        (
            {"type": "sqs", "queue_url": "https://q/1/a.fifo", "group_id": "{{payload.account}}"},
            {"queue_url": "https://q/1/a.fifo", "group_id": "a-17"},
        ),
        ({"type": "rabbitmq", "routing_key": "r.{{payload.account}}"}, {"exchange": "", "routing_key": "r.a-17"}),
        ({"type": "redis_stream", "stream": "s", "max_length": 9}, {"stream": "s", "max_length": 9}),
        ({"type": "nats", "subject": "s.{{payload.account}}"}, {"subject": "s.a-17"}),
    ],
)
def test_messages_of_a_job_keep_their_order_unless_its_target_says_otherwise(
    target: dict[str, Any], address: dict[str, Any]
) -> None:
    assert message(target).address == address


def test_a_message_says_all_about_its_run() -> None:
    found = message({"type": "nats", "subject": "s", "headers": {"X-Team": "billing", "content-type": "text/plain"}})
    assert (found.body, found.envelope.content_type, found.envelope.headers) == (
        b'{"account": "a-17"}',
        "text/plain",
        {"X-Team": "billing"},
    )
    assert found.message_id == found.attributes["idempotencykey"] == "report-25"
    assert found.attributes["time"] == "2026-06-15T09:00:00Z"
    assert found.attributes["source"] == f"/evertick/jobs/{JOB}"
    assert found.attributes["fencingtoken"] == "1781532000000001"
    assert found.attributes["token"] == "412.1781532000000001"
    assert found.attributes["id"].startswith("run_")
    assert found.attributes["traceparent"].startswith("00-")
    assert found.plain == {"traceparent": found.attributes["traceparent"]}, "for OpenTelemetry"
    assert (found.attributes["attempt"], found.attributes["reason"], found.attributes["type"]) == (
        "2",
        "tick",
        "evertick.run.fired",
    )


def test_only_repetitions_of_one_message_have_the_same_id() -> None:
    stored = message({"type": "nats", "subject": "s"})
    reported = message({"type": "nats", "subject": "s", "completion": "reported"})
    assert stored.message_id == "report-25", "a retry publishes again what may be there"
    assert reported.message_id == reported.attributes["token"], "a retry is for a consumer that failed"


def test_a_run_without_a_payload_has_the_body_null() -> None:
    found = message({"type": "kafka", "topic": "t"}, payload=None)
    assert (found.body, found.envelope.content_type) == (b"null", "application/json")


def test_a_payload_that_lacks_what_the_address_names_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no field 'account', which key names"):
        message({"type": "kafka", "topic": "t", "key": "{{payload.account}}"}, payload="{}")
