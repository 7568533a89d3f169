"""Lets a method that only describes a request be called: on a plain client it gives the answer, on an async one an
awaitable of it. So each call of the API is written once.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from evertick.client.request import Request
from evertick.client.transport import AsyncTransport, SyncTransport, Transport

P = ParamSpec("P")
T = TypeVar("T")
W = TypeVar("W", bound=Transport)


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
