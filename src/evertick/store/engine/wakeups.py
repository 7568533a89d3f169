"""Wake-ups by NOTIFY and LISTEN: hints between processes. One may get lost, so polling must suffice."""

from collections.abc import Callable, Mapping

from evertick.store import statements
from evertick.store.connections import FailFastConnection
from evertick.store.database import Timeouts, connect
from evertick.store.statements import Connection

_SQL = statements.load("wakeups")
_PROBE = _SQL["probe"].values(int)

TIMERS = "evertick_timers"
READY = "evertick_ready"
MEMBERS = "evertick_members"
EVERYTHING = "*"
"""A payload that names no ids: receivers poll."""


async def notify(connection: Connection, wakeups: Mapping[str, str]) -> None:
    """Send one payload on each channel."""
    await _SQL["notify"].execute(connection, channels=list(wakeups), payloads=list(wakeups.values()))


class ListenConnection:
    """A connection that receives the channels until it is closed or lost."""

    def __init__(self, url: str, timeouts: Timeouts) -> None:
        self._url = url
        self._timeouts = timeouts
        self._connection: FailFastConnection | None = None

    @property
    def is_lost(self) -> bool:
        return self._connection is None or self._connection.is_closed()

    async def open(self, heard: Callable[[str, str], None], channels: tuple[str, ...]) -> None:
        connection = await connect(self._url, timeouts=self._timeouts)
        try:
            for channel in channels:
                await connection.add_listener(channel, lambda _c, _pid, name, payload: heard(name, payload))
        except BaseException:
            connection.terminate()
            raise
        self._connection = connection

    async def probe(self) -> None:
        """Do a round trip: a listener sends nothing else, so nothing else would show that the line is broken."""
        assert self._connection is not None
        await _PROBE.one(self._connection)

    def close(self) -> None:
        """Close at once: on a broken line an orderly close would never be answered."""
        if self._connection is not None:
            self._connection.terminate()
