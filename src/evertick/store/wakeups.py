"""Wake-ups by NOTIFY and LISTEN: hints between processes. Behind a pooler nobody can listen, and polling must do."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from evertick.store import statements
from evertick.store.database import connect
from evertick.store.statements import Connection

_SQL = statements.load("wakeups")

TIMERS = "evertick_timers"
READY = "evertick_ready"
MEMBERS = "evertick_members"
EVERYTHING = "*"
"""A payload that names no ids: those who hear it look for themselves."""


async def notify(connection: Connection, wakeups: Mapping[str, str]) -> None:
    """Send one payload on each channel."""
    await _SQL["notify"].fetch(connection, channels=list(wakeups), payloads=list(wakeups.values()))


class Listener:
    """A connection that hears the channels until it is closed or lost."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: Any = None
        self.lost = asyncio.Event()

    async def open(self, heard: Callable[[str, str], None], channels: tuple[str, ...]) -> None:
        self._connection = await connect(self._url)
        self._connection.add_termination_listener(lambda _: self.lost.set())
        for channel in channels:
            await self._connection.add_listener(channel, lambda _c, _pid, name, payload: heard(name, payload))

    def close(self) -> None:
        """Hang up, without a goodbye that a broken line would never answer."""
        if self._connection is not None:
            self._connection.terminate()
