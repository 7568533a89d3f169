"""An attempt whose handler is called, and how it ends; and the threads of handlers that are not async."""

import asyncio
import logging
import math
import queue
import threading
from collections.abc import Callable
from datetime import datetime
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NamedTuple, assert_never

from evertick.domain.attempt import SUCCEEDED, Attempt, AttemptOutcome, Deferred, Failed
from evertick.domain.states import Outcome
from evertick.executor.handlers.registry import Handler
from evertick.executor.handlers.run import DoNotRetry, RetryLater, failed, users_traceback
from evertick.runtime.logs import run_fields

if TYPE_CHECKING:
    from evertick.runtime.tracing import Span

logger = logging.getLogger("evertick.worker")

STOPPED = "its worker stopped"


class Stop(Enum):
    """Why the executor ends an attempt before its handler does."""

    TIMED_OUT = auto()  # its deadline passed
    LOST = auto()  # it is not ours any more: there is nothing to record
    HANDED_BACK = auto()  # the worker stops


class Running:
    """`started` and `stopped` are by the monotonic clock, `started_at` is by the database's.

    `started` is set right before the call, by the thread that makes it; until then it is infinite. `leased_at`: when
    its lease arrived. `is_observed`: its start is in the metrics.

    One that was begun in a batch has no task: its handler says how it ended by `finish`, and how to `cancel` it.
    """

    __slots__ = (
        *("attempt", "cancel", "ended", "error", "handler", "is_observed", "is_over", "leased_at", "loop", "progress"),
        *("span", "started", "started_at", "stop", "stopped", "task"),
    )

    def __init__(
        self, attempt: Attempt, handler: Handler, started_at: datetime, leased_at: datetime | None = None
    ) -> None:
        self.leased_at = leased_at
        self.is_observed = False
        self.attempt = attempt
        self.handler = handler
        self.started = math.inf
        self.started_at = started_at
        self.task: asyncio.Task[None] | None = None
        self.stop: Stop | None = None
        self.stopped = 0.0
        self.is_over = False
        self.span: Span | None = None  # while this process traces
        self.error: BaseException | None = None  # what its handler raised
        self.progress: str | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.cancel: Callable[[], object] | None = None
        self.ended: Callable[[Running, AttemptOutcome], None] | None = None

    def finish(self, outcome: AttemptOutcome) -> None:
        """It ended, in a batch. What comes after its end is ignored."""
        if not self.is_over and self.ended is not None:
            self.ended(self, outcome)

    def fail(self, error: Exception) -> None:
        """Its handler raised before all of its batch had begun."""
        if not self.is_over:
            self.report(error)
            if self.cancel is not None:
                self.cancel()
            self.finish(failed(error))

    def outcome(self, value: Any, error: BaseException | None) -> AttemptOutcome | None:
        """How it ended. Once it was stopped, that decides, whatever its handler made of it."""
        match self.stop:
            case None if error is not None:
                return failed(error)
            case None:
                return SUCCEEDED if value is None else self._outcome_of(value)
            case Stop.TIMED_OUT:
                seconds = self.attempt.timeout_seconds
                return Failed(f"not finished after {seconds} s, the job's timeout", Outcome.TIMED_OUT)
            case Stop.HANDED_BACK:
                return Deferred(STOPPED)
            case Stop.LOST:
                return None
            case _:
                assert_never(self.stop)

    def _outcome_of(self, value: Any) -> AttemptOutcome:
        try:
            return self.handler.outcome_of(value)
        except BaseException:  # what was done is not done again
            logger.exception("what %s returned is not kept", self.attempt.name, extra=run_fields(self.attempt))
            return SUCCEEDED

    def report(self, error: BaseException) -> None:
        """Note and log what its handler raised."""
        self.error = error
        # A handler that raises one of ours has said all there is to say.
        is_ours = isinstance(error, DoNotRetry | RetryLater)
        trace = None if is_ours else (type(error), error, users_traceback(error) or error.__traceback__)
        attempt = self.attempt
        logger.warning(
            "%s failed in attempt %d: %s: %s",
            attempt.name,
            attempt.attempt,
            type(error).__name__,
            error,
            exc_info=trace,
            extra=run_fields(attempt),
        )


class Returned(NamedTuple):
    """The call came to its end, with a value or with an error; or it was not made."""

    value: Any
    error: BaseException | None
    was_made: bool = True


class _Call(NamedTuple):
    may_start: Callable[[], bool]
    call: Callable[[], Any]
    done: Callable[[Returned], None]


class ThreadPool:
    """`size` threads, each made when first needed. `free` is how many calls may start now.

    A thread cannot be stopped from outside, so one may be written off. They are daemons, unlike those of
    `concurrent.futures`: a handler that never ends must not keep the process from it.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.busy = 0
        self.written_off = 0
        self._threads = 0
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def free(self) -> int:
        # Up to as many again may hang. Beyond that no thread is left to try: something is wrong with the handlers.
        return min(self.size, 2 * self.size - self.written_off) - self.busy

    def submit(self, may_start: Callable[[], bool], call: Callable[[], Any], done: Callable[[Returned], None]) -> None:
        """Call in a thread if it may start when its turn has come, then notify the loop. Only while one is free."""
        self._loop = self._loop or asyncio.get_running_loop()
        self.busy += 1
        if self._threads < self.busy + self.written_off:
            self._threads += 1
            threading.Thread(target=self._work, name=f"evertick-{self._threads}", daemon=True).start()
        self._calls.put(_Call(may_start, call, done))

    def returned(self, *, was_written_off: bool) -> None:
        """A call has ended, so its thread is free again."""
        if was_written_off:
            self.written_off -= 1
        else:
            self.busy -= 1

    def write_off(self) -> None:
        """Stop waiting for a call that is over its time; another thread takes its place."""
        self.busy -= 1
        self.written_off += 1
        logger.warning("a handler is over its time in a thread that cannot be stopped; %d such", self.written_off)

    def close(self) -> None:
        """Let all threads end that can."""
        for _ in range(self._threads):
            self._calls.put(None)
        self._threads = 0

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            returned = _called(call)
            assert self._loop is not None
            if self._loop.is_closed():
                return
            try:
                self._loop.call_soon_threadsafe(call.done, returned)
            except RuntimeError:  # closed at this moment
                return


def _called(call: _Call) -> Returned:
    if not call.may_start():
        return Returned(None, None, was_made=False)
    try:
        return Returned(call.call(), None)
    except BaseException as error:  # noqa: BLE001 - even SystemExit ends an attempt only
        return Returned(None, error)
