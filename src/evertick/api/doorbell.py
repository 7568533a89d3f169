"""Wakes long polls when work gets ready in their queue: a hint from schedulers, heard once for all who wait."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from evertick.runtime.wakeups import Ear, queue_named
from evertick.store.wakeups import READY


class Doorbell:
    """Rings for queues."""

    def __init__(self, url: str) -> None:
        self._ear = Ear(url, self._heard, READY)
        self._waiting: dict[int | None, set[asyncio.Event]] = {}
        self.is_stopping = asyncio.Event()

    def start(self) -> None:
        self._ear.start()

    async def stop(self) -> None:
        """Send everybody home, and hear no more."""
        self.dismiss()
        await self._ear.stop()

    def dismiss(self) -> None:
        """Ring for all, for the last time."""
        self.is_stopping.set()
        self._heard(READY, None)

    @property
    def guests(self) -> int:
        """How many wait."""
        return sum(map(len, self._waiting.values()))

    @contextmanager
    def waiting(self, queue_id: int | None) -> Iterator[asyncio.Event]:
        """An event that is set when a queue may have work; None: a queue that does not exist yet."""
        event = asyncio.Event()
        self._waiting.setdefault(queue_id, set()).add(event)
        try:
            yield event
        finally:
            waiting = self._waiting[queue_id]
            waiting.discard(event)
            if not waiting:
                del self._waiting[queue_id]

    def _heard(self, _: str, lane_ids: frozenset[int] | None) -> None:
        # One that does not exist yet may have come to be with any of them.
        called = list(self._waiting) if lane_ids is None else [None, *{queue_named(number) for number in lane_ids}]
        for queue_id in called:
            for event in self._waiting.get(queue_id, ()):
                event.set()
