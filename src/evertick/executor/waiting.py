"""Attempts that were leased and have not been started, and the marks that some of them wait for."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import TypeAlias

from evertick.domain.attempt import Attempt, Token
from evertick.executor.handlers.registry import Handler
from evertick.executor.held_leases import HeldLease

logger = logging.getLogger("evertick.worker")

Order: TypeAlias = tuple[Attempt, Handler, HeldLease, bool]
"""What to call, under which lease, and whether its start must be marked first. Plain: one is made for each attempt."""
FIRST_BACKOFF = 0.1
LONGEST_BACKOFF = 5.0


class Waiting:
    """Orders by what they wait for: a slot among the tasks, a thread, their mark, or the extension of their lease."""

    def __init__(self) -> None:
        self.for_tasks: deque[Order] = deque()
        self.for_threads: deque[Order] = deque()
        self.for_marks: dict[Token, Order] = {}
        self.for_leases: list[Order] = []

    def __len__(self) -> int:
        return len(self.for_tasks) + len(self.for_threads) + len(self.for_marks) + len(self.for_leases)

    def __iter__(self) -> Iterator[Order]:
        return chain(self.for_tasks, self.for_threads, self.for_marks.values(), self.for_leases)

    def add(self, order: Order) -> None:
        (self.for_tasks if order[1].is_async else self.for_threads).append(order)

    def add_all(self, orders: Sequence[Order]) -> None:
        for order in orders:
            self.add(order)

    def next_tasks(self, most: int, budget: float) -> list[Order]:
        """Remove and return orders that may start now, `most` or until what their starts cost reaches the budget."""
        found: list[Order] = []
        while self.for_tasks and len(found) < most and budget > 0:
            found.append(self.for_tasks.popleft())
            budget -= found[-1][1].start_cost
        return found

    def add_first(self, order: Order) -> None:
        (self.for_tasks if order[1].is_async else self.for_threads).appendleft(order)

    def take(self, is_meant: Callable[[Attempt], bool]) -> list[Attempt]:
        """Remove the attempts that are meant, and return them."""
        taken = [order[0] for order in self if is_meant(order[0])]
        if taken:
            self._remove_from_tasks(is_meant)
            self.for_threads = deque(order for order in self.for_threads if not is_meant(order[0]))
            self.for_marks = {token: order for token, order in self.for_marks.items() if not is_meant(order[0])}
            self.for_leases = [order for order in self.for_leases if not is_meant(order[0])]
        return taken

    def _remove_from_tasks(self, is_meant: Callable[[Attempt], bool]) -> None:
        self.for_tasks = deque(order for order in self.for_tasks if not is_meant(order[0]))

    def rest_after(self, seconds: float) -> float:  # noqa: ARG002 - nobody waits for another's work here
        """After a turn of the event loop that took so long: for how many seconds not everything may start."""
        return 0.0

    def stalled(self) -> Collection[Token]:
        """What has waited so long here that others may start it sooner."""
        return ()

    def marked(self, asked: Mapping[Token, Order], mine: Collection[Token]) -> list[Attempt]:
        """The answer for marks that were asked for: what is ours is next to start, the rest is returned."""
        # Those that wait no more were taken meanwhile.
        orders = [(token, order) for token, order in asked.items() if self.for_marks.get(token) is order]
        for token, (attempt, handler, lease, _) in reversed(orders):
            del self.for_marks[token]
            if token in mine:
                self.add_first((attempt, handler, lease, False))
        return [order[0] for token, order in orders if token not in mine]

    def retry_leases(self, now: float) -> None:
        """What waited for its lease is next to start, if the lease was extended meanwhile."""
        waiting, self.for_leases = self.for_leases, []
        for order in reversed(waiting):
            if order[2].expires > now:
                self.add_first(order)
            else:
                self.for_leases.append(order)
        self.for_leases.reverse()


Mark: TypeAlias = Callable[[Sequence[Attempt]], Awaitable[Collection[Token]]]
"""Marks these; returns those that are still the worker's."""


class StartMarks:
    """Marks the start of attempts before their handlers are called, where that decides what their loss means.

    An attempt that is the last one allowed would become a dead letter if its worker were lost. With a mark the reaper
    knows that it was started; without one it was not, and comes again.

    Attempts that arrive during one request go along in the next. `marked` gets what was asked for and which of it is
    ours.
    """

    def __init__(self, mark: Mark, marked: Callable[[Mapping[Token, Order], Collection[Token]], None]) -> None:
        self._mark = mark
        self._marked = marked
        self._task: asyncio.Task[None] | None = None

    def begin(self, waiting: Waiting) -> None:
        """Mark what waits for it, unless that is under way."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(waiting), name="mark")

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self, waiting: Waiting) -> None:
        backoff = FIRST_BACKOFF
        while waiting.for_marks:
            asked = dict(waiting.for_marks)
            try:
                mine = await self._mark([order[0] for order in asked.values()])
            except Exception as error:  # noqa: BLE001 - whatever it is, the attempts wait for their marks
                logger.warning("%d attempts wait for the mark of their start: %r", len(asked), error)
                await asyncio.sleep(backoff)
                backoff = min(2 * backoff, LONGEST_BACKOFF)
            else:
                backoff = FIRST_BACKOFF
                self._marked(asked, mine)
