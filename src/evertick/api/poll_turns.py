"""The turns of long polls: which of those that wait for the same work may try to lease next.

A poll belongs to a group: one tenant's queue, the same handlers. The group gives the turn to the oldest that waits.
"""

import asyncio
from bisect import bisect_left, insort
from itertools import count
from operator import attrgetter
from typing import Any, NamedTuple

from evertick.store.engine.pulls import QueueState

_NEXT_AFTER_SUCCESS = 2
_numbers = count()
_number = attrgetter("number")


class PollSpec(NamedTuple):
    """What a poll waits for, and for which API key. `repeat_key` is its Idempotency-Key."""

    tenant_id: int
    queue: str
    handlers: frozenset[str] | None
    key_id: str
    repeat_key: str | None = None


class Poll:
    """One request that waits. It may try to lease while it has the turn.

    `is_key_ended`: its API key has ended. `is_ended`: it should end now, without work.
    """

    def __init__(self, spec: PollSpec, queue: "PollQueue", group: "PollGroup") -> None:
        self.spec = spec
        self.is_key_ended = False
        self.is_ended = False
        self._queue = queue
        self._group = group
        self._woken = asyncio.Event()
        self.number = next(_numbers)

    @property
    def has_turn(self) -> bool:
        return self._woken.is_set()

    def use_turn(self) -> None:
        """Its try begins. A wake-up from now on is for the next one."""
        self._woken.clear()

    def found_queue(self, queue_id: int | None) -> None:
        """Its queue has this id."""
        self._queue.set_id(queue_id)

    def succeeded(self) -> None:
        """Its try got work: there may be more."""
        self._group.wake(_NEXT_AFTER_SUCCESS)

    def pass_turn(self) -> None:
        """It cannot use the turn that it had, and there may be work: give the turn to another one."""
        self._group.wake(1)

    def try_later(self, seconds: float) -> None:
        """There is work that nobody may lease now: one of the group tries again after so many seconds."""
        self._group.wake_later(seconds)

    def wake(self) -> None:
        self._group.dequeue(self)
        self._woken.set()

    def end(self) -> None:
        """It waits no longer, and is not to try."""
        if self.has_turn:
            self.pass_turn()
        self.wake()

    async def wait(self, disconnected: "asyncio.Future[None]", seconds: float) -> None:
        """Return when it has the turn, is to end, or the client has disconnected; or after so many seconds."""
        self._group.enqueue(self)
        woken: asyncio.Future[Any] = asyncio.ensure_future(self._woken.wait())
        ends: set[asyncio.Future[Any]] = {woken, disconnected}
        try:
            await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            woken.cancel()


class PollGroup:
    """Polls that wait for the same work, the oldest first."""

    def __init__(self) -> None:
        self.members: set[Poll] = set()
        self.waiting: list[Poll] = []  # by number: a poll that found no work keeps its place
        self._has_missed_turn = False
        self._timer: asyncio.TimerHandle | None = None

    def enqueue(self, poll: Poll) -> None:
        """Wait for the turn; it is there already if work was announced while all polls of the group were trying."""
        if self._has_missed_turn:
            self._has_missed_turn = False
            poll.wake()
        elif not poll.has_turn:
            self.dequeue(poll)
            insort(self.waiting, poll, key=_number)

    def dequeue(self, poll: Poll) -> None:
        place = bisect_left(self.waiting, poll.number, key=_number)
        if self.waiting[place : place + 1] == [poll]:
            del self.waiting[place]

    def wake(self, count: int) -> None:
        self._has_missed_turn = not self.waiting
        for poll in self.waiting[:count]:
            poll.wake()

    def wake_later(self, seconds: float) -> None:
        """Give the turn to one after so many seconds, however many ask for it until then."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._timed)

    def _timed(self) -> None:
        self._timer = None
        self.wake(1)


class PollQueue:
    """One tenant's queue and the polls that wait for it. Its id is a hint, None as long as it has had no job."""

    def __init__(self, index: dict[int, "PollQueue"]) -> None:
        self.groups: dict[frozenset[str] | None, PollGroup] = {}
        self.queue_id: int | None = None
        self._index = index

    def set_id(self, queue_id: int | None) -> None:
        """Wake-ups name the queue by this id."""
        if self.queue_id is not None and self._index.get(self.queue_id) is self:
            del self._index[self.queue_id]
        self.queue_id = queue_id
        if queue_id is not None:
            self._index[queue_id] = self

    def wake(self) -> None:
        for group in self.groups.values():
            group.wake(1)

    def apply(self, state: QueueState) -> None:
        """Give the turn to one of each group for which there is work."""
        self.set_id(state.queue_id)
        for handlers, group in self.groups.items():
            if state.is_ready or (state.handlers if handlers is None else handlers.intersection(state.handlers)):
                group.wake(1)
