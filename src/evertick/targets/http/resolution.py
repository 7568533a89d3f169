"""Looks names up with the system's resolver, so that slow name servers delay only those who ask for their names.

Each lookup has a daemon thread of its own, because the loop's few threads would all soon wait for a dead name server,
and because a process that stops does not wait for it.
"""

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeAlias

Resolve: TypeAlias = Callable[[str], Awaitable[list[str]]]
"""From a name to its addresses, as texts; OSError when there are none to be had."""

MAX_LOOKUPS = 512


class SystemResolver:
    """Resolves names; at most so many at once."""

    def __init__(self, most: int = MAX_LOOKUPS) -> None:
        self._free = asyncio.Semaphore(most)

    async def __call__(self, name: str) -> list[str]:
        async with self._free:
            answer: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
            threading.Thread(target=_ask, args=(name, answer), name="evertick-lookup", daemon=True).start()
            return await answer


def _ask(name: str, answer: asyncio.Future[list[str]]) -> None:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        failure = error if isinstance(error, OSError) else OSError(str(error))
        _settle(answer, lambda: answer.set_exception(failure))
    else:
        addresses = [str(sockaddr[0]) for *_, sockaddr in found]
        _settle(answer, lambda: answer.set_result(addresses))


def _settle(answer: asyncio.Future[list[str]], settle: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop is closed: nobody waits
        answer.get_loop().call_soon_threadsafe(lambda: None if answer.done() else settle())
