"""Work whose length depends on a tenant's input, done in one thread beside the event loop, fair among tenants.

1. Pending work is queued per tenant. The next slice of the thread goes to the tenant that has used least thread time.
2. Thread time is the measured processor time of slices. A tenant with new work starts at the thread time of the tenant
   that was served last: it comes before those that were served meanwhile, and has no credit for its idle time. What it
   used beyond that is remembered until the others have used as much.
3. Long work is a generator: where it yields, its slice may end and another tenant be next. A step is not interrupted:
   the schedules' budget bounds it (decision 12). The work of one tenant takes turns in the same way: a preview waits
   for a slice of its tenant's forecast, not for all of it.
4. Work whose caller was cancelled leaves the queue at once. If it is under way, it ends where it next yields.

There is one thread, since two would only share the interpreter lock.
"""

import asyncio
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Hashable
from contextlib import suppress
from contextvars import Context
from heapq import heappop, heappush
from typing import Any, TypeAlias, TypeVar

from evertick.domain.errors import EvertickError

_T = TypeVar("_T")
Steps: TypeAlias = Generator[None, None, _T]
"""Work in steps of a few milliseconds at most; what it returns is the result."""

MAX_PENDING_PER_TENANT = 100
"""Of one tenant, the one under way included. Each is a request, or several that are created together."""

SWITCH_SECONDS = 0.0005
"""How long the thread may keep the interpreter while the event loop wants it. Each return from a system call may wait
for it: with Python's own 5 ms a timer of the loop is 13 ms late beside a busy thread (p99), with this one 2.5 ms."""

SLICE_SECONDS = 0.01
"""For so long a tenant's work goes on while others wait."""

_LEAST_CHARGE_SECONDS = 0.00005
"""Handing over work and its result costs about this much, however short the work is."""


class TooBusy(EvertickError):  # noqa: N818 - says what is wrong, not that it is an error
    """The tenant has as much pending work as it may have."""

    def __init__(self) -> None:
        super().__init__(
            f"the tenant has {MAX_PENDING_PER_TENANT} pending computations of schedules, the maximum: try again later"
        )


class _Work:
    """Work, and the future of its result. The future gets a value or an error, and never an exception of its own.

    The steps have a context of their own: what they set is not seen by other work that is done between them.
    """

    __slots__ = ("context", "done", "is_cancelled", "loop", "steps", "tenant")

    def __init__(self, tenant: Hashable, steps: Steps[Any]) -> None:
        self.tenant = tenant
        self.steps = steps
        self.context = Context()
        self.loop = asyncio.get_running_loop()
        self.done: asyncio.Future[tuple[Any, BaseException | None]] = self.loop.create_future()
        self.is_cancelled = False

    def advance(self, clock: Callable[[], float], until: float) -> bool:
        """Do steps until the clock says that the slice is over. Returns whether nothing is left to do."""
        try:
            while not (self.is_cancelled or self.loop.is_closed()):
                self.context.run(next, self.steps)
                if clock() >= until:
                    return False
        except StopIteration as end:
            self._send(end.value, None)
        except BaseException as error:  # noqa: BLE001 - raised to the caller
            self._send(None, error)
        return True

    def close(self) -> None:
        """End the steps where they are."""
        with suppress(Exception):
            self.context.run(self.steps.close)

    def _send(self, value: Any, error: BaseException | None) -> None:
        with suppress(RuntimeError):  # the caller's loop is closed
            self.loop.call_soon_threadsafe(self._receive, value, error)

    def _receive(self, value: Any, error: BaseException | None) -> None:
        if not self.done.done():
            self.done.set_result((value, error))


class Background:
    """A thread that works for tenants in turn, from its first work to the end of the process."""

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget the thread and all work: a forked child has neither, and the lock may be locked there for good."""
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        # The work of each tenant, by whose turn it is, the one under way included. A tenant without work stays until
        # the others have used as much as it has.
        self._waiting: dict[Hashable, dict[_Work, None]] = {}
        # One entry for each of these tenants, except the one that is served: the time it has used, and its arrival.
        self._turns: list[tuple[float, int, Hashable]] = []
        self._arrivals = itertools.count()
        self._served_at = 0.0
        self._under_way: _Work | None = None

    async def run(self, tenant: Hashable, work: Callable[[], _T]) -> _T:
        """Do work in one step, in the tenant's turn. Returns or raises what it does; TooBusy if too much waits."""
        return await self.run_steps(tenant, _one_step(work))

    async def run_steps(self, tenant: Hashable, steps: Steps[_T]) -> _T:
        """Do work in steps, and return what the generator returns."""
        work = _Work(tenant, steps)
        self._add(work)
        value: _T
        try:
            value, error = await work.done
        except asyncio.CancelledError:
            self._remove(work)
            raise
        if error is None:
            return value
        try:
            raise error
        finally:
            del error  # its traceback has this frame, and the frame must not have it

    def waiting(self, tenant: Hashable) -> int:
        """How much work of the tenant is not finished."""
        with self._changed:
            return len(self._waiting.get(tenant, ()))

    @property
    def tenants(self) -> int:
        """How many tenants are remembered."""
        with self._changed:
            return len(self._waiting)

    def _add(self, work: _Work) -> None:
        with self._changed:
            mine = self._waiting.get(work.tenant)
            if mine is None:
                mine = self._waiting[work.tenant] = {}
                heappush(self._turns, (self._served_at, next(self._arrivals), work.tenant))
            if len(mine) >= MAX_PENDING_PER_TENANT:
                raise TooBusy
            mine[work] = None
            if self._thread is None:
                self._start()
            self._changed.notify()

    def _start(self) -> None:
        sys.setswitchinterval(SWITCH_SECONDS)
        # A daemon: the end of the process waits for no computation.
        self._thread = threading.Thread(target=self._serve, name="background", daemon=True)
        self._thread.start()

    def _remove(self, work: _Work) -> None:
        with self._changed:
            self._waiting.get(work.tenant, {}).pop(work, None)
            work.is_cancelled = True
            if work is not self._under_way:
                work.close()

    def _serve(self) -> None:
        while True:
            with self._changed:
                while (taken := self._take()) is None:
                    self._changed.wait()
            used, work = taken
            began = self._clock()
            is_done = work.advance(self._clock, began + SLICE_SECONDS)
            took = max(self._clock() - began, _LEAST_CHARGE_SECONDS)
            with self._changed:
                self._under_way = None
                if is_done or work.is_cancelled:
                    work.close()
                    self._waiting[work.tenant].pop(work, None)
                else:
                    self._waiting[work.tenant][work] = self._waiting[work.tenant].pop(
                        work
                    )  # behind its tenant's others
                heappush(self._turns, (used + took, next(self._arrivals), work.tenant))
            del taken, work  # what was done must not stay in memory until the next comes

    def _take(self) -> tuple[float, _Work] | None:
        """The next work, and what its tenant has used. Forgets idle tenants that used no more than the others."""
        while self._turns:
            used, _, tenant = heappop(self._turns)
            if self._waiting[tenant]:
                self._under_way = next(iter(self._waiting[tenant]))
                self._served_at = used
                return used, self._under_way
            del self._waiting[tenant]
        return None


def _one_step(work: Callable[[], _T]) -> Steps[_T]:
    yield from ()
    return work()


_background = Background()
os.register_at_fork(after_in_child=_background.begin_anew)
run, run_steps, waiting = _background.run, _background.run_steps, _background.waiting
"""Work in the process's one background thread: see `Background`."""
