"""Calls a server over plain http by the standard library alone, for the command line: importing httpx takes longer than
most commands. A request is made in a thread, so that Ctrl-C ends it at once.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from evertick.client.request import Request
from evertick.client.response import NoResponse, Reply
from evertick.client.transport import AsyncTransport, ServerSettings, headers_of

T = TypeVar("T")
_PROXIES = frozenset({"http_proxy", "all_proxy"})


def is_plain(url: str) -> bool:
    """Whether a server is called without TLS, and without a proxy."""
    return url.startswith("http://") and not any(name.lower() in _PROXIES for name in os.environ)


class _PlainResponse(NamedTuple):
    status_code: int
    content: bytes
    headers: Mapping[str, str]


class PlainTransport(AsyncTransport):
    """One connection for each request: commands make few."""

    def __init__(self, server: ServerSettings) -> None:
        super().__init__(server)
        self._place = urlsplit(server.url)

    async def _reply(self, request: Request[Any]) -> Reply:
        timeout = self.server.timeout + request.may_take
        connection = HTTPConnection(self._place.hostname or "", self._place.port, timeout=timeout)
        headers = headers_of(self.server, request)
        try:
            return await asyncio.to_thread(_answer, connection, self._place.path, request, headers)
        except asyncio.CancelledError:
            _shut_down(connection)
            raise

    def follow(self, request: Request[T]) -> AsyncIterator[T]:
        """As httpx does it: who follows a stream does not wait for the import."""
        from evertick.client.httpx_transport import AsyncHttpxTransport  # noqa: PLC0415 - as above

        return AsyncHttpxTransport(self.server).follow(request)

    async def close(self) -> None:
        """Nothing is kept open."""


def _shut_down(connection: HTTPConnection) -> None:
    """Let the thread that reads from this connection end: the process would wait for it."""
    if connection.sock is not None:
        with suppress(OSError):
            connection.sock.shutdown(socket.SHUT_RDWR)


def _answer(connection: HTTPConnection, prefix: str, request: Request[Any], headers: Mapping[str, str]) -> Reply:
    with closing(connection):
        try:
            connection.connect()
        except (OSError, UnicodeError) as error:  # also of a name that can be none of a host
            return NoResponse.of(error, never_arrived=True)
        query = f"?{urlencode(request.query)}" if request.query else ""
        try:
            connection.request(request.method, f"{quote(prefix)}{request.path}{query}", request.body, dict(headers))
            response = connection.getresponse()
            content = response.read()
        except (OSError, HTTPException) as error:
            return NoResponse.of(error, never_arrived=False)
    # A proxy may add headers of a name that is there: all of them count.
    names = {name.lower() for name in response.headers}
    joined = {name: ", ".join(response.headers.get_all(name, [])) for name in names}
    return _PlainResponse(response.status, content, joined)
