"""Marks the start of attempts before their handlers are called, where that decides what their loss means.

An attempt that is the last one allowed would become a dead letter if its worker were lost. With a mark the reaper knows
that it was started; without one it was not, and comes again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TypeAlias

from evertick.domain.attempt import Attempt, Token
from evertick.executor.waiting import Order, Waiting

logger = logging.getLogger("evertick.worker")

FIRST_BACKOFF = 0.1
LONGEST_BACKOFF = 5.0

Mark: TypeAlias = Callable[[Sequence[Attempt]], Awaitable[Collection[Token]]]
"""Marks these; returns those that are still the worker's."""


class StartMarks:
    """Attempts that arrive during one request go along in the next. `marked` gets what was asked for and which of it
    is ours.
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
