"""Events as CloudEvents, what each type tells, and a tenant's stream of them with its sink."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeAlias

from msgspec import Meta, Struct

from evertick.contract import patterns
from evertick.contract.access import AuditEntry
from evertick.contract.annotations import Count, JobId, Limit, Ordinal, Schema, Time, accepted, checked, ref
from evertick.contract.broker_targets import (
    ADDRESS_MAX_LENGTH,
    BrokerAddress,
    Exchange,
    QueueUrl,
    StreamLength,
    Topic,
    check_address_template,
)
from evertick.contract.runs import Gap, RunDetail
from evertick.domain.events import EventType
from evertick.domain.job.faults import Faults
from evertick.domain.job.http_target import MAX_HEADERS, URL_MAX_LENGTH, check_headers, check_url

EVENT_PREFIX = "evertick."
"""Of the CloudEvents type."""
FIRED = EVENT_PREFIX + "run.fired"
"""The type of what targets are sent for a run."""
SOURCE = "/evertick"
"""Begins the source of every run, unless the settings say otherwise."""
SPEC_VERSION = "1.0"
MEDIA_TYPE = "application/cloudevents+json"
BATCH_MEDIA_TYPE = "application/cloudevents-batch+json"
EVENT_STREAM = "text/event-stream"

Position = Annotated[str, Meta(pattern=patterns.ENTRY)]


class FinishedRun(RunDetail, frozen=True, kw_only=True):
    """A run that is over, with all its attempts."""

    job_name: str | None


class StreamedGap(Gap, frozen=True, kw_only=True):
    """A gap as it is now. Job, `scheduled_at` and `reason` identify it."""

    job_name: str | None


class ChangedJob(Struct, frozen=True, kw_only=True):
    """A job after a change. `spec` has no payload, no labels, and no headers of a target."""

    job_id: JobId
    job_name: str | None
    spec_version: Ordinal
    pause_reason: str | None
    spec: Annotated[dict[str, Any] | None, Meta(description="Fields that differ from their default.")]


class LostEvents(Struct, frozen=True, kw_only=True):
    """Events after `after`, up to `until`, are not kept any more. What they told is in the history."""

    after: Position
    until: Position


EventData: TypeAlias = FinishedRun | StreamedGap | ChangedJob | AuditEntry | LostEvents


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A CloudEvent. Its `id` is a position: a reader goes on after the last one that it has."""

    specversion: str
    id: Position
    source: Annotated[str, Meta(description="Names the tenant.", examples=["/evertick/tenants/ten_0000000000001"])]
    type: Annotated[str, Meta(extra_json_schema={"enum": [EVENT_PREFIX + kind for kind in EventType]})]
    time: Time
    datacontenttype: str
    data: Annotated[
        Any,
        Meta(
            extra_json_schema={
                "anyOf": [ref(kind.__name__) for kind in (FinishedRun, StreamedGap, ChangedJob, AuditEntry, LostEvents)]
            }
        ),
    ]
    subject: Annotated[str | None, Meta(description="The id of the run, or of the job.")] = None
    partitionkey: Annotated[
        str | None, Meta(description="The id of the job: events with the same one come in order.")
    ] = None


class WebhookSink(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="http"):
    """Batches of events are sent to `url`, signed with the tenant's webhook secrets."""

    url: Annotated[
        str, Meta(extra_json_schema={"maxLength": URL_MAX_LENGTH}), accepted(pattern=patterns.URL), checked(check_url)
    ]
    headers: Annotated[
        Mapping[str, Annotated[str, Meta(extra_json_schema={"pattern": patterns.HEADER_VALUE})]],
        Meta(extra_json_schema={"propertyNames": {"pattern": patterns.HEADER_NAME}, "maxProperties": MAX_HEADERS}),
        checked(check_headers),
    ] = {}


def check_fixed_address(text: str, at: str, faults: Faults) -> None:
    if "{{" in text:
        faults.add(at, "must be the same for all events: they have no payload that {{payload.…}} could name")
    else:
        check_address_template(text, at, faults)


