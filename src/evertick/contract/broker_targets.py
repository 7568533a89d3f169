"""Targets that are message brokers: where a run's message goes, over a connection of the tenant.

Fields that are templates name top-level fields of the payload, as `concurrency_key` does.
"""

import difflib
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

from msgspec import Meta, Struct, convert

from evertick.contract import patterns
from evertick.contract.annotations import accepted, checked
from evertick.contract.derived import lenient
from evertick.domain.errors import Fault, InvalidFields, InvalidInput
from evertick.domain.gate import PayloadField, parse_key, render_key
from evertick.domain.job.faults import Faults
from evertick.domain.job.http_target import MAX_HEADERS, check_headers

ADDRESS_MAX_LENGTH = 255
URL_MAX_LENGTH = 2048
MAX_STREAM_LENGTH = 1_000_000_000
MAX_SUBJECT_BYTES = 4000
"""NATS closes a connection that sends it a line of more than 4,096 bytes, with the address for the answer in it."""
MAX_SHOWN = 100

_is_connection_name = re.compile(patterns.CONNECTION).fullmatch
_is_exchange = re.compile(patterns.EXCHANGE).fullmatch
_is_topic = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}").fullmatch
_is_subject = re.compile(r"[^\s.*>\x00-\x1f\x7f]+(\.[^\s.*>\x00-\x1f\x7f]+)*").fullmatch
_OWN_SUBJECTS = ("$JS", "$SYS")
_has_control = re.compile(r"[\x00-\x1f\x7f-\x9f]").search


class BrokerType(StrEnum):
    """The brokers that runs can go to. Each is the name of a target's type, a connection's type, and a queue."""

    KAFKA = "kafka"
    RABBITMQ = "rabbitmq"
    REDIS_STREAM = "redis_stream"
    NATS = "nats"
    SQS = "sqs"


class Completion(StrEnum):
    """When a run that went to a broker has succeeded."""

    ACKNOWLEDGED = "acknowledged"  # when the broker has stored its message
    REPORTED = "reported"  # when the consumer of the message says so


def check_connection_name(name: str, at: str, faults: Faults) -> None:
    if not _is_connection_name(name):
        faults.add(at, "must be 1 to 63 characters of a-z, 0-9, '.', '_' and '-', the first a letter")


def check_topic(text: str, at: str, faults: Faults) -> None:
    if not _is_topic(text):
        faults.add(at, "must be 1 to 249 letters, digits, '.', '_' and '-' of ASCII, and neither '.' nor '..'")


def subject_fault(subject: str) -> str | None:
    """Why nothing can be published to a subject of NATS; None: something can."""
    if not _is_subject(subject):
        return "must be words with a dot between two of them, without spaces, '*' and '>'"
    if subject.split(".", 1)[0] in _OWN_SUBJECTS:  # an answer to a request is not the PubAck of a stream
        return f"must not begin with {' or '.join(_OWN_SUBJECTS)}, which are for requests to NATS itself"
    return _size_fault(subject, MAX_SUBJECT_BYTES)


def routing_key_fault(key: str) -> str | None:
    """Why RabbitMQ cannot have a routing key; None: it can."""
    return _size_fault(key, ADDRESS_MAX_LENGTH)


def _size_fault(text: str, most: int) -> str | None:
    size = len(text.encode(errors="replace"))
    return None if size <= most else f"must have at most {most} bytes, not {size}"


def shown(address: str) -> str:
    """An address in a reason: a payload can make it as long as it is itself."""
    return repr(address if len(address) <= MAX_SHOWN else f"{address[:MAX_SHOWN]}…")


_FAULTS = {"subject": subject_fault, "routing_key": routing_key_fault}
"""Fields that not every text fits, and what says why. Keys, streams of Redis and groups of SQS can be any text."""


def check_address_template(text: str, at: str, faults: Faults) -> None:
    name = at.rpartition("/")[2]
    try:
        pieces = parse_key(name, text)
    except InvalidInput as refused:
        faults.add(at, refused.reason)
        return
    if _has_control(text):
        faults.add(at, "must not contain line breaks or other control characters")
        return
    # With a letter in place of each field of the payload, what remains can be judged.
    rendered = "".join("x" if isinstance(piece, PayloadField) else piece for piece in pieces)
    if name in _FAULTS and (fault := _FAULTS[name](rendered)) is not None:
        faults.add(at, fault)


def check_queue_url(url: str, at: str, faults: Faults) -> None:
    if len(url) > URL_MAX_LENGTH or not re.fullmatch(patterns.QUEUE_URL, url):
        faults.add(
            at,
            "must be the URL of a queue, such as https://sqs.eu-west-1.amazonaws.com/123456789012/orders; the name of"
            " a queue has up to 80 letters, digits, '-' and '_', with '.fifo' at the end if it is FIFO",
        )


def check_exchange(name: str, at: str, faults: Faults) -> None:
    if not _is_exchange(name):  # the empty one is the default exchange
        faults.add(at, f"must be at most {ADDRESS_MAX_LENGTH} visible characters")


