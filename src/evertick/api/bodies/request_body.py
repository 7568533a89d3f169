"""The body of a request: as the server hands it over, and within the limits of an authenticated request.

After an early response the rest of a body is read and dropped, within bounds, so that the response arrives. A
connection that is closed while bytes wait in it unread is reset, and a reset discards what the client has not read yet:
most clients send all of a body before they read. The connection ends with the bounds, so they are also what one
connection can make the server read for nothing.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any, TypeAlias

from evertick.api.bodies.memory_limits import Reservation, count_values
from evertick.api.problems import ClientDisconnected, HttpProblem, Kind
from evertick.domain.errors import Fault

Message: TypeAlias = MutableMapping[str, Any]
"""Of ASGI."""
Receive: TypeAlias = Callable[[], Awaitable[Message]]

MAX_BYTES = 1_048_576
MAX_VALUES = 131_072
"""Of one document. Decoding as many empty lists takes about 10 ms, and a job whose payload fits has fewer."""
TOO_MANY_VALUES = f"has more than {MAX_VALUES} values, by its commas and brackets"
JSON = "application/json"
NDJSON = "application/x-ndjson"
MAX_BATCH_BYTES = 33_554_432
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


class IncomingBody:
    """The body of a request with a key, as it arrives. What is read counts in its reservation and in its digest."""

    def __init__(self, headers: Mapping[str, str], stream: AsyncIterator[bytes], reservation: Reservation) -> None:
        self.headers = headers
        self.reservation = reservation
        self.digest = hashlib.sha256()
        self._stream = stream

    @property
    def announced(self) -> int | None:
        """The size that the client announced, if it did."""
        length = self.headers.get("content-length", "")
        return int(length) if length.isdecimal() else None

    async def parts(self, most: int) -> AsyncIterator[bytes]:
        """The body in parts, unless it is too large; then no more of it is read than that takes to know."""
        if self.announced is not None:
            if self.announced > most:
                raise too_large(f"a body has at most {most} bytes")
            self.reservation.check(self.announced)
        size = 0
        async for part in self._stream:
            size += len(part)
            if size > most:
                raise too_large(f"a body has at most {most} bytes")
            self.reservation.add(len(part))
            self.digest.update(part)
            yield part

    async def document(self) -> bytes:
        """A whole body that is one document, of so many values that it can be decoded at once."""
        data = b"".join([part async for part in self.parts(MAX_BYTES)])
        values = count_values(data)
        if values > MAX_VALUES:
            raise HttpProblem(Kind.INVALID, f"the body {TOO_MANY_VALUES}", [Fault("", TOO_MANY_VALUES)])
        self.reservation.add_values(values)
        return data


def check_media_type(headers: Mapping[str, str], *accepted: str) -> str:
    """The body's media type; without a word about it, the first accepted one."""
    given = headers.get("content-type")
    if given is None:
        return accepted[0]
    media_type, *parameters = given.lower().split(";")
    found = media_type.strip()
    pairs = (parameter.partition("=") for parameter in parameters)
    charsets = {value.strip().strip('"') for name, _, value in pairs if name.strip() == "charset"}
    if found not in accepted or not charsets <= {"utf-8", "utf8"}:
        raise HttpProblem(Kind.UNSUPPORTED, f"send {' or '.join(accepted)}, in UTF-8")
    return found


def too_large(detail: str) -> HttpProblem:
    # The rest of the body is not read, so the connection is of no further use.
    return HttpProblem(Kind.TOO_LARGE, detail, headers={"Connection": "close"})
