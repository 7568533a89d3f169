"""Doing for many at once what each asks for alone.

Who comes while nothing is under way is served at once. Who comes while something is waits, and goes with all others who
have come by then: the busier it is, the more share one piece of work, and nobody waits for a timer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

_K = TypeVar("_K", bound=Hashable)
_T = TypeVar("_T")
_R = TypeVar("_R")

AT_ONCE = 3
"""Lots of one key under way: should one have to wait for a lock, others still pass."""
MOST = 500


class Gathering(Generic[_K, _T, _R]):
    """Gathers what is asked for under one key into lots.

    `work` answers a lot in its order; an exception in an answer's place is raised to the one who asked, and one that it
    raises itself to all of the lot.
    """

    def __init__(self, work: Callable[[_K, list[_T]], Awaitable[list[_R | Exception]]]) -> None:
        self._work = work
        self._lines: dict[_K, _Line[_T, _R]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(self, key: _K, item: _T) -> _R:
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line()
        asked: asyncio.Future[_R] = asyncio.get_running_loop().create_future()
        line.waiting.append((item, asked))
        if line.under_way < AT_ONCE:
            self._begin(key, line)
        return await asked

    def _begin(self, key: _K, line: "_Line[_T, _R]") -> None:
        line.under_way += 1
        task = asyncio.create_task(self._serve(key, line))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, key: _K, line: "_Line[_T, _R]") -> None:
        try:
            while line.waiting:
                lot, line.waiting = line.waiting[:MOST], line.waiting[MOST:]
                await self._answer(key, lot)
        finally:
            line.under_way -= 1
            if not line.under_way:
                del self._lines[key]

    async def _answer(self, key: _K, lot: "list[tuple[_T, asyncio.Future[_R]]]") -> None:
        try:
            answers = await self._work(key, [item for item, _ in lot])
        except Exception as error:  # noqa: BLE001 - theirs to handle who asked
            answers = [error] * len(lot)
        except asyncio.CancelledError:
            for _, asked in lot:
                asked.cancel()
            raise
        for (_, asked), answer in zip(lot, answers, strict=True):
            if asked.done():  # who asked has gone
                continue
            if isinstance(answer, Exception):
                asked.set_exception(answer)
            else:
                asked.set_result(answer)


class _Line(Generic[_T, _R]):
    """Who waits under one key, and how many lots are under way."""

    def __init__(self) -> None:
        self.waiting: list[tuple[_T, asyncio.Future[_R]]] = []
        self.under_way = 0
