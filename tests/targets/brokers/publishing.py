"""What tests of publishers share: messages, a guard, small servers, and a publisher that is closed at the end."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import pytest

from evertick.domain.errors import EvertickError
from evertick.targets.brokers.publisher import Awaited, Connect, Dial, Envelope, Message, Publisher, PublishFailed

MANY = 1000
WAIT_SECONDS = 180
"""On a machine of any speed: reaching it means that something hangs."""
Serve: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
ATTRIBUTES = {
    "specversion": "1.0",
    "id": "run_1",
    "source": "/jobs/job_1",
    "type": "evertick.run",
    "subject": "nightly Ünïcode",
    "time": "2026-01-01T00:00:00Z",
    "idempotencykey": "key-1",
    "fencingtoken": "17",
    "token": "412.17",
    "attempt": "1",
    "reason": "schedule",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
}
BODY = b'{"order": 17}'
PLAIN = {"traceparent": ATTRIBUTES["traceparent"]}
"""By its own name too."""
FIXED = {name: ATTRIBUTES[name] for name in ("specversion", "type")}
ENVELOPE = Envelope(
    "application/json",
    {"X-Team": "billing"},
    FIXED,
    tuple(name for name in ATTRIBUTES if name not in FIXED),
    tuple(PLAIN),
)


NAMES = ["nightly", "nightly Ünïcode", "long" * 2000]
"""Of jobs: texts of ASCII and short ones are written another way than others."""


def message(number: int = 1, body: bytes = BODY, name: str = NAMES[1], **address: str | None) -> Message:
    attributes = {**ATTRIBUTES, "id": f"run_{number}", "subject": name}
    values = tuple(attributes[name] for name in (*ENVELOPE.names, *ENVELOPE.plain))
    return Message(body, ENVELOPE, values, address, message_id=f"key-{number}")


class Refused(EvertickError):  # noqa: N818 - says what happened
    """The guard's refusal."""


class Guard:
    """Every host is this machine; some are refused."""

    def __init__(self, *refused: str) -> None:
        self._refused = refused
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        if host in self._refused:
            raise Refused("not a public address")
        return ["127.0.0.1"]


@asynccontextmanager
async def publishing(
    connect: Connect, settings: Mapping[str, Any], secrets: Mapping[str, str] | None = None, dial: Dial | None = None
) -> AsyncIterator[Publisher]:
    publisher = connect(settings, secrets or {}, dial or Guard())
    try:
        yield publisher
    finally:
        await publisher.close()


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[int]:
    """The port of a server."""

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass  # the publisher has left
        finally:
            writer.close()

    server = await asyncio.start_server(served, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def failure_of(publishing: Awaitable[object]) -> PublishFailed:
    """Why it fails; it must not take long."""
    async with asyncio.timeout(WAIT_SECONDS):
        with pytest.raises(PublishFailed) as failed:
            await publishing
    return failed.value


async def failure_beside(failing: Awaitable[object], *others: Awaitable[object]) -> PublishFailed:
    """Why one fails while the others succeed."""
    failure, _ = await asyncio.gather(failure_of(failing), asyncio.gather(*others))
    return failure


UNWRITABLE = "\ud800"
"""A text that a payload can have, and that UTF-8 has no bytes for."""
UNWRITABLE_ENVELOPE = Envelope("application/json", {"X-Team": UNWRITABLE}, FIXED, ENVELOPE.names, ENVELOPE.plain)


async def failure_in_batch(publisher: Publisher, bad: Message, good: Message) -> PublishFailed:
    """Why a message fails that is sent between two others, which succeed."""
    sent = [Awaited(each) for each in (good, bad, good)]
    async with asyncio.timeout(WAIT_SECONDS):
        await publisher.send(sent)
        await asyncio.gather(sent[0].answer, sent[2].answer)
    return await failure_of(sent[1].answer)


async def until_published(publisher: Publisher, each: Message) -> str | None:
    """Publish to a broker that comes back, as a dispatcher does: again after each failure that is worth it."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            try:
                return await publisher.publish(each)
            except PublishFailed as failed:
                if not failed.retryable:
                    raise
                await asyncio.sleep(0.05)  # between two tries
