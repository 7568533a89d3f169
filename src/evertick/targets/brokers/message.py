"""What one attempt sends to a broker: the payload as body, and what describes the run as CloudEvents' attributes."""

import json
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from evertick.contract.broker_targets import (
    BrokerAddress,
    BrokerTarget,
    KafkaTarget,
    NatsTarget,
    RabbitmqTarget,
    RedisStreamTarget,
    SqsTarget,
    address_of,
    has_templates,
    render_address,
)
from evertick.domain.attempt import Attempt
from evertick.domain.ids import Prefix, format_id, format_run_id, format_token
from evertick.domain.schedule.instants import to_us, utc_text
from evertick.runtime.tracing import traceparent_of
from evertick.targets.brokers.publisher import Message
from evertick.targets.events import EVENT_TYPE, SOURCE, SPEC_VERSION

REMEMBERED = 4096
CONTENT_TYPE = "application/json"
KEEPS_ORDER = ("key", "group_id")
"""Messages with the same one keep their order. It is the job's id unless given."""


class _Spec(msgspec.Struct):
    target: msgspec.Raw


_specs = msgspec.json.Decoder(_Spec)
_targets: msgspec.json.Decoder[KafkaTarget | RabbitmqTarget | RedisStreamTarget | NatsTarget | SqsTarget] = (
    msgspec.json.Decoder(KafkaTarget | RabbitmqTarget | RedisStreamTarget | NatsTarget | SqsTarget)
)


class Addressed(NamedTuple):
    """A target, its own headers and type of content, and its address, if no payload decides about that."""

    target: BrokerTarget
    headers: dict[str, str]
    content_type: str
    address: dict[str, str | int | bool | None] | None


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
    return Addressed(target, *headers_in(target), address)


def headers_in(target: BrokerAddress) -> tuple[dict[str, str], str]:
    """The headers of a target but for the type of content, and that."""
    headers = {name: text for name, text in target.headers.items() if name.lower() != "content-type"}
    content_types = [text for name, text in target.headers.items() if name.lower() == "content-type"]
    return headers, content_types[0] if content_types else CONTENT_TYPE


def ordered_by(address: dict[str, Any], key: str) -> dict[str, Any]:
    """The address with this key, if its broker keeps the order of a key and the address has none."""
    for name in KEEPS_ORDER:
        if name in address and address[name] is None:
            return {**address, name: key}
    return address


def message_of(attempt: Attempt, found: Addressed, source: str = SOURCE) -> Message:
    """The message of an attempt. InvalidInput: its payload lacks what the address names."""
    job_id, key = format_id(Prefix.JOB, attempt.job_id), attempt.idempotency_key  # which is rendered
    address = found.address
    if address is None:
        address = render_address(found.target, None if attempt.payload is None else json.loads(attempt.payload))
    run_id = format_run_id(attempt.job_id, to_us(attempt.fire_at))
    return Message(
        body=b"null" if attempt.payload is None else attempt.payload.encode(),
        content_type=found.content_type,
        attributes={
            "specversion": SPEC_VERSION,
            "id": run_id,
            "source": f"{source}/jobs/{job_id}",
            "type": EVENT_TYPE,
            "subject": attempt.name,
            "time": utc_text(attempt.fire_at),
            "idempotencykey": key,
            "fencingtoken": str(attempt.token[1]),
            "token": format_token(*attempt.token),
            "attempt": str(attempt.attempt),
            "reason": attempt.reason,
            "traceparent": traceparent_of(attempt, run_id),
        },
        headers=found.headers,
        address=ordered_by(address, job_id),
        message_id=key,
    )
