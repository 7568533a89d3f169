"""Sends requests by httpx."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, closing
from dataclasses import replace
from typing import Any, Generic, TypeVar

import httpx

from evertick.client.request import Request
from evertick.client.response import NoResponse, Reply
from evertick.client.transport import AsyncTransport, ServerSettings, SyncTransport, headers_of

T = TypeVar("T")


def _built(http: httpx.Client | httpx.AsyncClient, server: ServerSettings, request: Request[Any]) -> httpx.Request:
    return http.build_request(
        request.method,
        server.url + request.path,
        params=request.query or None,
        content=request.body,
        headers=headers_of(server, request),
        timeout=httpx.Timeout(server.timeout, read=server.timeout + request.may_take),
    )


def _none(error: httpx.RequestError) -> NoResponse:
    """Without the exception itself, which has the key."""
    is_early = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
    return NoResponse.of(error, never_arrived=is_early)


class _EventLines(Generic[T]):
    """Reads server-sent events line by line, and remembers where to go on."""

    def __init__(self, request: Request[T]) -> None:
        self._request = request
        self._last_id: str | None = None
        self.tries = 1

    def request(self) -> Request[T]:
        resume = {} if self._last_id is None else {"Last-Event-ID": self._last_id}
        return replace(self._request, headers={**self._request.headers, "Accept": "text/event-stream", **resume})

    def read(self, line: str) -> T | None:
        """The event that a line has, if it has one. Each has its data in one line."""
        self.tries = 1
        name, _, value = line.partition(": ")
        if name == "id":
            self._last_id = value
        return self._request.read(value.encode()) if name == "data" else None


class HttpxTransport(SyncTransport):
    """Blocks until the response has arrived. Several threads may use it."""

    def __init__(self, server: ServerSettings) -> None:
        super().__init__(server)
        self._http = httpx.Client(timeout=server.timeout)

    def _reply(self, request: Request[Any]) -> Reply:
        try:
            return self._http.send(_built(self._http, self.server, request))
        except httpx.RequestError as error:
            return _none(error)

    def follow(self, request: Request[T]) -> Iterator[T]:
        lines = _EventLines(request)
        while True:
            reply: Reply | None = None
            try:
                response = self._http.send(_built(self._http, self.server, lines.request()), stream=True)
                with closing(response):
                    if response.is_success:
                        yield from (event for line in response.iter_lines() if (event := lines.read(line)) is not None)
                    else:
                        response.read()
                        reply = response
            except httpx.RequestError as error:
                reply = _none(error)
            time.sleep(self._pause_following(request, reply, lines.tries))
            lines.tries += 1

    def close(self) -> None:
        self._http.close()


class AsyncHttpxTransport(AsyncTransport):
    """Waits on the running loop."""

    def __init__(self, server: ServerSettings) -> None:
        super().__init__(server)
        self._http = httpx.AsyncClient(timeout=server.timeout)

    async def _reply(self, request: Request[Any]) -> Reply:
        try:
            return await self._http.send(_built(self._http, self.server, request))
        except httpx.RequestError as error:
            return _none(error)

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def follow(self, request: Request[T]) -> AsyncIterator[T]:
        lines = _EventLines(request)
        while True:
            reply: Reply | None = None
            try:
                response = await self._http.send(_built(self._http, self.server, lines.request()), stream=True)
                async with aclosing(response):
                    if response.is_success:
                        async for line in response.aiter_lines():
                            if (event := lines.read(line)) is not None:
                                yield event
                    else:
                        await response.aread()
                        reply = response
            except httpx.RequestError as error:
                reply = _none(error)
            await asyncio.sleep(self._pause_following(request, reply, lines.tries))
            lines.tries += 1

    async def close(self) -> None:
        await self._http.aclose()
