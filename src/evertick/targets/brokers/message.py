"""What one attempt sends to a broker: the payload as body, and what describes the run as CloudEvents' attributes."""

import json
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from evertick.contract.broker_targets import (
    BrokerAddress,
    BrokerTarget,
    Completion,
    KafkaTarget,
    NatsTarget,
    RabbitmqTarget,
    RedisStreamTarget,
    SqsTarget,
    address_of,
    has_templates,
    render_address,
)
from evertick.contract.events import FIRED, SOURCE, SPEC_VERSION
from evertick.domain.attempt import Attempt
from evertick.domain.ids import Prefix, format_id, format_token, run_id_of
from evertick.domain.schedule.instants import to_us, utc_text
from evertick.domain.tracing import TRACEPARENT
from evertick.runtime.tracing import traceparent_of
from evertick.targets.brokers.publisher import Envelope, Message

REMEMBERED = 4096
CONTENT_TYPE = "application/json"
KEEPS_ORDER = ("key", "group_id")
"""Messages with the same one keep their order. It is the job's id unless given."""
FIXED = {"specversion": SPEC_VERSION, "type": FIRED}
NAMES = (
    *("id", "source", "subject", "time", "idempotencykey", "fencingtoken", "token", "attempt", "reason"),
    TRACEPARENT,
)
PLAIN = (TRACEPARENT,)
"""Also by its own name: instrumentations of OpenTelemetry do not look for attributes of CloudEvents."""


class _Spec(msgspec.Struct):
    target: msgspec.Raw


_specs = msgspec.json.Decoder(_Spec)
_targets: msgspec.json.Decoder[KafkaTarget | RabbitmqTarget | RedisStreamTarget | NatsTarget | SqsTarget] = (
    msgspec.json.Decoder(KafkaTarget | RabbitmqTarget | RedisStreamTarget | NatsTarget | SqsTarget)
)


class Addressed(NamedTuple):
    """A target, what its messages have in common, and its address, if no payload decides about that.

    `key_field` is the field of the address that is to be the job's id, if any. `host` names its connection for circuits
    and limits. `is_reported`: a consumer says how the run ended.
    """

    target: BrokerTarget
    envelope: Envelope
    address: dict[str, str | int | bool | None] | None
    key_field: str | None
    host: str
    is_reported: bool


def target_in(spec: str) -> Addressed | None:
    """The broker's target of a job's specification. None: it cannot be read."""
    try:
        return _addressed(bytes(_specs.decode(spec).target))
    except msgspec.DecodeError:  # and ValidationError, which is one
        return None


@lru_cache(maxsize=REMEMBERED)
def _addressed(text: bytes) -> Addressed:
    """Remembered by the target, which many jobs share; specifications differ in their names already."""
    target = _targets.decode(text)
    address = None if has_templates(target) else address_of(target)
    host = f"{target.queue_name}:{target.connection}"
    headers, content_type = headers_in(target)
    envelope = Envelope(content_type, headers, FIXED, NAMES, PLAIN)
    is_reported = target.completion is Completion.REPORTED
    return Addressed(target, envelope, address, _key_field(address_of(target)), host, is_reported)


def headers_in(target: BrokerAddress) -> tuple[dict[str, str], str]:
    """The headers of a target but for the type of content, and that."""
    headers = {name: text for name, text in target.headers.items() if name.lower() != "content-type"}
    content_types = [text for name, text in target.headers.items() if name.lower() == "content-type"]
    return headers, content_types[0] if content_types else CONTENT_TYPE


def ordered_by(address: dict[str, Any], key: str) -> dict[str, Any]:
    """The address with this key, if its broker keeps the order of a key and the address has none."""
    name = _key_field(address)
    return address if name is None else {**address, name: key}


def _key_field(address: dict[str, Any]) -> str | None:
    """The field by which a broker keeps the order, if the address has it and has no value for it."""
    return next((name for name in KEEPS_ORDER if name in address and address[name] is None), None)


def message_of(attempt: Attempt, found: Addressed, source: str = SOURCE) -> Message:
    """The message of an attempt. InvalidInput: its payload lacks what the address names."""
    job_id, key = format_id(Prefix.JOB, attempt.job_id), attempt.idempotency_key  # which is rendered
    payload, address = attempt.payload, found.address
    if address is None:
        address = render_address(found.target, None if payload is None else json.loads(payload))
    if found.key_field is not None:
        address = {**address, found.key_field: job_id}
    fired_us, fired = _fire_texts(attempt.fire_at) if attempt.fire_at.tzinfo is UTC else _times_of(attempt.fire_at)
    run_id, (lane_id, seq) = run_id_of(job_id, fired_us), attempt.token
    token = format_token(lane_id, seq)
    traceparent = traceparent_of(attempt, run_id)
    values = (  # by NAMES and PLAIN
        run_id,
        f"{source}/jobs/{job_id}",
        attempt.name,
        fired,
        key,
        str(seq),
        token,
        str(attempt.attempt),
        attempt.reason,
        traceparent,
        traceparent,
    )
    body = b"null" if payload is None else payload.encode()
    # A consumer that failed waits for the next attempt: brokers must not take it for a repetition of the one before.
    return Message(body, found.envelope, values, address, token if found.is_reported else key)


def _times_of(fire_at: datetime) -> tuple[int, str]:
    return to_us(fire_at), utc_text(fire_at)


# Messages of a batch mostly share their fire time. Only for UTC: in other zones two instants may compare as equal.
_fire_texts = lru_cache(maxsize=1024)(_times_of)
