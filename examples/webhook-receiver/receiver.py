"""Receives webhooks of Evertick: a plain ASGI application for any ASGI server or framework."""

import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from evertick.sdk.webhooks import ReceivedRun, Receiver, ReceiverError

Message: TypeAlias = MutableMapping[str, Any]

MAX_BYTES = 64 * 1024  # no payload is larger

# One secret, or two during a rotation. Several processes need a shared `memory`.
receiver = Receiver(os.environ["WEBHOOK_SECRETS"].split())


def send_report(run: ReceivedRun) -> None:
    """The work. If it raises, the response is 500 and Evertick retries."""
    print(f"{run.job_name} of {run.scheduled_at:%H:%M:%S}, attempt {run.attempt}: {run.payload}", flush=True)


def handle(headers: list[tuple[bytes, bytes]], body: bytes) -> int:
    """Process a delivery once, and return the status of the response."""
    try:
        run = receiver.verify(headers, body)
    except ReceiverError as error:
        print(f"refused: {error}", flush=True)
        return error.status
    send_report(run)
    receiver.done(run)
    return 204


async def app(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    if scope["type"] != "http":
        raise NotImplementedError(scope["type"])
    body, more = b"", True
    while more and len(body) <= MAX_BYTES:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    status = 413 if len(body) > MAX_BYTES else handle(scope["headers"], body)
    await send({"type": "http.response.start", "status": status})
    await send({"type": "http.response.body"})
