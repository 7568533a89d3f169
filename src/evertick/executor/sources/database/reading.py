"""Reads what is in ranges that were leased, and reads again what could not be read."""

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Sequence
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from evertick.store.database import Pool, is_transient
from evertick.store.engine import lanes
from evertick.store.engine.lanes import Leased, LeasedRange

logger = logging.getLogger("evertick.worker")

SLOW_SECONDS = 0.003
SLOW_EACH_SECONDS = 0.0001
"""A read that takes longer than the first, and so much for each attempt, waits for the disk."""
READERS = 4
"""How many connections read what was leased then."""


_T = TypeVar("_T")


async def answers_of(calls: Sequence[Coroutine[Any, Any, _T]]) -> list[_T | BaseException]:
    """What calls return or raise, made at once. A single one needs no task: each takes turns of the event loop."""
    if len(calls) > 1:
        return await asyncio.gather(*calls, return_exceptions=True)
    try:
        return [await call for call in calls]
    except Exception as error:  # noqa: BLE001 - the caller decides what it means
        return [error]


class Read(NamedTuple):
    """Ranges that were read, and all attempts in them."""

    ranges: list[LeasedRange]
    attempts: list[Leased]


class Reading:
    """`unread` are ranges that are leased and could not be read: their attempts have not been started."""

    def __init__(self, pool: Pool, round_trip: Callable[[], float]) -> None:
        self._pool = pool
        self._round_trip = round_trip
        self._readers = 1
        self.unread: list[LeasedRange] = []

    async def read(self, ranges: Sequence[LeasedRange]) -> Read:
        """What is in ranges, by several readers while each would wait for the disk."""
        size = max(1, math.ceil(len(ranges) / self._readers))
        parts = [ranges[start : start + size] for start in range(0, len(ranges), size)]
        began = monotonic()
        read = await self._read(parts)
        if read.attempts:
            beyond = monotonic() - began - SLOW_SECONDS - self._round_trip()
            alone = beyond * len(parts)  # what one reader would have taken, about
            self._readers = READERS if alone > SLOW_EACH_SECONDS * len(read.attempts) else 1
        return read

    async def read_again(self) -> Read:
        """Try the unread ones: together, or each alone if the database answers with an error."""
        ranges, self.unread = self.unread, []
        try:
            return Read(ranges, await lanes.read(self._pool, ranges))
        except BaseException as error:
            if not isinstance(error, Exception) or is_transient(error):
                self.unread += ranges  # beside what could not be read meanwhile
                raise
        return await self._read([[each] for each in ranges])

    async def _read(self, parts: Sequence[Sequence[LeasedRange]]) -> Read:
        try:
            found = await answers_of([lanes.read(self._pool, part) for part in parts])
        except asyncio.CancelledError:
            self.unread += [each for part in parts for each in part]
            raise
        read = Read([], [])
        for part, attempts in zip(parts, found, strict=True):
            if isinstance(attempts, BaseException):
                logger.warning("%d ranges are leased and could not be read yet: %r", len(part), attempts)
                self.unread += part
            else:
                read.ranges.extend(part)
                read.attempts.extend(attempts)
        return read
