"""Concurrent calls: batches of calls, results that calls share, and a limit of calls for each tenant, so that no tenant
takes all of a shared resource.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

_K = TypeVar("_K", bound=Hashable)
_T = TypeVar("_T")
_R = TypeVar("_R")

MAX_CONCURRENT = 3
"""Batches of one key at once: if one has to wait for a lock, others still pass."""
MAX_BATCH_SIZE = 500


class Batcher(Generic[_K, _T, _R]):
    """Batches calls that arrive while earlier ones of the same key are under way.

    A call that finds fewer than `MAX_CONCURRENT` batches of its key starts one at once. Calls that arrive later form
    the next batch. So batches grow with the load, and no call waits for a timer.

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


class Cached(Generic[_T]):
    """What `compute` returns or raises, cached for so many seconds. Calls during a computation wait for it.

    `times_as_long`: at least for so many times as long as it took, but for no more than `max_seconds`.
    """

    def __init__(
        self,
        compute: Callable[[], Awaitable[_T]],
        seconds: float,
        *,
        times_as_long: float = 0.0,
        max_seconds: float = 30.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._compute = compute
        self._seconds = seconds
        self._times_as_long = times_as_long
        self._max_seconds = max_seconds
        self._monotonic = monotonic
        self._until = 0.0
        self._task: asyncio.Task[_T] | None = None

    async def get(self) -> _T:
        return await asyncio.shield(self.refresh())  # one of the callers may be cancelled

    def refresh(self) -> asyncio.Task[_T]:
        """Compute it anew if it is too old, unless that is under way, for a caller that need not wait."""
        if self._task is None or (self._task.done() and self._monotonic() > self._until):
            self._task = asyncio.create_task(self._computed())
            self._task.add_done_callback(_mark_retrieved)
        return self._task

    async def _computed(self) -> _T:
        began = self._monotonic()
        try:
            return await self._compute()
        finally:
            now = self._monotonic()
            self._until = now + max(self._seconds, min(self._times_as_long * (now - began), self._max_seconds))


class InFlight:
    """Computations that are under way: calls with an equal key share one, and its result or error."""

    def __init__(self) -> None:
        self._tasks: dict[Hashable, asyncio.Task[Any]] = {}

    async def share(self, key: Hashable, compute: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """What the computation of this key returns or raises: the one under way, or a new one."""
        task: asyncio.Task[_T] | None = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.create_task(compute())
            task.add_done_callback(_mark_retrieved)
            task.add_done_callback(lambda _: self._tasks.pop(key, None))
        return await asyncio.shield(task)  # one of the callers may be cancelled


def _mark_retrieved(task: "asyncio.Task[_T]") -> None:
    """Mark an error as retrieved, so that it is not reported as unhandled when all callers have gone."""
    if not task.cancelled():
        task.exception()


class LimitReached(Exception):  # noqa: N818 - says what happened
    """Too many calls of the tenant wait already, or the wait took too long."""


@dataclass(slots=True)
class _Use:
    turns: asyncio.Semaphore
    waiting: int = 0
    running: int = 0


class TenantLimit:
    """At most `limit` calls at once of each tenant. Further ones wait in the order of their arrival.

    `max_waiting`: how many may wait. `wait_seconds`: for how long. None: without a limit.
    """

    def __init__(self, limit: int, *, max_waiting: int | None = None, wait_seconds: float | None = None) -> None:
        self._limit = limit
        self._max_waiting = max_waiting
        self._wait_seconds = wait_seconds
        self._uses: dict[int, _Use] = {}

    def __len__(self) -> int:
        """How many tenants have something under way, or waiting."""
        return len(self._uses)

    async def acquire(self, tenant_id: int) -> None:
        """Wait for a slot; LimitReached if there is none in time. The caller releases it."""
        use = self._uses.setdefault(tenant_id, _Use(asyncio.Semaphore(self._limit)))
        if self._max_waiting is not None and use.waiting >= self._max_waiting:
            raise LimitReached
        use.waiting += 1
        try:
            if use.turns.locked():  # only waiting costs a timer
                async with asyncio.timeout(self._wait_seconds):
                    await use.turns.acquire()
            else:
                await use.turns.acquire()
            use.running += 1
        except TimeoutError:
            raise LimitReached from None
        finally:
            use.waiting -= 1
            self._forget_idle(tenant_id)

    def release(self, tenant_id: int) -> None:
        use = self._uses[tenant_id]
        use.running -= 1
        use.turns.release()
        self._forget_idle(tenant_id)

    @asynccontextmanager
    async def slot(self, tenant_id: int) -> AsyncIterator[None]:
        await self.acquire(tenant_id)
        try:
            yield
        finally:
            self.release(tenant_id)

    def _forget_idle(self, tenant_id: int) -> None:
        use = self._uses[tenant_id]
        if not use.waiting and not use.running:
            del self._uses[tenant_id]
