"""Sends and hears wake-ups: few statements a second and process, however much there is to tell."""

import asyncio
import time
from collections.abc import Callable, Iterable

from evertick.runtime.loop import Loop
from evertick.store import wakeups
from evertick.store.database import Pool
from evertick.store.wakeups import EVERYTHING, MEMBERS, READY, TIMERS

PACE_SECONDS = 0.005
BURST = 20
"""So many may go out at once after a pause, for who is alone with its news should not wait for a turn. In the long run
there is one statement in each `PACE_SECONDS`."""
MOST_IDS = 300
"""More ids than this do not fit a NOTIFY's 8,000 bytes: those who hear `*` look for themselves."""
RECHECK_SECONDS = 60.0


class Notifier:
    """Collects what other processes should know and sends it together."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._ids: dict[str, set[int]] = {}
        self._spent = 0.0  # the time at which all that was sent will have been paid for
        self._loop = Loop("notify", self._send)

    def start(self) -> None:
        self._loop.start()

    async def stop(self) -> None:
        await self._loop.stop()
        await self._send()

    def timers(self, job_ids: Iterable[int]) -> None:
        """These jobs have new timers that are due soon."""
        self._add(TIMERS, job_ids)

    def ready(self, lane_ids: Iterable[int]) -> None:
        """These lanes have ready work."""
        self._add(READY, lane_ids)

    def members(self) -> None:
        """A member came or went, or partitions are free."""
        self._add(MEMBERS, ())

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


class Ear:
    """Listens on a connection of its own, and connects anew whenever that is lost."""

    def __init__(self, url: str, heard: Callable[[str, frozenset[int] | None], None], *channels: str) -> None:
        self._url = url
        self._heard = heard
        self._channels = channels
        self._listener: wakeups.Listener | None = None
        self._loop = Loop("listen", self._listen)

    def start(self) -> None:
        self._loop.start()

    async def stop(self) -> None:
        await self._loop.stop()
        if self._listener is not None:
            self._listener.close()

    async def _listen(self) -> float:
        if self._listener is None or self._listener.lost.is_set():
            listener = wakeups.Listener(self._url)
            await listener.open(self._parse, self._channels)
            self._listener = listener
            # Whatever was sent meanwhile went unheard.
            for channel in self._channels:
                self._heard(channel, None)
        return 1.0

    def _parse(self, channel: str, payload: str) -> None:
        """Tell the ids, or None for "look for yourself"; what cannot be read is taken for that."""
        try:
            ids = None if payload == EVERYTHING else frozenset(int(text) for text in payload.split(",") if text)
        except ValueError:
            ids = None
        self._heard(channel, ids)


def _payload(ids: set[int]) -> str:
    return EVERYTHING if len(ids) > MOST_IDS else ",".join(map(str, ids))
