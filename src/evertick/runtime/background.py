"""Work whose length depends on what a tenant asks, done in one thread beside the event loop, fair among tenants.

1. Pending work is queued per tenant. The next piece is taken from the tenant that has used least thread time.
2. Thread time is the processor time of finished pieces, measured. A tenant that comes, or comes back, starts where the
   tenant served last stands: it is before those that were served meanwhile, and has no credit for its idle time. What
   it used beyond that is remembered until the others have used as much.
3. Who no longer waits for a piece that has not begun takes it out of the queue. A piece that has begun is finished:
   callers bound its length, in steps (decision 12) or by handing over long work in pieces.

There is one thread, since two would only share the interpreter lock.
"""

import asyncio
import itertools
import sys
import threading
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from heapq import heappop, heappush
from typing import Any, TypeVar

from evertick.domain.errors import EvertickError

_T = TypeVar("_T")

MAX_PENDING_PER_TENANT = 100
"""Pieces of one tenant that wait, besides the one under way. Each is a request, or one part of a batch."""

SWITCH_SECONDS = 0.0005
"""How long the thread may keep the interpreter while the event loop wants it. Each return from a system call may wait
for it: with Python's own 5 ms a timer of the loop is 13 ms late beside a busy thread (p99), with this one 2.5 ms."""

_LEAST_CHARGE_SECONDS = 0.00005
"""Handing over a piece and its result costs about this much, however short the piece is."""


class TooBusy(EvertickError):  # noqa: N818 - says what is wrong, not that it is an error
    """As much of the tenant's work is waiting as may."""

    def __init__(self) -> None:
        super().__init__(f"{MAX_PENDING_PER_TENANT} computations of the tenant are waiting, as many as may: ask later")


class _Piece:
    """Work, and who waits for it. Its future gets a value or an error, and never an exception of its own."""

    __slots__ = ("done", "loop", "tenant", "work")

    def __init__(self, tenant: Hashable, work: Callable[[], Any]) -> None:
        self.tenant = tenant
        self.work = work
        self.loop = asyncio.get_running_loop()
        self.done: asyncio.Future[tuple[Any, BaseException | None]] = self.loop.create_future()

    def run(self) -> None:
        """Do the work and tell its caller, if that is still there."""
        value, error = None, None
        try:
            value = self.work()
        except BaseException as raised:  # noqa: BLE001 - it is its caller's
            error = raised
        with suppress(RuntimeError):  # the caller's loop is closed
            self.loop.call_soon_threadsafe(self._tell, value, error)

    def _tell(self, value: Any, error: BaseException | None) -> None:
        if not self.done.done():
            self.done.set_result((value, error))


class Background:
    """A thread that does pieces of work for tenants in turn, from the first piece to the end of the process."""

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        # Who has pending work, or has used more than the tenant served last had: their pieces, in order.
        self._pending: dict[Hashable, dict[_Piece, None]] = {}
        # Each of them once, but for the one that is served: the time it has used, and who came first.
        self._turns: list[tuple[float, int, Hashable]] = []
        self._arrivals = itertools.count()
        self._served_at = 0.0

    async def run(self, tenant: Hashable, work: Callable[[], _T]) -> _T:
        """Do work in the tenant's turn, and return or raise what it does. TooBusy if too much of it waits."""
        piece = _Piece(tenant, work)
        self._add(piece)
        value: _T
        try:
            value, error = await piece.done
        except asyncio.CancelledError:
            self._remove(piece)
            raise
        if error is None:
            return value
        try:
            raise error
        finally:
            del error  # its traceback has this frame, and the frame must not have it

    def pending(self, tenant: Hashable) -> int:
        """How many pieces of the tenant wait."""
        with self._changed:
            return len(self._pending.get(tenant, ()))

    @property
    def tenants(self) -> int:
        """How many tenants are remembered."""
        with self._changed:
            return len(self._pending)

    def _add(self, piece: _Piece) -> None:
        with self._changed:
            mine = self._pending.get(piece.tenant)
            if mine is None:
                mine = self._pending[piece.tenant] = {}
                heappush(self._turns, (self._served_at, next(self._arrivals), piece.tenant))
            if len(mine) >= MAX_PENDING_PER_TENANT:
                raise TooBusy
            mine[piece] = None
            if self._thread is None or not self._thread.is_alive():  # it is not in the child of a fork
                self._start()
            self._changed.notify()

    def _start(self) -> None:
        sys.setswitchinterval(SWITCH_SECONDS)
        # A daemon: the end of the process waits for no computation.
        self._thread = threading.Thread(target=self._serve, name="background", daemon=True)
        self._thread.start()

    def _remove(self, piece: _Piece) -> None:
        with self._changed:
            self._pending.get(piece.tenant, {}).pop(piece, None)

    def _serve(self) -> None:
        while True:
            with self._changed:
                while (taken := self._take()) is None:
                    self._changed.wait()
            used, piece = taken
            began = self._clock()
            if not piece.loop.is_closed():
                piece.run()
            took = max(self._clock() - began, _LEAST_CHARGE_SECONDS)
            with self._changed:
                heappush(self._turns, (used + took, next(self._arrivals), piece.tenant))
            del taken, piece  # what was done must not stay in memory until the next comes

    def _take(self) -> tuple[float, _Piece] | None:
        """The next piece, and what its tenant has used. Forgets tenants without work that the others have caught up."""
        while self._turns:
            used, _, tenant = heappop(self._turns)
            mine = self._pending[tenant]
            if mine:
                piece = next(iter(mine))
                del mine[piece]
                self._served_at = used
                return used, piece
            del self._pending[tenant]
        return None


_background = Background()
run = _background.run
"""Do work in the process's one background thread: see `Background.run`."""
