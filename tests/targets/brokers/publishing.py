"""What tests of publishers share: messages, a guard, and a publisher that is closed at the end."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from evertick.domain.errors import EvertickError
from evertick.targets.brokers.publisher import Connect, Dial, Message, Publisher, PublishFailed

MANY = 1000
WAIT_SECONDS = 180
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


def message(number: int = 1, body: bytes = BODY, **address: str | None) -> Message:
    return Message(
        body=body,
        content_type="application/json",
        attributes={**ATTRIBUTES, "id": f"run_{number}"},
        headers={"X-Team": "billing"},
        address=address,
        message_id=f"key-{number}",
    )


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
