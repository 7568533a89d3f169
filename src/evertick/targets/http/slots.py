"""Limits how many deliveries go to one host at once, so that a slow one holds few of us and is not overrun."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class HostIsBusy(Exception):  # noqa: N818 - says what happened
    """No slot came free in time."""


class _Host:
    __slots__ = ("slots", "users")

    def __init__(self, slots: int) -> None:
        self.slots = asyncio.Semaphore(slots)
        self.users = 0


class HostSlots:
    """So many slots for each host, given in the order of asking. A host that nobody calls takes no memory."""

    def __init__(self, per_host: int, wait_seconds: float) -> None:
        self._per_host = per_host
        self._wait_seconds = wait_seconds
        self._hosts: dict[str, _Host] = {}

    def __len__(self) -> int:
        return len(self._hosts)

    @asynccontextmanager
    async def hold(self, origin: str) -> AsyncIterator[None]:
        """Wait for a slot and hold it; HostIsBusy when none comes free."""
        host = self._hosts.get(origin)
        if host is None:
            host = self._hosts[origin] = _Host(self._per_host)
        host.users += 1
        try:
            await self._take(host)
            try:
                yield
            finally:
                host.slots.release()
        finally:
            host.users -= 1
            if not host.users:
                del self._hosts[origin]

    async def _take(self, host: _Host) -> None:
        if not host.slots.locked():
            await host.slots.acquire()  # at once
            return
        try:
            async with asyncio.timeout(self._wait_seconds):
                await host.slots.acquire()
        except TimeoutError:
            raise HostIsBusy from None
