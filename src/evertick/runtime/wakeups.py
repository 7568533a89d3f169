"""Sends and receives wake-ups: a process sends few statements a second, however many wake-ups it has."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

from evertick.runtime import timeouts
from evertick.runtime.loop import Loop
from evertick.store.database import Pool, is_transient, reason_of
from evertick.store.engine import wakeups
from evertick.store.engine.lanes import queue_of
from evertick.store.engine.wakeups import EVERYTHING, MEMBERS, READY, TIMERS
from evertick.store.location import DatabaseAddress

logger = logging.getLogger("evertick")

PACE_SECONDS = 0.005
BURST = 20
"""So many may be sent at once after a pause, so that single wake-ups are not delayed. In the long run there is one
statement in each `PACE_SECONDS`."""
MAX_IDS = 300
"""More ids than this do not fit a NOTIFY's 8,000 bytes: `*` is sent instead, and receivers poll."""
RECHECK_SECONDS = 60.0
LOOK_SECONDS = 1.0
PROBE_SECONDS = 3.0
"""Between two round trips of a listener: a silent line is noticed after this and the time-out of a statement."""
STOP_SECONDS = 2.0
"""The longest wait for the last wake-ups to be sent, or for a listener to close."""


class Notifier:
    """Collects wake-ups for other processes and sends them together."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._ids: dict[str, set[int]] = {}
        self._spent = 0.0  # the time at which the average rate allows the next statement
        self._loop = Loop("notify", self._send)

    def start(self) -> None:
        self._loop.start()

    async def stop(self) -> None:
        """Send what is left. A wake-up is a hint: without a database it goes unsent."""
        await self._loop.stop(STOP_SECONDS)
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._send()
        except Exception as error:
            if not is_transient(error):
                raise
            logger.warning("notify: the last wake-ups were not sent: %s", reason_of(error))

    def timers(self, job_ids: Iterable[int]) -> None:
        """These jobs have new timers that are due soon."""
        self._add(TIMERS, job_ids)

    def ready(self, lane_ids: Iterable[int]) -> None:
        """These lanes have ready work."""
        self._add(READY, lane_ids)

    def put_back(self, queue_ids: Iterable[int]) -> None:
        """In these queues attempts were put back that can be leased at once. They go along as negative numbers."""
        self.room(queue_ids)

    def room(self, queue_ids: Iterable[int]) -> None:
        """In these queues, which have a cap, more may run."""
        self._add(READY, (-queue_id for queue_id in queue_ids))

    def members(self) -> None:
        """A member came or went, or partitions are free."""
        self._add(MEMBERS, ())

    def take(self, channel: str) -> set[int]:
        """What was to be sent on a channel, where no loop sends it."""
        return self._ids.pop(channel, set())

    def _add(self, channel: str, ids: Iterable[int]) -> None:
        self._ids.setdefault(channel, set()).update(ids)
        self._loop.wake()

    async def _send(self) -> float:
        if not self._ids:
            return RECHECK_SECONDS
        ids, self._ids = self._ids, {}
        # Lost if this fails: a wake-up is a hint.
        await wakeups.notify(self._pool, {channel: _payload(numbers) for channel, numbers in ids.items()})
        now = time.monotonic()
        self._spent = max(self._spent, now) + PACE_SECONDS
        await asyncio.sleep(self._spent - now - BURST * PACE_SECONDS)
        return 0 if self._ids else RECHECK_SECONDS


class Listener:
    """Listens on a connection of its own, and connects anew whenever that is lost or silent.

    Behind a pooler there are no wake-ups, and what would be woken polls.
    """

    def __init__(
        self, url: DatabaseAddress, heard: Callable[[str, frozenset[int] | None], None], *channels: str
    ) -> None:
        self._url = url
        self._heard = heard
        self._channels = channels
        self._listener: wakeups.ListenConnection | None = None
        self._probed = 0.0
        self._is_told = False
        self._loop = Loop("listen", self._listen)

    def start(self) -> None:
        self._loop.start()

    async def stop(self) -> None:
        await self._loop.stop(STOP_SECONDS)
        if self._listener is not None:
            self._listener.close()

    async def _listen(self) -> float:
        if self._listener is None or self._listener.is_lost:
            return await self._connect()
        if time.monotonic() - self._probed > PROBE_SECONDS:
            await self._listener.probe()
            self._probed = time.monotonic()
        return LOOK_SECONDS

    async def _connect(self) -> float:
        listener = wakeups.ListenConnection(self._url, timeouts.LISTEN)
        if not await listener.open(self._parse, self._channels):
            if not self._is_told:
                logger.info(
                    "listen: behind a pooler there are no wake-ups; set EVERTICK_DATABASE_DIRECT_URL to have them"
                )
            self._is_told = True
            return RECHECK_SECONDS
        self._listener = listener
        self._probed = time.monotonic()
        # What was sent meanwhile was missed.
        for channel in self._channels:
            self._heard(channel, None)
        return LOOK_SECONDS

    def _parse(self, channel: str, payload: str) -> None:
        """Pass on the ids, or None for "poll"; a payload that cannot be read means that too."""
        try:
            ids = None if payload == EVERYTHING else frozenset(int(text) for text in payload.split(",") if text)
        except ValueError:
            ids = None
        self._heard(channel, ids)


def queue_named(number: int) -> int:
    """The queue of what a wake-up for ready work names: a lane, or a queue itself as a negative number."""
    return -number if number < 0 else queue_of(number)


def _payload(ids: set[int]) -> str:
    return EVERYTHING if len(ids) > MAX_IDS else ",".join(map(str, ids))
