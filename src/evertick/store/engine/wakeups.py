"""Wake-ups by NOTIFY and LISTEN: hints between processes. One may get lost, so polling must suffice."""

import asyncio
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace

from evertick.store import statements
from evertick.store.connections import FailFastConnection
from evertick.store.database import Pool, Timeouts, connect
from evertick.store.location import DatabaseAddress, Location
from evertick.store.statements import Connection

_SQL = statements.load("wakeups")
_PROBE = _SQL["probe"].values(int)

TIMERS = "evertick_timers"
READY = "evertick_ready"
MEMBERS = "evertick_members"
_TRIAL = "evertick_trial"
EVERYTHING = "*"
"""A payload that names no ids: receivers poll."""


async def notify(connection: Connection, wakeups: Mapping[str, str]) -> None:
    """Send one payload on each channel."""
    await _SQL["notify"].execute(connection, channels=list(wakeups), payloads=list(wakeups.values()))


async def arrive(pool: Pool, url: DatabaseAddress, timeouts: Timeouts) -> bool | None:
    """Whether what is sent on the pool is received at the URL. None: a pooler is in between, which delivers nothing."""
    payload = secrets.token_hex(8)
    received = asyncio.Event()

    def heard(_channel: str, text: str) -> None:
        if text == payload:
            received.set()

    listener = ListenConnection(url, timeouts)
    if not await listener.open(heard, (_TRIAL,)):
        return None
    try:
        await notify(pool, {_TRIAL: payload})
        async with asyncio.timeout(timeouts.command_seconds):
            return await received.wait()
    except TimeoutError:
        return False
    finally:
        listener.close()


class ListenConnection:
    """A connection that receives the channels until it is closed or lost."""

    def __init__(self, url: DatabaseAddress, timeouts: Timeouts) -> None:
        if isinstance(url, Location) and url.direct_url is not None:
            url = replace(url, url=url.direct_url)
        self._url = url
        self._timeouts = timeouts
        self._connection: FailFastConnection | None = None

    @property
    def is_lost(self) -> bool:
        return self._connection is None or self._connection.is_closed()

    async def open(self, heard: Callable[[str, str], None], channels: tuple[str, ...]) -> bool:
        """Connect and listen. False: a pooler is in between, which delivers no wake-ups."""
        connection = await connect(self._url, timeouts=self._timeouts)
        if connection.is_pooled:
            await connection.close()
            return False
        try:
            for channel in channels:
                await connection.add_listener(channel, lambda _c, _pid, name, payload: heard(name, payload))
        except BaseException:
            connection.terminate()
            raise
        self._connection = connection
        return True

    async def probe(self) -> None:
        """Do a round trip: a listener sends nothing else, so nothing else would show that the line is broken."""
        assert self._connection is not None
        await _PROBE.one(self._connection)

    def close(self) -> None:
        """Close at once: on a broken line an orderly close would never be answered."""
        if self._connection is not None:
            self._connection.terminate()
