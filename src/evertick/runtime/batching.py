"""Batches calls that arrive while earlier ones of the same key are under way, so that they share one piece of work.

A call that finds fewer than `MAX_CONCURRENT` batches of its key starts one at once. Calls that arrive later form the
next batch. So batches grow with the load, and no call waits for a timer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

_K = TypeVar("_K", bound=Hashable)
_T = TypeVar("_T")
_R = TypeVar("_R")

MAX_CONCURRENT = 3
"""Batches of one key at once: if one has to wait for a lock, others still pass."""
MAX_BATCH_SIZE = 500


class Batcher(Generic[_K, _T, _R]):
    """Batches calls by key.

    `work` answers a batch in its order. An exception in the place of an answer is raised to that caller, and one that
    `work` raises itself to all callers of the batch.
    """

    def __init__(self, work: Callable[[_K, list[_T]], Awaitable[list[_R | Exception]]]) -> None:
        self._work = work
        self._pending: dict[_K, _Pending[_T, _R]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        """How many keys have calls."""
        return len(self._pending)

    async def ask(self, key: _K, item: _T) -> _R:
        pending = self._pending.get(key)
        if pending is None:
            pending = self._pending[key] = _Pending()
        answer: asyncio.Future[_R] = asyncio.get_running_loop().create_future()
        pending.calls.append((item, answer))
        if pending.under_way < MAX_CONCURRENT:
            self._begin(key, pending)
        return await answer

    def _begin(self, key: _K, pending: "_Pending[_T, _R]") -> None:
        pending.under_way += 1
        task = asyncio.create_task(self._serve(key, pending))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, key: _K, pending: "_Pending[_T, _R]") -> None:
        try:
            while pending.calls:
                batch, pending.calls = pending.calls[:MAX_BATCH_SIZE], pending.calls[MAX_BATCH_SIZE:]
                await self._answer(key, batch)
        finally:
            pending.under_way -= 1
            if not pending.under_way:
                del self._pending[key]

    async def _answer(self, key: _K, batch: "list[tuple[_T, asyncio.Future[_R]]]") -> None:
        try:
            results = await self._work(key, [item for item, _ in batch])
        except Exception as error:  # noqa: BLE001 - the callers handle it
            results = [error] * len(batch)
        except asyncio.CancelledError:
            for _, answer in batch:
                answer.cancel()
            raise
        for (_, answer), result in zip(batch, results, strict=True):
            if answer.done():  # the caller has gone
                continue
            if isinstance(result, Exception):
                answer.set_exception(result)
            else:
                answer.set_result(result)


class _Pending(Generic[_T, _R]):
    """Calls of one key that wait, and how many batches are under way."""

    def __init__(self) -> None:
        self.calls: list[tuple[_T, asyncio.Future[_R]]] = []
        self.under_way = 0
