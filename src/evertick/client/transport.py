"""Sends requests, plainly or on an event loop. All that they decide is shared; only the waiting differs.

`Sent` and `Listed` let a method that only describes a request be called: on a plain client it gives the answer, on an
async one an awaitable of it. So each call of the API is written once.
"""

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

import httpx
import msgspec

from evertick.client.errors import ApiError, error_of, unreachable, unreadable
from evertick.client.request import JSON, RETRIES, Request, pause_before_retry
from evertick.domain.errors import InvalidInput
from evertick.version import __version__

DEFAULT_URL = "http://127.0.0.1:8700"
TIMEOUT_SECONDS = 30.0
_WITH_USER = re.compile("[a-z]+://[^/?#]*@")

P = ParamSpec("P")
T = TypeVar("T")
W = TypeVar("W", bound="Transport")


@dataclass(frozen=True, slots=True)
class Place:
    """Where the server is, with which key, and how patient to be. What is not given is in the environment."""

    url: str
    api_key: str = field(repr=False)
    timeout: float = TIMEOUT_SECONDS
    retries: int = RETRIES


def place_of(url: str | None, api_key: str | None, timeout: float, retries: int) -> Place:
    place = url or os.environ.get("EVERTICK_URL") or DEFAULT_URL
    key = api_key or os.environ.get("EVERTICK_API_KEY")
    if not place.startswith(("http://", "https://")):
        raise InvalidInput("url", "must start with http:// or https://, as in https://evertick.example.com")
    if _WITH_USER.match(place):
        # Not only would it show wherever the URL does: it would go out in place of the key.
        raise InvalidInput("url", "must have no user or password: the key is all that a server asks for")
    if not key:
        raise InvalidInput("api_key", "is missing: give it, or set EVERTICK_API_KEY")
    if not (key.isascii() and key.isprintable()):
        raise InvalidInput("api_key", "has characters that no key has")
    return Place(place.rstrip("/"), key, timeout, retries)


def _options(place: Place) -> dict[str, Any]:
    """For httpx, which shows the header in none of its texts."""
    headers = {"Authorization": f"Bearer {place.api_key}", "User-Agent": f"evertick-python/{__version__}"}
    return {"headers": headers, "timeout": place.timeout}


class Transport:
    """What both have in common: how a request goes out, and what an answer means."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def _built(self, http: httpx.Client | httpx.AsyncClient, request: Request[Any]) -> httpx.Request:
        headers = {"Content-Type": JSON, **request.headers} if request.body is not None else dict(request.headers)
        return http.build_request(
            request.method,
            self.place.url + request.path,
            params=request.query or None,
            content=request.body,
            headers=headers,
            timeout=httpx.Timeout(self.place.timeout, read=self.place.timeout + request.may_take),
        )

    def _failure(self, request: Request[Any], came: httpx.Response | httpx.RequestError) -> ApiError:
        if isinstance(came, httpx.Response):
            return error_of(request.method, request.path, came)
        return unreachable(request.method, request.path, self.place.url, came)

    def _pause(self, request: Request[Any], came: httpx.Response | httpx.RequestError, tries: int) -> float:
        """How long to wait before the next try; raises if there should be none."""
        failure = self._failure(request, came)
        pause = pause_before_retry(request, failure, tries, self.place.retries)
        if pause is None:
            raise failure from None
        return pause


def _read(request: Request[T], response: httpx.Response) -> T:
    try:
        return request.read(response.content)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise unreadable(request.method, request.path, response, str(error)) from None


class SyncTransport(Transport):
    """Blocks until the answer is there. May be used by several threads."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._http = httpx.Client(**_options(place))

    def send(self, request: Request[T]) -> T:
        return _read(request, self._answer(request))

    def pages(self, request: Request[list[T]]) -> Iterator[T]:
        """The items of all pages, each page fetched when it is needed."""
        page: Request[list[T]] | None = request
        while page is not None:
            response = self._answer(page)
            yield from _read(page, response)
            page = page.following(response)

    def close(self) -> None:
        self._http.close()

    def _answer(self, request: Request[Any]) -> httpx.Response:
        came: httpx.Response | httpx.RequestError
        tries = 1
        while True:
            try:
                came = self._http.send(self._built(self._http, request))
            except httpx.RequestError as error:
                came = error
            if isinstance(came, httpx.Response) and came.is_success:
                return came
            time.sleep(self._pause(request, came, tries))
            tries += 1


class AsyncTransport(Transport):
    """Waits on the running loop."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._http = httpx.AsyncClient(**_options(place))

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

    async def close(self) -> None:
        await self._http.aclose()

    async def _answer(self, request: Request[Any]) -> httpx.Response:
        came: httpx.Response | httpx.RequestError
        tries = 1
        while True:
            try:
                came = await self._http.send(self._built(self._http, request))
            except httpx.RequestError as error:
                came = error
            if isinstance(came, httpx.Response) and came.is_success:
                return came
            await asyncio.sleep(self._pause(request, came, tries))
            tries += 1


class Section(Generic[W]):
    """Calls about one subject, and by what they are sent."""

    def __init__(self, transport: W) -> None:
        self._transport: W = transport


class Sent(Generic[P, T]):
    """A call with one answer."""

    def __init__(self, describe: Callable[Concatenate[Any, P], Request[T]]) -> None:
        self._describe = describe
        self.__doc__ = describe.__doc__

    @overload
    def __get__(self, section: None, owner: type) -> Self: ...
    @overload
    def __get__(self, section: Section[SyncTransport], owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, section: Section[AsyncTransport], owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, section: Section[Any] | None, owner: type) -> Any:
        if section is None:
            return self
        transport, describe = section._transport, self._describe  # noqa: SLF001 - a method of it in all but form

        @wraps(describe)
        def send(*args: P.args, **kwargs: P.kwargs) -> Any:
            return transport.send(describe(section, *args, **kwargs))

        return send


class Listed(Generic[P, T]):
    """A call whose answer has pages: gives an iterator over the items of all."""

    def __init__(self, describe: Callable[Concatenate[Any, P], Request[list[T]]]) -> None:
        self._describe = describe
        self.__doc__ = describe.__doc__

    @overload
    def __get__(self, section: None, owner: type) -> Self: ...
    @overload
    def __get__(self, section: Section[SyncTransport], owner: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, section: Section[AsyncTransport], owner: type) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, section: Section[Any] | None, owner: type) -> Any:
        if section is None:
            return self
        transport, describe = section._transport, self._describe  # noqa: SLF001 - as above

        @wraps(describe)
        def pages(*args: P.args, **kwargs: P.kwargs) -> Any:
            return transport.pages(describe(section, *args, **kwargs))

        return pages
