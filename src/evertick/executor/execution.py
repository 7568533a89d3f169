"""Executes attempts: async handlers as tasks, the others in threads, each within its time.

A handler is called only under a lease that has not run out by the monotonic clock at that moment. An attempt whose
lease has waits until the heartbeat has had it confirmed; if it is lost the attempt is dropped.
"""

import asyncio
import contextvars
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from evertick.domain.attempt import Attempt, AttemptOutcome, Failed, NotStarted, Token
from evertick.domain.schedule.instants import from_us, to_us
from evertick.executor.attempt_times import AttemptTimes
from evertick.executor.handlers.registry import Handler, Registry
from evertick.executor.held_leases import HeldLease, HeldLeases
from evertick.executor.running import Returned, Running, Stop, ThreadPool
from evertick.executor.source import EndedAttempt, Source
from evertick.executor.waiting import Order, StartMarks, Waiting
from evertick.runtime import tracing
from evertick.runtime.clock import Clock

FRESH_US = 500
"""Attempts that begin or end within half a millisecond share their time: making it costs more than a small handler."""
CANCEL_SECONDS = 5.0
"""How long a cancelled handler may clean up before the executor stops waiting for it."""


class Execution:
    """What waits here to be started, and what runs. Each attempt leaves once: `ended` gets it with its outcome, with
    others that ended at the same time; `gone` gets it if it has none, because it is not ours any more.

    `refused` gets those that no handler is here for, `failed` those that failed, with their errors. `starts_at_once`:
    so many tasks are started in one turn of the event loop, where each counts as much as the `start_cost` of its
    handler. Handlers that are quick then end in one of the next turns, so that turns stay short however many wait.
    """

    def __init__(  # noqa: PLR0913 - what it runs, and where it goes then
        self,
        source: Source,
        handlers: Registry,
        clock: Clock,
        held_leases: HeldLeases,
        *,
        ended: Callable[[Sequence[EndedAttempt]], None],
        gone: Callable[[Attempt], None],
        refused: Callable[[list[Attempt]], None],
        failed: Callable[[Attempt, datetime, BaseException], None] = lambda _, __, ___: None,
        concurrency: int,
        threads: int,
        starts_at_once: int | None = None,
        waiting: Waiting | None = None,
        role: str = "worker",
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._times = AttemptTimes(role, source.queue_name)
        self._handlers = handlers
        self._clock = clock
        self._held_leases = held_leases
        self._monotonic = monotonic
        self._noted_us = clock.now_us()
        self._noted_at = from_us(self._noted_us)
        self._ended = ended
        self._gone = gone
        self._refused = refused
        self._failed = failed
        self._is_last_try = source.is_last_try if source.marks_starts else None
        self._marks = StartMarks(source.mark_started, self._marked)
        self._concurrency = concurrency
        self._tasks = 0
        self._starts_at_once = starts_at_once
        self._starts = 0.0
        self._turn_began = 0.0
        self._is_refilling = False
        self._threads = ThreadPool(threads)
        self._waiting = Waiting() if waiting is None else waiting
        self._running: set[Running] = set()
        self._over: list[tuple[Running, AttemptOutcome]] = []  # of batches, in this turn of the event loop
        self._is_stopping = False
        self.held = 0
        self._leaving: set[asyncio.Task[None]] = set()
        self.idle = asyncio.Event()
        self.idle.set()
        # No handler sees what another one leaves in context variables.
        self._context = contextvars.copy_context()

    @property
    def written_off(self) -> int:
        return self._threads.written_off

    @property
    def running(self) -> int:
        return len(self._running)

    def add(self, attempts: Iterable[Attempt]) -> None:
        """Start these as soon as there is room. Those whose lease was lost meanwhile are left out."""
        unknown: list[Attempt] = []
        orders: list[Order] = []
        find, is_last_try = self._handlers.find, self._is_last_try
        find_lease = self._held_leases.find
        now_at = self._now_at()
        for attempt in attempts:
            handler = find(attempt)
            lease = find_lease(attempt.lease_id)
            if handler is None:
                unknown.append(attempt)
            elif lease is not None:
                self.held += 1
                if lease.arrived_at is None:
                    lease.arrived_at = now_at
                orders.append((attempt, handler, lease, is_last_try is not None and is_last_try(attempt)))
        self._waiting.add_all(orders)
        if self.held:
            self.idle.clear()
        if unknown:
            self._refused(unknown)
        self._refill(now_at)

    def sweep(self) -> None:
        """Stop what is over its time, and let go of what does not stop."""
        now = self._monotonic()
        self._times.observe_started(self._running, now)
        self._times.observe()
        for running in list(self._running):
            if running.is_over:
                continue
            if running.stop is None:
                if now - running.started > running.handler.deadline_seconds(running.attempt):
                    self._halt(running, Stop.TIMED_OUT)
            elif now - running.stopped > CANCEL_SECONDS:
                self._abandon(running)
        self._waiting.retry_leases(now)
        self._refill(self._now_at())

    def progress(self) -> dict[Token, str]:
        """How far running attempts are, of those that say so."""
        return {each.attempt.token: each.progress for each in self._running if each.progress is not None}

    def older_than(self, seconds: float) -> list[Running]:
        """What has been running for longer."""
        before = self._monotonic() - seconds
        return [running for running in self._running if running.started < before]

    def halt(self, doomed: Iterable[Running], stop: Stop) -> None:
        for running in doomed:
            if running.stop is None and not running.is_over:
                self._halt(running, stop)
        self._refill(self._now_at())

    def halt_all(self, stop: Stop) -> None:
        self.halt(list(self._running), stop)

    def drop(self, lease_ids: Collection[int]) -> tuple[int, int]:
        """Give up the attempts of leases that are lost, and say how many of them waited and how many run."""
        running = [each for each in self._running if each.attempt.lease_id in lease_ids and not each.is_over]
        waiting = self._take(lambda attempt: attempt.lease_id in lease_ids)
        self.halt(running, Stop.LOST)
        return len(waiting), len(running)

    @property
    def is_stuck(self) -> bool:
        """Whether every thread there may be is lost to a handler that never ends."""
        return self._threads.size > 0 and self._threads.written_off >= 2 * self._threads.size

    @property
    def waits_for_leases(self) -> bool:
        """Whether anything may not be started until its lease is confirmed."""
        return bool(self._waiting.for_leases)

    def waiting_tokens(self, seconds: float) -> set[Token]:
        """What has been waiting for longer."""
        before = self._monotonic() - seconds
        return {order[0].token for order in self._waiting if order[2].since < before}

    def take_over(self, tokens: Collection[Token]) -> list[Attempt]:
        """Give up those of these that have not been started: someone else has ended them."""
        return self._take(lambda attempt: attempt.token in tokens)

    def take_stranded(self) -> list[Attempt]:
        """Give up what will not be started: all when the worker stops, else what waits for a thread if none is left."""
        if self._is_stopping:
            return self.take_waiting()
        if not self.is_stuck or not self._waiting.for_threads:
            return []
        return self.take_over({order[0].token for order in self._waiting.for_threads})

    def take_waiting(self) -> list[Attempt]:
        """Give up what has not been started."""
        return self._take(lambda _: True)

    def start_no_more(self) -> None:
        """Whatever waits, and whatever comes, waits until it is taken."""
        self._is_stopping = True

    def close(self) -> None:
        self._times.observe()
        self._marks.close()
        self._threads.close()

    def _now_at(self) -> datetime:
        now_us = self._clock.now_us()
        if not 0 <= now_us - self._noted_us < FRESH_US:
            self._noted_us, self._noted_at = now_us, from_us(now_us)
        return self._noted_at

    def _take(self, is_meant: Callable[[Attempt], bool]) -> list[Attempt]:
        taken = self._waiting.take(is_meant)
        self.held -= len(taken)
        self._note_idleness()
        return taken

    def _refill(self, now_at: datetime) -> None:
        waiting = self._waiting
        if self._is_stopping:
            return
        if waiting.for_tasks:
            self._refill_tasks(now_at)
        while waiting.for_threads and self._threads.free > len(waiting.for_marks):
            order = waiting.for_threads.popleft()
            if order[3]:
                self._mark(order)
            else:
                self._start_thread(order, now_at)

    def _refill_tasks(self, now_at: datetime) -> None:
        room = self._concurrency - self._tasks - len(self._waiting.for_marks)
        if room <= 0:  # a turn begins with a start
            return
        is_tracing = tracing.active() is not None  # a span needs a context of its own
        batch: list[Order] = []
        for order in self._waiting.next_tasks(room, self._budget()):
            if self._starts_at_once is not None:
                self._starts += order[1].start_cost
            if order[3]:
                self._mark(order)
            elif order[1].begin is None or is_tracing:
                self._start_task(order, now_at)
            else:
                self._tasks += 1
                batch.append(order)
        if batch:
            self._start_batch(batch, now_at)

    def _budget(self) -> float:
        """What starts may cost before the event loop comes to something else."""
        if self._starts_at_once is None:
            return math.inf
        if not self._starts:
            self._turn_began = self._monotonic()
            asyncio.get_running_loop().call_soon(self._begin_turn)
        return self._starts_at_once - self._starts

    def _begin_turn(self) -> None:
        is_more = self._starts_at_once is not None and self._starts >= self._starts_at_once
        self._starts = 0.0
        if rest := self._waiting.rest_after(self._monotonic() - self._turn_began):
            asyncio.get_running_loop().call_later(rest, self._refill_soon)
        if is_more:
            self._refill(self._now_at())

    def _refill_soon(self) -> None:
        """Once for all that end in this turn of the event loop."""
        if not self._is_refilling:
            self._is_refilling = True
            asyncio.get_running_loop().call_soon(self._refill_later)

    def _refill_later(self) -> None:
        self._is_refilling = False
        now_at = self._now_at()
        self._end_batch(now_at)
        self._refill(now_at)

    def _note_idleness(self) -> None:
        if not self.held:
            self.idle.set()

    def _mark(self, order: Order) -> None:
        token = order[0].token
        earlier = self._waiting.for_marks.get(token)
        self._waiting.for_marks[token] = order
        if earlier is not None:  # leased again before its first lease was found lost
            self.held -= 1
            self._gone(earlier[0])
        self._marks.begin(self._waiting)

    def _marked(self, asked: Mapping[Token, Order], mine: Collection[Token]) -> None:
        for attempt in self._waiting.marked(asked, mine):
            self.held -= 1
            self._gone(attempt)
        self._note_idleness()
        self._refill(self._now_at())

    def _start_task(self, order: Order, now_at: datetime) -> None:
        running = self._start(order, now_at)
        self._tasks += 1
        work = self._execute(running, order)
        running.task = asyncio.get_running_loop().create_task(work, context=self._context_of(running))

    def _start_batch(self, orders: list[Order], now_at: datetime) -> None:
        """Begin attempts together, those of each handler in one call."""
        now = self._monotonic()
        by_handler: dict[Handler, list[Running]] = {}
        for order in orders:
            if order[2].expires <= now:
                self._tasks -= 1
                self._waiting.for_leases.append(order)
                continue
            running = self._start(order, now_at)
            running.started = now
            running.ended = self._ended_in_batch
            by_handler.setdefault(order[1], []).append(running)
        for handler, batch in by_handler.items():
            assert handler.begin is not None
            try:
                handler.begin(batch)
            except Exception as error:  # noqa: BLE001 - attempts without an end would keep their slots
                for running in batch:
                    running.fail(error)
                self._end_batch(now_at)

    def _ended_in_batch(self, running: Running, outcome: AttemptOutcome) -> None:
        running.is_over = True
        self._over.append((running, outcome))
        if not self._is_refilling:
            self._refill_soon()

    def _end_batch(self, now_at: datetime) -> None:
        """End together what was begun in batches and has ended since the last time."""
        over, self._over = self._over, []
        if not over:
            return
        self.held -= len(over)
        self._tasks -= len(over)
        self._running.difference_update([running for running, _ in over])
        self._times.add_all([running for running, outcome in over if type(outcome) is not NotStarted], now_at)
        for running, outcome in over:
            if type(outcome) is Failed:
                self._note_failure(running, outcome)
        self._ended([(each.attempt, outcome, each.started_at, now_at, each.leased_at) for each, outcome in over])
        self._note_idleness()

    def _start_thread(self, order: Order, now_at: datetime) -> None:
        running = self._start(order, now_at)
        attempt, handler, lease, _ = order
        running.loop = asyncio.get_running_loop()
        call = partial(handler.call, attempt, now_at, running)
        self._threads.submit(
            partial(self._may_start, running, lease),
            partial(self._context_of(running).run, call),
            partial(self._returned, running, order),
        )

    def _start(self, order: Order, now_at: datetime) -> Running:
        running = Running(order[0], order[1], now_at, order[2].arrived_at)
        self._running.add(running)
        return running

    def _context_of(self, running: Running) -> contextvars.Context:
        """A context of its own for a handler, with its span."""
        context = self._context.copy()
        if (tracer := tracing.active()) is not None:
            running.span = context.run(tracer.begin, running.attempt, to_us(running.started_at))
        return context

    def _may_start(self, running: Running, lease: HeldLease) -> bool:
        """Asked right before the call, in the thread that makes it."""
        now = self._monotonic()
        if running.is_over or lease.expires <= now:
            return False
        running.started = now
        return True

    async def _execute(self, running: Running, order: Order) -> None:
        attempt, handler, lease, _ = order
        if not self._may_start(running, lease):
            self._tasks -= 1
            self._wait_for_lease(running, order)
            return
        try:
            value = await handler.call(attempt, running.started_at, running)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - even SystemExit ends an attempt only
            self._finish(running, None, error)
        else:
            self._finish(running, value, None)

    def _returned(self, running: Running, order: Order, returned: Returned) -> None:
        self._threads.returned(was_written_off=running.is_over)
        if returned.was_made or running.is_over:
            self._finish(running, returned.value, returned.error)
        else:
            self._wait_for_lease(running, order)

    def _wait_for_lease(self, running: Running, order: Order) -> None:
        """Its lease ran out before its handler was called: the next sweep looks whether it was extended."""
        running.is_over = True
        self._running.discard(running)
        self._waiting.for_leases.append(order)
        self._refill(self._now_at())

    def _finish(self, running: Running, value: Any, error: BaseException | None) -> None:
        now_at = self._now_at()
        if not running.is_over:
            if error is not None and running.stop is None:
                running.report(error)
            self._end(running, running.outcome(value, error), now_at)
        self._refill(now_at)

    def _end(self, running: Running, outcome: AttemptOutcome | None, now_at: datetime) -> None:
        running.is_over = True
        self.held -= 1
        self._running.discard(running)
        if running.task is not None or running.ended is not None:
            self._tasks -= 1
        attempt = running.attempt
        if outcome is not None and type(outcome) is not NotStarted:
            self._times.add(running, now_at)
        if running.span is not None and (tracer := tracing.active()) is not None:
            tracer.end(running.span, outcome, to_us(now_at))
        if type(outcome) is Failed:
            self._note_failure(running, outcome)
        if outcome is None:
            self._gone(attempt)
        else:
            self._ended([(attempt, outcome, running.started_at, now_at, running.leased_at)])
        self._note_idleness()

    def _note_failure(self, running: Running, outcome: Failed) -> None:
        self._failed(running.attempt, running.started_at, running.error or TimeoutError(outcome.error))

    def _halt(self, running: Running, stop: Stop) -> None:
        running.stop = stop
        running.stopped = self._monotonic()
        if running.ended is not None:
            if running.cancel is not None:
                running.cancel()
            self._finish(running, None, None)
        elif running.task is None:
            self._abandon(running)  # a thread cannot be cancelled
        else:
            # A task that was cancelled before its first step never runs our lines in it.
            running.task.add_done_callback(lambda _: self._finish(running, None, None))
            running.task.cancel()

    def _abandon(self, running: Running) -> None:
        """Stop waiting for a handler that does not stop; its result is ignored."""
        if running.task is None:
            self._threads.write_off()
        else:
            self._leaving.add(running.task)
            running.task.add_done_callback(self._leaving.discard)
        self._end(running, running.outcome(None, None), self._now_at())
