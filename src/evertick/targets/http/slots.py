"""Limits how many deliveries go to one place at once, so that a slow one holds few of us and is not overrun."""

import asyncio
from typing import Generic, TypeVar

_K = TypeVar("_K")


class Busy(Exception):  # noqa: N818 - says what happened
    """No slot came free in time."""


class _Place:
    __slots__ = ("free", "waiting")

    def __init__(self, slots: int) -> None:
        self.free = slots
        self.waiting: dict[asyncio.Future[None], None] = {}


class Slots(Generic[_K]):
    """So many slots for each place, given in the order of asking. A place that nobody uses takes no memory."""

    def __init__(self, per_place: int, wait_seconds: float) -> None:
        self.per_place = per_place
        self._wait_seconds = wait_seconds
        self._places: dict[_K, _Place] = {}

    def __len__(self) -> int:
        return len(self._places)

    async def take(self, key: _K) -> None:
        """Wait for a slot; Busy when none comes free. Who has taken one gives it back."""
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = _Place(self.per_place)
        if place.free:
            place.free -= 1
        else:
            await self._wait(key, place)

    def give_back(self, key: _K) -> None:
        """Let the next who waits have it."""
        place = self._places[key]
        while place.waiting:
            turn = next(iter(place.waiting))
            del place.waiting[turn]
            if not turn.done():
                turn.set_result(None)
                return
        place.free += 1
        if place.free == self.per_place:
            del self._places[key]

    async def _wait(self, key: _K, place: _Place) -> None:
        # Not with a semaphore and a timeout, which cost a delivery several times as much.
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        place.waiting[turn] = None
        giving_up = loop.call_later(self._wait_seconds, _give_up, turn)
        try:
            await turn
        except BaseException:
            place.waiting.pop(turn, None)
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.give_back(key)  # it came just when we were cancelled
            raise
        finally:
            giving_up.cancel()


def _give_up(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_exception(Busy())
