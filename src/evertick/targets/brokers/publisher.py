"""What a broker's client offers to the target: publish messages, and say why one was not accepted."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from evertick.domain.errors import EvertickError

Made = TypeVar("Made")

MAX_REMEMBERED = 255
"""Characters of an address that is remembered: a payload can make as many and as long ones as it likes."""


class Envelope:
    """What the messages of a target have in common. `fixed` are attributes that have one value in all of them, `names`
    those of which each message has its own values. `plain` are headers, which get no prefix of CloudEvents.

    Publishers remember how they write an envelope: it is told apart by identity.
    """

    __slots__ = ("content_type", "fixed", "headers", "names", "plain")

    def __init__(
        self,
        content_type: str,
        headers: Mapping[str, str],
        fixed: Mapping[str, str],
        names: tuple[str, ...],
        plain: tuple[str, ...] = (),
    ) -> None:
        self.content_type = content_type
        self.headers = headers
        self.fixed = fixed
        self.names = names
        self.plain = plain

    def written_names(self, prefix: str) -> list[str]:
        """The names of a message's values, in their order, where attributes have this prefix."""
        return [*(f"{prefix}{name}" for name in self.names), *self.plain]


class Message(NamedTuple):
    """One attempt as a broker gets it. `values` are those of the attributes that its envelope names, in their order,
    and then those of its plain headers.

    `address` has the fields of the target after its templates: `topic`, `key`, `exchange`, `routing_key`, `stream`,
    `max_length`, `subject`, `queue_url`, `group_id`. Brokers may drop messages with a `message_id` that they have seen:
    it is the idempotency key of the run, or the token of the attempt if its outcome is reported.
    """

    body: bytes
    envelope: Envelope
    values: tuple[str, ...]
    address: Mapping[str, str | int | bool | None]
    message_id: str

    @property
    def attributes(self) -> dict[str, str]:
        """Those of CloudEvents and ours, by their names without a prefix (for example `specversion`, `id`,
        `fencingtoken`); each publisher writes them in the binding of its broker.
        """
        return {**self.envelope.fixed, **dict(zip(self.envelope.names, self.values, strict=False))}

    @property
    def plain(self) -> dict[str, str]:
        """The headers that each message has its own values of."""
        return dict(zip(self.envelope.plain, self.values[len(self.envelope.names) :], strict=True))


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


class Sending(ABC):
    """A message under way to a broker. It ends once: what comes after its end is ignored, and it is not sent then."""

    __slots__ = ("is_over", "message")

    def __init__(self, message: Message) -> None:
        self.message = message
        self.is_over = False

    def stored(self, receipt: str) -> None:
        """The broker has durably acknowledged it. `receipt` is for people: `topic orders, partition 3, offset 17`."""
        if not self.is_over:
            self.is_over = True
            self.ended(receipt, None)

    def failed(self, failure: Exception) -> None:
        if not self.is_over:
            self.is_over = True
            self.ended(None, failure)

    @abstractmethod
    def ended(self, receipt: str | None, failure: Exception | None) -> None:
        """One of the two is there. Called from the middle of a client's work, so it must neither raise nor send."""


def fail_all(batch: Iterable[Sending], failure: Exception) -> None:
    for sending in batch:
        sending.failed(failure)


def made_of(sending: Sending, make: Callable[[Sending], Made]) -> Made | None:
    """What a publisher makes of a message. None: it is over, because nobody waits for it or because it cannot be
    written; then it fails alone, and what was to be sent with it is sent.
    """
    if sending.is_over:
        return None
    try:
        return make(sending)
    except PublishFailed as failure:
        sending.failed(failure)
    except Exception as error:  # noqa: BLE001 - it must not fail others
        reason = f"the message cannot be written: {type(error).__name__}"
        sending.failed(PublishFailed(reason, retryable=False, is_broker_down=False))
    return None


NO_MESSAGE = Message(b"", Envelope("", {}, {}, ()), (), {}, "")
"""Of a request that publishes nothing."""


class Awaited(Sending):
    """One that a coroutine waits for."""

    __slots__ = ("answer",)

    def __init__(self, message: Message = NO_MESSAGE) -> None:
        super().__init__(message)
        self.answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def ended(self, receipt: str | None, failure: Exception | None) -> None:
        if self.answer.done():  # the coroutine was cancelled
            return
        if failure is None:
            self.answer.set_result(receipt or "")
        else:
            self.answer.set_exception(failure)


_under_way: set[asyncio.Future[None]] = set()  # asyncio itself keeps weak references alone


class Publisher(ABC):
    """A connection to one broker of one tenant; made for a connection's settings, used by many deliveries at once."""

    @abstractmethod
    async def send(self, batch: Sequence[Sending]) -> None:
        """Give messages to the broker. Each ends by itself, during this call or later. What is raised here is the
        failure of those that have not ended.
        """

    async def publish(self, message: Message) -> str:
        """Send one message, and return when it is stored."""
        sending = Awaited(message)
        try:
            # A caller that is cancelled must not leave the client in the middle of a request that others share.
            task = asyncio.ensure_future(self.send([sending]))
            _under_way.add(task)
            task.add_done_callback(_under_way.discard)
            await asyncio.shield(task)
            return await sending.answer
        finally:
            sending.is_over = True

    @abstractmethod
    async def check(self) -> str:
        """Connect, authenticate, and say what was found, for `:test`."""

    @abstractmethod
    async def close(self) -> None: ...


class Connect(Protocol):
    """Each module of a broker has such a function, `open_publisher`. It connects when it is first used."""

    def __call__(self, settings: Mapping[str, Any], secrets: Mapping[str, str], dial: Dial) -> Publisher: ...
