"""The rest of a request's body after an early answer: read and dropped, within bounds, so that the answer arrives.

A connection that is closed while bytes wait in it unread is reset, and a reset discards what the client has not read
yet: most clients send all of a body before they read.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import cast

from litestar.types import HTTPReceiveMessage, Receive, Scope

from evertick.api.reading import MOST_BATCH_BYTES

DRAIN_BYTES = 2 * MOST_BATCH_BYTES
DRAIN_SECONDS = 5.0


class RequestBody:
    """The body of one request; `is_unread` until all of it has been received."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.is_unread = _announces_body(scope["headers"])
        self._receive = receive

    async def receive(self) -> HTTPReceiveMessage:
        message = cast("HTTPReceiveMessage", await self._receive())
        self.is_unread = self.is_unread and bool(message.get("more_body"))
        return message

    async def drain(self) -> None:
        """Drop what still comes, until its end or until it is too much or too slow."""
        dropped = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                while self.is_unread and dropped <= DRAIN_BYTES:
                    message = await self.receive()
                    if message["type"] == "http.request":
                        dropped += len(message["body"])


def _announces_body(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    given = dict(headers)
    return b"transfer-encoding" in given or given.get(b"content-length", b"0").strip(b"0") != b""
