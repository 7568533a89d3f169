"""The body of a request as the server hands it over, and the rest of it after an early response: read and dropped,
within bounds, so that the response arrives.

A connection that is closed while bytes wait in it unread is reset, and a reset discards what the client has not read
yet: most clients send all of a body before they read. The connection ends with the bounds, so they are also what one
connection can make the server read for nothing.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress

from evertick.api.asgi import Message, Receive
from evertick.api.bodies.batches import MAX_BATCH_BYTES
from evertick.api.bodies.incoming import MAX_BYTES
from evertick.api.problems import ClientDisconnected

DRAIN_BYTES = 2 * MAX_BATCH_BYTES
UNAUTHENTICATED_DRAIN_BYTES = MAX_BYTES
"""Without a valid key: as much as any body but a batch may have, so that a client with a wrong key can read its 401."""
DRAIN_SECONDS = 5.0


class RequestBody:
    """The body of one request; `is_unread` until all of it has been received."""

    def __init__(self, headers: Iterable[tuple[bytes, bytes]], receive: Receive) -> None:
        self.is_unread = _announces_body(headers)
        self._receive = receive

    async def parts(self) -> AsyncIterator[bytes]:
        """The body as it arrives."""
        while True:
            message = await self._next()
            if message["type"] != "http.request":
                raise ClientDisconnected
            if message["body"]:
                yield message["body"]
            if not message["more_body"]:
                return

    async def disconnected(self) -> None:
        """Return when the client has disconnected. For a body that has been read: nothing else can come."""
        while (await self._next())["type"] != "http.disconnect":
            pass

    async def drain(self, max_bytes: int) -> None:
        """Drop what still comes, until its end or until it is too much or too slow."""
        dropped = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                while self.is_unread and dropped <= max_bytes:
                    message = await self._next()
                    if message["type"] == "http.request":
                        dropped += len(message["body"])

    async def _next(self) -> Message:
        message = await self._receive()
        self.is_unread = self.is_unread and bool(message.get("more_body"))
        return message


def _announces_body(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    by_name = dict(headers)
    return b"transfer-encoding" in by_name or by_name.get(b"content-length", b"0").strip(b"0") != b""