ConnectionName = Annotated[
    str,
    Meta(description="The name of a connection of the tenant.", extra_json_schema={"pattern": patterns.CONNECTION}),
    checked(check_connection_name),
]
Topic = Annotated[str, Meta(max_length=249), accepted(pattern=patterns.TOPIC), checked(check_topic)]
AddressTemplate = Annotated[
    str, Meta(max_length=ADDRESS_MAX_LENGTH), accepted(pattern=patterns.GATE_KEY), checked(check_address_template)
]
RoutingKey = Annotated[
    str, Meta(max_length=ADDRESS_MAX_LENGTH), accepted(pattern=patterns.ROUTING_KEY), checked(check_address_template)
]
Subject = Annotated[
    str, Meta(max_length=ADDRESS_MAX_LENGTH), accepted(pattern=patterns.SUBJECT), checked(check_address_template)
]
Exchange = Annotated[
    str,
    Meta(max_length=ADDRESS_MAX_LENGTH, extra_json_schema={"pattern": patterns.EXCHANGE}),
    checked(check_exchange),
]
StreamLength = Annotated[int, Meta(ge=1, le=MAX_STREAM_LENGTH)]
QueueUrl = Annotated[
    str, Meta(max_length=URL_MAX_LENGTH), accepted(pattern=patterns.QUEUE_URL), checked(check_queue_url)
]


class BrokerAddress(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="type"
):
    """What everything that goes to a broker has in common."""

    connection: ConnectionName
    headers: Annotated[
        Mapping[str, Annotated[str, Meta(extra_json_schema={"pattern": patterns.HEADER_VALUE})]],
        Meta(extra_json_schema={"propertyNames": {"pattern": patterns.HEADER_NAME}, "maxProperties": MAX_HEADERS}),
        checked(check_headers),
    ] = {}

    @property
    def queue_name(self) -> str:
        return str(self.__struct_config__.tag)


class BrokerTarget(BrokerAddress, frozen=True, kw_only=True):
    """What all brokers that runs go to have in common."""

    completion: Annotated[
        Completion,
        Meta(
            description="When a run has succeeded: `acknowledged`, when the broker has stored its message; `reported`,"
            " when the consumer of the message says so."
        ),
    ] = Completion.ACKNOWLEDGED
    circuit_breaker: Annotated[
        bool, Meta(description="Whether its runs are deferred while the circuit breaker of its connection is open.")
    ] = True


class KafkaTarget(BrokerTarget, frozen=True, kw_only=True, tag="kafka"):
    """A record of a topic. Records with the same `key` keep their order; unless given it is the job's id."""

    topic: Topic
    key: AddressTemplate | None = None


class RabbitmqTarget(BrokerTarget, frozen=True, kw_only=True, tag="rabbitmq"):
    """A persistent message to an exchange. Without one, `routing_key` is the name of a queue."""

    exchange: Exchange = ""
    routing_key: RoutingKey


class RedisStreamTarget(BrokerTarget, frozen=True, kw_only=True, tag="redis_stream"):
    """An entry of a stream. `max_length`: about how many entries the stream keeps; all, unless given."""

    stream: AddressTemplate
    max_length: StreamLength | None = None


class NatsTarget(BrokerTarget, frozen=True, kw_only=True, tag="nats"):
    """A message to a subject that a stream of JetStream stores."""

    subject: Subject


class SqsTarget(BrokerTarget, frozen=True, kw_only=True, tag="sqs"):
    """A message to a queue. Of a FIFO queue, `group_id` is the job's id unless given."""

    queue_url: QueueUrl
    group_id: AddressTemplate | None = None


BROKER_TARGETS: tuple[type[BrokerTarget], ...] = (KafkaTarget, RabbitmqTarget, RedisStreamTarget, NatsTarget, SqsTarget)
TEMPLATES = ("key", "routing_key", "stream", "subject", "group_id")
"""Fields that may name fields of the payload."""

_COMMON = frozenset(BrokerTarget.__struct_fields__)
_STORED = {str(kind.__struct_config__.tag): lenient(kind) for kind in BROKER_TARGETS}


def stored_broker_target(target: object) -> BrokerTarget | None:
    """A target as it is stored, whatever release wrote it, if it is a broker's."""
    kind = _STORED.get(target["type"]) if isinstance(target, Mapping) else None
    return None if kind is None else convert(target, kind)


def address_of(target: BrokerAddress) -> dict[str, Any]:
    """The fields that say where at the broker a message goes."""
    return {name: getattr(target, name) for name in target.__struct_fields__ if name not in _COMMON}


def check_connection(target: object, known: Mapping[str, str], at: str = "/target/connection") -> None:
    """Refuse a broker's target whose connection is not among those of the tenant, which are given with their types."""
    if not isinstance(target, BrokerAddress) or known.get(target.connection) == target.queue_name:
        return
    kind, name = target.queue_name, target.connection
    if name in known:
        raise InvalidFields([Fault(at, f"is a connection of type {known[name]}, not {kind}")])
    names = [each for each in known if known[each] == kind]
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"add it with POST /api/v1/connections, of type {kind}"
    raise InvalidFields([Fault(at, f"there is no connection {name!r}: {hint}")])


def check_templates(target: object, payload: object) -> None:
    """InvalidInput: the payload lacks what a template of a broker's target names, or its broker has no such address."""
    if isinstance(target, BrokerTarget) and has_templates(target):
        address = render_address(target, payload)
        for name in _FAULTS.keys() & address.keys():
            if (fault := _FAULTS[name](address[name])) is not None:
                raise InvalidInput("payload", f"makes the {name} {shown(address[name])}, which {fault}")


def has_templates(target: BrokerTarget) -> bool:
    """Whether its address depends on the payload."""
    return any("{{" in (getattr(target, name, None) or "") for name in TEMPLATES)


def render_address(target: BrokerTarget, payload: object) -> dict[str, Any]:
    """The address of a run with this payload. InvalidInput: the payload lacks what a template names."""
    found = address_of(target)
    for name in TEMPLATES:
        if (text := found.get(name)) is not None:
            found[name] = render_key(name, text, payload)
    return found
