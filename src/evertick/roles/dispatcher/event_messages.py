"""Publishes events to a broker, each as one message.

Duty: events with the same key reach the broker in the order of the stream: each is published when the one before it was
acknowledged. Different keys go at the same time. The key is that of the sink, or else the event's job, or its tenant.

Invariants: after a failure nothing more of the batch is published, so that of each key only its first events were. One
deadline spans the batch; a batch has so few events of a key that a slow broker can acknowledge one after the other.
"""

import asyncio
from collections import defaultdict
from collections.abc import Sequence

from evertick.contract.broker_targets import BrokerAddress, address_of
from evertick.contract.events import Event
from evertick.domain.attempt import HandedOver, Succeeded
from evertick.domain.ids import Prefix, format_id
from evertick.domain.schedule.instants import utc_text
from evertick.runtime.events import SOURCE
from evertick.targets.brokers.message import KEEPS_ORDER, headers_in, ordered_by
from evertick.targets.brokers.publisher import Envelope, Message
from evertick.targets.brokers.target import BrokerDelivery

TIMEOUT_SECONDS = 25.0
"""Of one batch."""
MAX_KEYS = 128
"""Of which events are published at the same time."""
MAX_OF_KEY = 20
"""Events of one key in a batch."""


def key_of(sink: BrokerAddress, event: Event) -> str:
    """Events with the same one keep their order."""
    given = [key for name in KEEPS_ORDER if (key := getattr(sink, name, None)) is not None]
    return given[0] if given else event.partitionkey or event.source.removeprefix(SOURCE)


class Envelopes:
    """What messages to a sink have in common: events differ in which attributes they have."""

    def __init__(self, sink: BrokerAddress) -> None:
        self._headers, self._content_type = headers_in(sink)
        self._by_names: dict[tuple[str, ...], Envelope] = {}

    def of(self, names: tuple[str, ...]) -> Envelope:
        if names not in self._by_names:
            self._by_names[names] = Envelope(self._content_type, self._headers, {}, names)
        return self._by_names[names]


def message_of(tenant_id: int, sink: BrokerAddress, envelopes: Envelopes, event: Event, body: bytes) -> Message:
    """An event, which has this data, for the sink of a tenant."""
    attributes = {
        "specversion": event.specversion,
        "id": event.id,
        "source": event.source,
        "type": event.type,
        "time": utc_text(event.time),
        "subject": event.subject,
        "partitionkey": event.partitionkey,
    }
    given = {name: text for name, text in attributes.items() if text is not None}
    return Message(
        body=body,
        envelope=envelopes.of(tuple(given)),
        values=tuple(given.values()),
        address=ordered_by(address_of(sink), key_of(sink, event)),
        # Sinks of two tenants may share a stream that recognises repetitions.
        message_id=f"event-{format_id(Prefix.TENANT, tenant_id)}-{event.id}",
    )


async def publish_batch(
    brokers: BrokerDelivery, tenant_id: int, sink: BrokerAddress, events: Sequence[Event], bodies: Sequence[bytes]
) -> str | None:
    """Publish events in order; a text says why not all of them were acknowledged."""
    by_key: defaultdict[str, list[Message]] = defaultdict(list)
    envelopes = Envelopes(sink)
    for event, body in zip(events, bodies, strict=True):
        by_key[key_of(sink, event)].append(message_of(tenant_id, sink, envelopes, event, body))
    errors: list[str] = []
    waiting = iter(by_key.values())

    async def publish_keys() -> None:
        for messages in waiting:
            for message in messages:
                if errors:
                    return
                outcome = await brokers.publish(tenant_id, sink, message)
                if not isinstance(outcome, Succeeded | HandedOver):
                    errors.append(outcome.error)

    try:
        async with asyncio.timeout(TIMEOUT_SECONDS), asyncio.TaskGroup() as group:
            for _ in range(min(MAX_KEYS, len(by_key))):
                group.create_task(publish_keys())
    except TimeoutError:
        return f"not all events were acknowledged within {TIMEOUT_SECONDS:g} s"
    return errors[0] if errors else None
