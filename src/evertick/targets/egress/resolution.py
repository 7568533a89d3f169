"""Looks names up with the system's resolver, so that slow name servers delay only deliveries to their names.

Each lookup has a daemon thread of its own, because the loop's few threads would all soon wait for a dead name server,
and because a process that stops does not wait for it. Lookups are shared out among tenants, so that one whose names
hang leaves the others room to look up theirs.
"""

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeAlias

from evertick.domain.fairness import TenantCounts
from evertick.targets.egress.slots import Busy, Slots, one_tenant

Resolve: TypeAlias = Callable[[str], Awaitable[list[str]]]
"""From a name to its addresses, as texts; OSError when there are none to be had."""

MAX_LOOKUPS = 512
MAX_PER_TENANT = 64
WAIT_SECONDS = 2.0
"""How long a name may wait for its turn; after that its delivery is put back."""


class SystemResolver:
    """Resolves names, at most `most` at once."""

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
    with suppress(RuntimeError):  # the loop is closed
        answer.get_loop().call_soon_threadsafe(lambda: None if answer.done() else settle())


class TooManyLookups(Exception):  # noqa: N818 - says what happened
    """A tenant's name did not get its turn. Nothing was looked up."""


class Lookups:
    """Resolves names, so many at once for each tenant. Requests for a name that is being looked up share the answer,
    also those of other tenants. A lookup counts until it ends, even if no request waits for it any more: its thread and
    its query are still there.
    """

    def __init__(
        self,
        resolve: Resolve,
        tenants: Callable[[], TenantCounts] = one_tenant,
        *,
        most_per_tenant: int = MAX_PER_TENANT,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self._resolve = resolve
        self._turns: Slots[None] = Slots(MAX_LOOKUPS, most_per_tenant, wait_seconds, tenants)
        self._under_way: dict[str, asyncio.Future[list[str]]] = {}

    async def __call__(self, name: str, tenant_id: int) -> list[str]:
        lookup = self._under_way.get(name)
        if lookup is None:
            await self._take_turn(tenant_id)
            lookup = self._under_way.get(name)
            if lookup is None:
                lookup = self._begin(name, tenant_id)
            else:  # another was faster
                self._turns.give_back(None, tenant_id)
        return await asyncio.shield(lookup)

    async def _take_turn(self, tenant_id: int) -> None:
        try:
            await self._turns.take(None, tenant_id)
        except Busy:
            raise TooManyLookups from None

    def _begin(self, name: str, tenant_id: int) -> asyncio.Future[list[str]]:
        def end(ended: asyncio.Future[list[str]]) -> None:
            del self._under_way[name]
            self._turns.give_back(None, tenant_id)
            # All requests may be gone; asyncio reports a failure that nothing reads as a bug.
            if not ended.cancelled():
                ended.exception()

        lookup = self._under_way[name] = asyncio.ensure_future(self._resolve(name))
        lookup.add_done_callback(end)
        return lookup
