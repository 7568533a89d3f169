"""Executes attempts: async handlers as tasks, the others in threads, each within its time."""

import asyncio
import contextvars
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from datetime import datetime
from functools import partial
from itertools import chain
from typing import Any, TypeAlias

from evertick.domain.schedule.instants import from_us
from evertick.roles.worker import endings
from evertick.roles.worker.crew import Crew, Returned
from evertick.roles.worker.handlers import Handler, Handlers
from evertick.roles.worker.run import DoNotRetry, RetryLater, Run
from evertick.roles.worker.running import Running, Stop, ending_of
from evertick.runtime.clock import Clock
from evertick.store.lanes import Leased
from evertick.store.outcomes import Ending

logger = logging.getLogger("evertick.worker")

FRESH_US = 500
"""Attempts that begin or end within half a millisecond share their time: making it costs more than a small handler."""
CANCEL_SECONDS = 5.0
"""For so long a cancelled handler may clean up before it is left to itself."""

Order: TypeAlias = tuple[Leased, Handler]


class UnknownHandler(LookupError):  # noqa: N818 - says what is wrong
    """No handler of that name is here; another worker may have it."""


class Execution:
    """What waits here to be started, and what runs. `ended` is told of each attempt once, with its ending if any."""

    def __init__(
        self,
        handlers: Handlers,
        clock: Clock,
        ended: Callable[[Leased, Ending | None], None],
        *,
        concurrency: int,
        threads: int,
    ) -> None:
        self._handlers = handlers
        self._clock = clock
        self._noted_us = clock.now_us()
        self._noted_at = from_us(self._noted_us)
        self._ended = ended
        self._concurrency = concurrency
        self._tasks = 0
        self._crew = Crew(threads)
        self._for_tasks: deque[Order] = deque()
        self._for_threads: deque[Order] = deque()
        self._running: set[Running] = set()
        self.held = 0
        self._leaving: set[asyncio.Task[None]] = set()
        self.idle = asyncio.Event()
        self.idle.set()
        # What one handler leaves in context variables is not the next one's business.
        self._context = contextvars.copy_context()

    @property
    def written_off(self) -> int:
        return self._crew.written_off

    def add(self, attempts: Iterable[Leased]) -> None:
        """Start these as soon as there is room."""
        self.idle.clear()
        for leased in attempts:
            self.held += 1
            handler = self._handlers.find(leased.handler)
            if handler is None:
                self._refuse(leased)
            elif handler.is_async:
                self._for_tasks.append((leased, handler))
            else:
                self._for_threads.append((leased, handler))
        self._note_idleness()
        self._refill(self._now_at())

    def sweep(self) -> None:
        """Stop what is over its time, and let go of what does not stop."""
        now = time.monotonic()
        for running in list(self._running):
            if running.stop is None:
                if now - running.started > running.leased.timeout_seconds:
                    self._halt(running, Stop.TIMED_OUT)
            elif now - running.stopped > CANCEL_SECONDS:
                self._abandon(running)
        self._refill(self._now_at())

    def older_than(self, seconds: float) -> list[Running]:
        """What has been running for longer."""
        before = time.monotonic() - seconds
        return [running for running in self._running if running.started < before]

    def halt(self, doomed: Iterable[Running], stop: Stop) -> None:
        for running in doomed:
            if running.stop is None and not running.is_over:
                self._halt(running, stop)
        self._refill(self._now_at())

    def halt_all(self, stop: Stop) -> None:
        self.halt(list(self._running), stop)

    def drop(self, lease_ids: Collection[int]) -> int:
        """Forget the attempts of leases that are lost, and say how many there were."""
        running = [each for each in self._running if each.leased.lease_id in lease_ids]
        waiting = len(self._for_tasks) + len(self._for_threads)
        self._for_tasks = deque(each for each in self._for_tasks if each[0].lease_id not in lease_ids)
        self._for_threads = deque(each for each in self._for_threads if each[0].lease_id not in lease_ids)
        gone = waiting - len(self._for_tasks) - len(self._for_threads)
        self.held -= gone
        self._note_idleness()
        self.halt(running, Stop.LOST)
        return gone + len(running)

    @property
    def is_stuck(self) -> bool:
        """Whether every thread there may be is lost to a handler that never ends."""
        return self._crew.size > 0 and self._crew.written_off >= 2 * self._crew.size

    def waiting_tokens(self) -> set[tuple[int, int]]:
        return {(leased.lane_id, leased.seq) for leased, _ in chain(self._for_tasks, self._for_threads)}

    def take_over(self, tokens: Collection[tuple[int, int]]) -> list[Leased]:
        """Give up those of these that have not been started: someone else has ended them."""
        over = [each[0] for each in chain(self._for_tasks, self._for_threads) if _token(each[0]) in tokens]
        self._for_tasks = deque(each for each in self._for_tasks if _token(each[0]) not in tokens)
        self._for_threads = deque(each for each in self._for_threads if _token(each[0]) not in tokens)
        self.held -= len(over)
        self._note_idleness()
        return over

    def take_stranded(self) -> list[Leased]:
        """Give up what waits for a thread when none will ever come."""
        if not self.is_stuck or not self._for_threads:
            return []
        return self.take_over({_token(leased) for leased, _ in self._for_threads})

    def take_waiting(self) -> list[Leased]:
        """Give up what has not been started."""
        waiting = [leased for leased, _ in chain(self._for_tasks, self._for_threads)]
        self._for_tasks.clear()
        self._for_threads.clear()
        self.held -= len(waiting)
        self._note_idleness()
        return waiting

    def close(self) -> None:
        self._crew.dismiss()

    def _now_at(self) -> datetime:
        now_us = self._clock.now_us()
        if not 0 <= now_us - self._noted_us < FRESH_US:
            self._noted_us, self._noted_at = now_us, from_us(now_us)
        return self._noted_at

    def _refill(self, now_at: datetime) -> None:
        while self._for_tasks and self._tasks < self._concurrency:
            self._start_task(*self._for_tasks.popleft(), now_at)
        while self._for_threads and self._crew.free > 0:
            self._start_thread(*self._for_threads.popleft(), now_at)

    def _note_idleness(self) -> None:
        if not self.held:
            self.idle.set()

    def _refuse(self, leased: Leased) -> None:
        self.held -= 1
        error = UnknownHandler(self._handlers.unknown(leased.handler))
        self._ended(leased, endings.failed(leased, None, self._now_at(), error))

    def _start_task(self, leased: Leased, handler: Handler, now_at: datetime) -> None:
        running = self._start(leased, now_at)
        self._tasks += 1
        work = self._execute(running, handler)
        running.task = asyncio.get_running_loop().create_task(work, context=self._context.copy())

    def _start_thread(self, leased: Leased, handler: Handler, now_at: datetime) -> None:
        running = self._start(leased, now_at)
        call = partial(handler.call_sync, leased, Run(leased, now_at))
        self._crew.submit(partial(self._context.copy().run, call), partial(self._returned, running))

    def _start(self, leased: Leased, now_at: datetime) -> Running:
        running = Running(leased, time.monotonic(), now_at)
        self._running.add(running)
        return running

    async def _execute(self, running: Running, handler: Handler) -> None:
        leased = running.leased
        try:
            value = await handler.call(leased, Run(leased, running.started_at))
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - even SystemExit ends an attempt only
            self._finish(running, None, error)
        else:
            self._finish(running, value, None)

    def _returned(self, running: Running, returned: Returned) -> None:
        self._crew.returned(was_written_off=running.is_over)
        self._finish(running, returned.value, returned.error)

    def _finish(self, running: Running, value: Any, error: BaseException | None) -> None:
        now_at = self._now_at()
        if not running.is_over:
            if error is not None and running.stop is None:
                _report(running.leased, error)
            self._end(running, ending_of(running, now_at, value, error))
        self._refill(now_at)

    def _end(self, running: Running, ending: Ending | None) -> None:
        running.is_over = True
        self.held -= 1
        self._running.discard(running)
        if running.task is not None:
            self._tasks -= 1
        self._ended(running.leased, ending)
        self._note_idleness()

    def _halt(self, running: Running, stop: Stop) -> None:
        running.stop = stop
        running.stopped = time.monotonic()
        if running.task is None:
            self._abandon(running)  # a thread cannot be cancelled
        else:
            # A task that was cancelled before its first step never comes to our own lines in it.
            running.task.add_done_callback(lambda _: self._finish(running, None, None))
            running.task.cancel()

    def _abandon(self, running: Running) -> None:
        """Count on a handler no more that does not stop; whatever it comes to is ignored."""
        if running.task is None:
            self._crew.write_off()
        else:
            self._leaving.add(running.task)
            running.task.add_done_callback(self._leaving.discard)
        self._end(running, ending_of(running, self._now_at(), None, None))


def _report(leased: Leased, error: BaseException) -> None:
    # Who raises one of ours has said all there is to say.
    trace = None if isinstance(error, DoNotRetry | RetryLater) else error
    name = type(error).__name__
    logger.warning("%s failed in attempt %d: %s: %s", leased.name, leased.attempt, name, error, exc_info=trace)


def _token(leased: Leased) -> tuple[int, int]:
    return leased.lane_id, leased.seq