_FixedAddress = Annotated[
    str, Meta(max_length=ADDRESS_MAX_LENGTH), accepted(pattern=patterns.GATE_KEY), checked(check_fixed_address)
]
_FixedRoutingKey = Annotated[
    str, Meta(max_length=ADDRESS_MAX_LENGTH), accepted(pattern=patterns.ROUTING_KEY), checked(check_fixed_address)
]
_FixedSubject = Annotated[
    str, Meta(max_length=ADDRESS_MAX_LENGTH), accepted(pattern=patterns.SUBJECT), checked(check_fixed_address)
]


class KafkaSink(BrokerAddress, frozen=True, kw_only=True, tag="kafka"):
    """Each event is a record of a topic. Unless given, `key` is the id of its job, or else of its tenant."""

    topic: Topic
    key: _FixedAddress | None = None


class RabbitmqSink(BrokerAddress, frozen=True, kw_only=True, tag="rabbitmq"):
    """Each event is a persistent message to an exchange. Without one, `routing_key` is the name of a queue."""

    exchange: Exchange = ""
    routing_key: _FixedRoutingKey


class RedisStreamSink(BrokerAddress, frozen=True, kw_only=True, tag="redis_stream"):
    """Each event is an entry of a stream. `max_length`: about how many entries it keeps; all, unless given."""

    stream: _FixedAddress
    max_length: StreamLength | None = None


class NatsSink(BrokerAddress, frozen=True, kw_only=True, tag="nats"):
    """Each event is a message to a subject that a stream of JetStream stores."""

    subject: _FixedSubject


class SqsSink(BrokerAddress, frozen=True, kw_only=True, tag="sqs"):
    """Each event is a message to a queue. Of a FIFO queue, `group_id` is the id of its job, or else of its tenant."""

    queue_url: QueueUrl
    group_id: _FixedAddress | None = None


Sink: TypeAlias = WebhookSink | KafkaSink | RabbitmqSink | RedisStreamSink | NatsSink | SqsSink


class EventStreamRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """Keeps events, and says where they are sent. Without a sink they can only be read."""

    sink: Sink | None = None
    types: (
        Annotated[
            tuple[EventType, ...],
            Meta(min_length=1, max_length=100, description="The sink gets these; all, unless given."),
        ]
        | None
    ) = None
    all_tenants: Annotated[
        bool,
        Meta(description="Keep the events of all tenants, and send them to this sink. Of the hosting tenant alone."),
    ] = False
    json_schema: ClassVar[Schema] = {
        "examples": [
            {"sink": {"type": "http", "url": "https://hooks.example.invalid/events"}},
            {"sink": {"type": "kafka", "connection": "warehouse", "topic": "evertick-events"}},
        ]
    }


class SinkStatus(Struct, frozen=True, kw_only=True):
    """How far a sink is."""

    cursor: Annotated[Position, Meta(description="Of the last event that was delivered.")]
    lag_seconds: Annotated[float, Meta(description="How old the oldest event is that was not delivered; 0: all were.")]
    delivered_at: Annotated[Time | None, Meta(description="When it last took events.")]
    failing_since: Annotated[Time | None, Meta(description="Null: the last delivery succeeded.")]
    failures: Annotated[Count, Meta(description="In a row.")]
    last_error: str | None
    next_try_at: Annotated[Time | None, Meta(description="While it fails.")]


class EventStream(Struct, frozen=True, kw_only=True):
    """A tenant's stream of events."""

    created_at: Annotated[Time, Meta(description="Since when events are kept.")]
    all_tenants: bool
    sink: Annotated[dict[str, Any] | None, Meta(description="As it was given.")]
    types: tuple[str, ...] | None
    status: SinkStatus | None


class EventsQuery(Struct, forbid_unknown_fields=True):
    types: Annotated[list[EventType], Meta(max_length=100, description="Only of these types.")] = []
    limit: Limit = 100
    cursor: Annotated[
        Position | None,
        Meta(description="The `id` of the last event that the reader has. Without it, all events that are kept."),
    ] = None
