"""What follows from a response, in sync or async code. Both share every decision; only the waiting differs. How a
request is sent: `httpx_transport`, and `plain_transport` for the command line.

`Call` and `PagedCall` make a method callable that only describes a request: on a `Client` it returns the answer, on an
`AsyncClient` an awaitable of it. So each call of the API is written once.
"""

import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

import msgspec

from evertick.client.errors import ApiError, error_of, unreachable, unreadable
from evertick.client.request import FIRST_PAUSE, JSON, RETRIES, Request, pause_before_retry
from evertick.client.response import NoResponse, Reply, Response, is_success
from evertick.domain.errors import InvalidInput
from evertick.version import __version__

DEFAULT_URL = "http://127.0.0.1:8700"
TIMEOUT_SECONDS = 30.0
_WITH_USER = re.compile("[a-z]+://[^/?#]*@")

P = ParamSpec("P")
T = TypeVar("T")
W = TypeVar("W", bound="Transport")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The server, the key for it, the timeout of a response, and the number of retries."""

    url: str
    api_key: str = field(repr=False)
    timeout: float = TIMEOUT_SECONDS
    retries: int = RETRIES


def server_settings(url: str | None, api_key: str | None, timeout: float, retries: int) -> ServerSettings:
    """What is not given is taken from the environment."""
    address = url or os.environ.get("EVERTICK_URL") or DEFAULT_URL
    key = api_key or os.environ.get("EVERTICK_API_KEY")
    if not address.startswith(("http://", "https://")):
        raise InvalidInput("url", "must start with http:// or https://, as in https://evertick.example.com")
    if _WITH_USER.match(address):
        # It would be visible wherever the URL is, and httpx would send it instead of the key.
        raise InvalidInput("url", "must have no user or password: the key is all that a server asks for")
    if not key:
        raise InvalidInput("api_key", "is missing: give it, or set EVERTICK_API_KEY")
    if not (key.isascii() and key.isprintable()):
        raise InvalidInput("api_key", "has characters that no key has")
    return ServerSettings(address.rstrip("/"), key, timeout, retries)


def headers_of(server: ServerSettings, request: Request[Any]) -> dict[str, str]:
    """All headers of a request."""
    headers = {"Authorization": f"Bearer {server.api_key}", "User-Agent": f"evertick-python/{__version__}"}
    if request.body is not None:
        headers["Content-Type"] = JSON
    return {**headers, **request.headers}


class Transport(ABC):  # noqa: B024 - its two kinds have some
    """What all transports share: when a request is sent again, and what a response means."""

    def __init__(self, server: ServerSettings) -> None:
        self.server = server

    def _failure(self, request: Request[Any], reply: Reply) -> ApiError:
        if isinstance(reply, NoResponse):
            return unreachable(request.method, request.path, self.server.url, reply)
        return error_of(request.method, request.path, reply)

    def _pause(self, request: Request[Any], reply: Reply, tries: int) -> float:
        """How long to wait before the next try. Raises the failure if there is none."""
        failure = self._failure(request, reply)
        pause = pause_before_retry(request, failure, tries, self.server.retries)
        if pause is None:
            raise failure from None
        return pause

    def _pause_following(self, request: Request[Any], reply: Reply | None, tries: int) -> float:
        """As `_pause`, of a stream, which is followed through every outage. None: the server has ended it."""
        if reply is None:
            return FIRST_PAUSE
        failure = self._failure(request, reply)
        pause = pause_before_retry(request, failure, min(tries, self.server.retries), self.server.retries)
        if pause is None:
            raise failure from None
        return pause


def _read(request: Request[T], response: Response) -> T:
    try:
        return request.read(response.content)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise unreadable(request.method, request.path, response, str(error)) from None


class SyncTransport(Transport):
    """Blocks until the response has arrived. Several threads may use it."""

    def send(self, request: Request[T]) -> T:
        return _read(request, self._answer(request))

    def pages(self, request: Request[list[T]]) -> Iterator[T]:
        """The items of all pages, each page fetched when it is needed."""
        page: Request[list[T]] | None = request
        while page is not None:
            response = self._answer(page)
            yield from _read(page, response)
            page = page.following(response)

    def _answer(self, request: Request[Any]) -> Response:
        tries = 1
        while True:
            reply = self._reply(request)
            if not isinstance(reply, NoResponse) and is_success(reply):
                return reply
            time.sleep(self._pause(request, reply, tries))
            tries += 1

    @abstractmethod
    def _reply(self, request: Request[Any]) -> Reply:
        """Send it once."""

    @abstractmethod
    def follow(self, request: Request[T]) -> Iterator[T]:
        """The events of a stream as they happen, without an end."""

    @abstractmethod
    def close(self) -> None: ...


class AsyncTransport(Transport):
    """What those of the async clients share."""

    async def send(self, request: Request[T]) -> T:
        return _read(request, await self._answer(request))

    async def pages(self, request: Request[list[T]]) -> AsyncIterator[T]:
        """The items of all pages, each page fetched when it is needed."""
        page: Request[list[T]] | None = request
        while page is not None:
            response = await self._answer(page)
            for item in _read(page, response):
                yield item
            page = page.following(response)

    async def _answer(self, request: Request[Any]) -> Response:
        tries = 1
        while True:
            reply = await self._reply(request)
            if not isinstance(reply, NoResponse) and is_success(reply):
                return reply
            await self._sleep(self._pause(request, reply, tries))
            tries += 1

    @abstractmethod
    async def _reply(self, request: Request[Any]) -> Reply:
        """Send it once."""

    @abstractmethod
    async def _sleep(self, seconds: float) -> None: ...

    @abstractmethod
    def follow(self, request: Request[T]) -> AsyncIterator[T]:
        """The events of a stream as they happen, without an end."""

    @abstractmethod
    async def close(self) -> None: ...


class Calls(Generic[W]):
    """Calls about one subject, and the transport that sends them."""

    def __init__(self, transport: W) -> None:
        self._transport: W = transport


class _Described(Generic[P, T]):
    """A method that describes a request. Called on an instance, it sends the request by the instance's transport."""

    def __init__(self, describe: Callable[Concatenate[Any, P], Request[T]]) -> None:
        self._describe = describe
        self.__doc__ = describe.__doc__

    def _bound(self, calls: Calls[Any] | None, method: str) -> Any:
        if calls is None:
            return self
        describe = self._describe
        send = getattr(calls._transport, method)  # noqa: SLF001 - a method of it in all but form

        @wraps(describe)
        def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            return send(describe(calls, *args, **kwargs))

        return call


class Call(_Described[P, T]):
    """A call with one answer."""

    @overload
    def __get__(self, calls: None, owner: type) -> Self: ...
    @overload
    def __get__(self, calls: Calls[SyncTransport], owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, calls: Calls[AsyncTransport], owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, calls: Calls[Any] | None, owner: type) -> Any:
        return self._bound(calls, "send")


class PagedCall(_Described[P, list[T]], Generic[P, T]):
    """A call whose answer has pages: returns an iterator over the items of all pages."""

    @overload
    def __get__(self, calls: None, owner: type) -> Self: ...
    @overload
    def __get__(self, calls: Calls[SyncTransport], owner: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, calls: Calls[AsyncTransport], owner: type) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, calls: Calls[Any] | None, owner: type) -> Any:
        return self._bound(calls, "pages")


class StreamCall(_Described[P, T]):
    """A call whose answer has no end: returns an iterator over what comes, which survives disconnections."""

    @overload
    def __get__(self, calls: None, owner: type) -> Self: ...
    @overload
    def __get__(self, calls: Calls[SyncTransport], owner: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, calls: Calls[AsyncTransport], owner: type) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, calls: Calls[Any] | None, owner: type) -> Any:
        return self._bound(calls, "follow")
