"""What a broker's client offers to the target: publish messages, and say why one was not accepted."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from evertick.domain.errors import EvertickError


@dataclass(frozen=True, slots=True)
class Message:
    """One attempt as a broker gets it. `attributes` are those of CloudEvents and ours, by their names without a prefix
    (for example `specversion`, `id`, `fencingtoken`); each publisher writes them in the binding of its broker.

    `address` has the fields of the target after its templates: `topic`, `key`, `exchange`, `routing_key`, `stream`,
    `max_length`, `subject`, `queue_url`, `group_id`. `message_id` is the idempotency key of the run.
    """

    body: bytes
    content_type: str
    attributes: Mapping[str, str]
    headers: Mapping[str, str]
    address: Mapping[str, str | int | bool | None]
    message_id: str


class PublishFailed(EvertickError):  # noqa: N818 - says what happened
    """The broker did not take a message. `retryable`: whether a later try can help.

    `is_broker_down`: the connection or the broker as a whole failed, which counts for the circuit breaker; otherwise
    only this message did (too large, no such topic).
    """

    def __init__(self, reason: str, *, retryable: bool, is_broker_down: bool) -> None:
        super().__init__(reason)
        self.retryable = retryable
        self.is_broker_down = is_broker_down


class Dial(Protocol):
    """The egress guard for brokers: the checked addresses of a host. DestinationRefused: none may be called."""

    async def __call__(self, host: str, port: int) -> list[str]: ...


class Publisher(Protocol):
    """A connection to one broker of one tenant; made for a connection's settings, used by many deliveries at once. It
    batches by itself.
    """

    async def publish(self, message: Message) -> str | None:
        """Return when the broker has durably acknowledged: a short text for people, such as
        `topic orders, partition 3, offset 17`.
        """

    async def check(self) -> str:
        """Connect, authenticate, and say what was found, for `:test`."""

    async def close(self) -> None: ...


class Connect(Protocol):
    """Each module of a broker has such a function, `open`. It connects when it is first used."""

    def __call__(self, settings: Mapping[str, Any], secrets: Mapping[str, str], dial: Dial) -> Publisher: ...
