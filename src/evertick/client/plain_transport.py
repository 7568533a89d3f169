"""Calls a server over plain http by the standard library alone, for the command line: to import httpx or asyncio takes
longer than most commands. A call blocks, so that Ctrl-C ends it at once.
"""

import os
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import closing
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


def run_plain(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that awaits nothing but calls of a `PlainClient`: it needs no event loop."""
    try:
        work.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    work.close()
    raise RuntimeError("the coroutine awaits more than calls of a PlainClient")


class _PlainResponse(NamedTuple):
    status_code: int
    content: bytes
    headers: Mapping[str, str]


class PlainTransport(AsyncTransport):
    """Its coroutines never suspend. One connection for each request: commands make few."""

    def __init__(self, server: ServerSettings) -> None:
        super().__init__(server)
        self._place = urlsplit(server.url)

    async def _reply(self, request: Request[Any]) -> Reply:
        timeout = self.server.timeout + request.may_take
        connection = HTTPConnection(self._place.hostname or "", self._place.port, timeout=timeout)
        return _answer(connection, self._place.path, request, headers_of(self.server, request))

    async def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - nothing else is to run meanwhile

    def follow(self, request: Request[T]) -> AsyncIterator[T]:
        raise NotImplementedError("who follows a stream uses AsyncClient")

    async def close(self) -> None:
        """Nothing is kept open."""


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
