"""The body of a request as the server hands it over, and the rest of it after an early answer: read and dropped, within
bounds, so that the answer arrives.

A connection that is closed while bytes wait in it unread is reset, and a reset discards what the client has not read
yet: most clients send all of a body before they read. The connection ends with the bounds, so they are also what one
connection can make the server read for nothing.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import cast

from litestar.types import HTTPReceiveMessage, Receive, Scope

from evertick.api.bodies.batches import MAX_BATCH_BYTES
from evertick.api.bodies.reading import MAX_BYTES
from evertick.api.problems import ClientDisconnected

DRAIN_BYTES = 2 * MAX_BATCH_BYTES
STRANGER_DRAIN_BYTES = MAX_BYTES
"""Without a valid key: as much as any body but a batch may have, so that a client with a wrong key can read its 401."""
DRAIN_SECONDS = 5.0


class RequestBody:
    """The body of one request; `is_unread` until all of it has been received.

    `is_known`: whoever sends it has a valid key.
    """

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.is_unread = _announces_body(scope["headers"])
        self.is_known = False
        self._receive = receive

    async def receive(self) -> HTTPReceiveMessage:
        message = cast("HTTPReceiveMessage", await self._receive())
        self.is_unread = self.is_unread and bool(message.get("more_body"))
        return message

    async def parts(self) -> AsyncIterator[bytes]:
        """The body as it arrives."""
        while True:
            message = await self.receive()
            if message["type"] != "http.request":
                raise ClientDisconnected
            if message["body"]:
                yield message["body"]
            if not message["more_body"]:
                return

    async def drain(self) -> None:
        """Drop what still comes, until its end or until it is too much or too slow."""
        most = DRAIN_BYTES if self.is_known else STRANGER_DRAIN_BYTES
        dropped = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                while self.is_unread and dropped <= most:
                    message = await self.receive()
                    if message["type"] == "http.request":
                        dropped += len(message["body"])


def _announces_body(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    given = dict(headers)
    return b"transfer-encoding" in given or given.get(b"content-length", b"0").strip(b"0") != b""
