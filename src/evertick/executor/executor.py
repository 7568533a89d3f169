"""The executor: leases ready attempts from a source, runs their handlers in this process, records how they ended.

Duty: an attempt that was leased is run once, within its timeout, and its outcome recorded soon after; or it is put back
before anything of it was done.

Invariants: a handler is only called under a lease that has not run out by the monotonic clock at that moment. An
outcome stays here until the source has answered for it. A lease is let go in the request that records its last open
attempt, never before. What was not started leaves no outcome and counts as no try.

Steps, each a loop of its own:
1. lease (the source's): whenever there is room.
2. execute: async handlers as tasks on this loop, the others in threads; the sweep stops those over their time, and all
   whose lease is lost. An attempt whose loss would mean a dead letter has its start marked first.
3. record: all outcomes that arrived meanwhile, in one request. What somebody has locked, or what cannot be stored, is
   tried apart and holds up nothing else.
4. put back: what has no handler here, what its handler did not begin, and what was not started when the worker stops.
5. hand over: what a broker has accepted and a consumer reports the outcome of. From then on it is the consumer's.
6. heartbeat: extends the leases from a thread with its own connection, so that a handler which blocks the loop keeps
   its lease; but not for longer than that handler's timeout. It also says what this worker serves.
7. watch: each second asks which of the attempts that have been here for longer than that were ended by others
   (cancelled), and stops them.

Crash: the leases run out, the reaper records their open attempts as lost, and they are retried. Slow source: outcomes
form larger batches, and leasing waits while too many are unrecorded. Source away: recording is tried again until it
works, and nothing is leased once that has lasted for two seconds. Handlers go on past the end of their lease, unless
the source says that the attempt is lost then, but none is started after it until a heartbeat is answered: what is still
ours goes on, what is not is stopped. Lost lease (the process stood still, the reaper took it): its handlers are
cancelled and their results are not recorded, for others have the attempt; what had ended before is recorded by the
first writer. Stop: leasing ends, what was not started is put back at once, and what still runs after the grace is
handed back; neither counts as a try. With the source away it ends all the same, after the grace and
`LAST_REQUESTS_SECONDS`.
"""

import asyncio
import logging
import os
import re
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import ExitStack
from datetime import timedelta
from itertools import groupby
from typing import Any

from evertick.domain.attempt import Attempt, HandedOver, NotRecorded, NotStarted, Succeeded, Token
from evertick.domain.ids import RunKey
from evertick.domain.retry import deferral_delay
from evertick.domain.schedule.describe.english import counted
from evertick.domain.schedule.instants import SECOND_US, to_us
from evertick.executor.execution import Execution
from evertick.executor.handlers.hooks import HookCalls, Hooks
from evertick.executor.handlers.registry import Registry
from evertick.executor.heartbeat import HeartbeatThread
from evertick.executor.held_leases import HeldLeases
from evertick.executor.leaving import Leaving
from evertick.executor.recorder import Recorder
from evertick.executor.running import STOPPED, Stop
from evertick.executor.source import AttemptCounters, EndedAttempt, Source, UnstartedAttempt
from evertick.executor.waiting import Waiting
from evertick.metrics.catalog import CLOCK_SKEW, DEFERRALS, HANDED_OVER, HELD, PUT_BACK, RUNNING, UNRECORDED
from evertick.runtime import tracing
from evertick.runtime.clock import Clock, DatabaseClock
from evertick.runtime.logs import run_fields
from evertick.runtime.process import hurried

logger = logging.getLogger("evertick.worker")

CONCURRENCY = 100
THREADS = min(32, (os.cpu_count() or 1) + 4)
GRACE = timedelta(seconds=30)
MAX_UNRECORDED_BATCHES = 2
"""With more outcomes than that waiting to be recorded, nothing is leased."""
WORK_OFF_SIZE = 8192
SWEEP_SECONDS = 0.25
WATCH_SECONDS = 1.0
STOP_SECONDS = 2.0
"""How long a stopping executor waits for a request that is under way."""
LAST_REQUESTS_SECONDS = 30.0
"""How long a stopping executor tries to reach a source that is away. After that its leases run out by themselves."""
_NO_DELAY = timedelta(0)
_SUCCESSES = {Succeeded}
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._:@-]")

OnEnded = Callable[[Sequence[EndedAttempt]], None]
OnGone = Callable[[Attempt], None]


class Executor:
    """Runs the attempts of one source with the handlers that are here.

    `waiting` decides in which order attempts start; `on_ended` gets attempts that end here, `on_gone` each that leaves
    without an outcome.
    `hooks` are told of failures. `role` names it in the metrics.
    """

    def __init__(  # noqa: PLR0913 - what it runs, where and how much
        self,
        source: Source,
        handlers: Registry,
        *,
        name: str | None = None,
        concurrency: int = CONCURRENCY,
        threads: int = THREADS,
        starts_at_once: int | None = None,
        waiting: Waiting | None = None,
        on_ended: OnEnded = lambda _: None,
        on_gone: OnGone = lambda _: None,
        hooks: Hooks | None = None,
        role: str = "worker",
        clock: Clock | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = unique_name(name or socket.gethostname())
        self.counters = AttemptCounters()
        self.clock: Clock = clock or DatabaseClock()
        self.held_leases = HeldLeases()
        self.slots = _slots(handlers, concurrency, threads)
        self.ended = 0
        self._source = source
        self._handlers = handlers
        self._monotonic = monotonic
        self._on_ended, self._on_gone = on_ended, on_gone
        self._hooks = HookCalls(hooks or Hooks())
        self._progress: dict[Token, str] = {}
        self._hurried = asyncio.Event()
        self._signals = ExitStack()
        self._waiting = Waiting() if waiting is None else waiting
        self._warned: set[str | None] = set()
        self._execution = Execution(
            source,
            handlers,
            self.clock,
            self.held_leases,
            ended=self._ended,
            gone=self._gone,
            refused=self._refused,
            failed=self._hooks.failed,
            concurrency=concurrency,
            threads=threads,
            starts_at_once=starts_at_once,
            waiting=self._waiting,
            role=role,
            monotonic=monotonic,
        )
        self._role = role
        self._unwatch: list[Callable[[], None]] = []
        self._heartbeat = HeartbeatThread(source, self.held_leases, monotonic)

    async def open(self) -> None:
        """Connect, and put the parts together; nothing runs yet."""
        self.recorder = Recorder(self._source, self.counters, self._monotonic, self._recorded)
        self.put_backs = Leaving(
            self._source, "put back", self._source.put_back, lambda unstarted: unstarted.attempt, self._has_left
        )
        self.hand_overs = Leaving(self._source, "hand over", self._source.hand_over, lambda each: each, self._has_left)
        self._sweep_loop = self._source.loop("sweep", self._step_sweep)
        self._watch_loop = self._source.loop("watch", self._watch)
        await self._source.open(self)
        self._watch_gauges()

    async def close(self) -> None:
        for unwatch in self._unwatch:
            unwatch()
        self._execution.close()
        await self._source.close()

    async def start(self) -> None:
        """Work until `stop`."""
        await self.open()
        self.run()

    def run(self) -> None:
        """Work, once it is open, until `drain`."""
        self._signals.enter_context(hurried(self._hurried.set))
        self._heartbeat.start()
        self.recorder.start()
        self.put_backs.start()
        self.hand_overs.start()
        self._sweep_loop.start()
        self._watch_loop.start()
        if self.slots:
            self._source.start()

    async def stop(self, grace: timedelta = GRACE) -> None:
        """`drain` and `close`."""
        await self.drain(grace)
        await self.close()

    async def drain(self, grace: timedelta = GRACE) -> None:
        """Lease no more, let what runs finish within the grace, give back the rest, and record everything.

        A second signal to the process ends the grace. With the source away no request is waited for longer than
        `STOP_SECONDS`, and all of them together no longer than `LAST_REQUESTS_SECONDS`.
        """
        self._execution.start_no_more()
        await self._briefly(self._source.stop_leasing())
        await self._let_go(grace)
        await self._finish_requests()
        await self._hooks.drain()
        parts = (self.recorder, self.put_backs, self.hand_overs, self._sweep_loop, self._watch_loop)
        await self._briefly(*(part.stop(STOP_SECONDS) for part in parts))
        await self._heartbeat.stop()
        self._signals.close()

    async def work_off(self, ready: int | None = None, lane_ids: Collection[int] | None = None) -> int:
        """Lease, run and record without loops of its own; returns how many were leased.

        Until nothing is ready, or until as many were leased from these lanes as are known to be.
        """
        leased = 0
        while self.slots and leased != ready:
            count = await self._source.lease(WORK_OFF_SIZE, lane_ids)
            if not count:
                break
            leased += count
            await self.finish()
            await self.put_backs.flush()
            await self.hand_overs.flush()
            await self.recorder.flush()
            await self._hooks.drain()
        return leased

    async def finish(self) -> None:
        """Return when nothing is here any more."""
        while not await _set_within(self._execution.idle, SWEEP_SECONDS):
            self.sweep()

    @property
    def role(self) -> str:
        return self._role

    @property
    def handler_names(self) -> Sequence[str]:
        return self._handlers.names

    @property
    def held(self) -> int:
        return self._execution.held

    @property
    def written_off(self) -> int:
        return self._execution.written_off

    @property
    def waits_for_leases(self) -> bool:
        """Whether anything may not be started until its lease is extended."""
        return self._execution.waits_for_leases

    @property
    def may_lease(self) -> bool:
        limit = MAX_UNRECORDED_BATCHES * self._source.max_outcomes
        return self._unrecorded <= limit and not self.recorder.is_stalled and not self._execution.is_stuck

    @property
    def _unrecorded(self) -> int:
        return len(self.recorder) + len(self.put_backs) + len(self.hand_overs)

    def take(self, attempts: Sequence[Attempt]) -> None:
        self.counters.leased += len(attempts)
        if (tracer := tracing.active()) is not None:
            tracer.leased(attempts, self.clock.now_us())
        self._execution.add(attempts)

    def drop(self, attempt: Attempt) -> None:
        self.counters.leased += 1
        self._leave(attempt)

    def release(self, lease_id: int) -> None:
        self.recorder.release(lease_id)

    def died(self, tokens: Collection[Token]) -> None:
        self._hooks.died(tokens)

    def beat_now(self) -> None:
        self._heartbeat.hurry()

    def sweep(self) -> None:
        """Stop what is over its time or not ours any more, and put back what will not be started here."""
        self._heartbeat.alive()
        self.held_leases.keep(self.recorder.stalled_leases)
        if lost := self.held_leases.drop_lost(self._monotonic() if self._source.drops_expired else None):
            waited, running = self._execution.drop(lost)
            self._source.forget(lost)
            self.counters.lost += waited  # those that run count when they have stopped
            if count := waited + running:
                logger.warning(
                    "%d attempts of %s were lost with their leases or cancelled",
                    count,
                    self.name,
                    extra={"worker": self.name},
                )
        self._execution.sweep()
        if self._execution.waits_for_leases:
            self._heartbeat.hurry()
        self._put_back_all(self._execution.take_stranded())
        if stalled := self._waiting.stalled():
            self._put_back_all(self._execution.take_over(stalled))

    def _refused(self, attempts: list[Attempt]) -> None:
        """Put back what no handler is here for: at once, but after a growing while should it come here again."""
        for attempt in attempts:
            delay = deferral_of(attempt) if attempt.deferrals else timedelta(0)
            reason = f"this worker has no handler {attempt.handler!r}"
            self._put_back(UnstartedAttempt(attempt, reason, delay, is_deferral=True))
        self._warn_of_unknown(attempts)

    def _warn_of_unknown(self, attempts: Sequence[Attempt]) -> None:
        """Warn of the handlers that these attempts need, once of each."""
        news = sorted((each for each in attempts if each.handler not in self._warned), key=_handler)
        for handler, group in groupby(news, key=lambda each: each.handler):
            self._warned.add(handler)
            text = "no handler %r on queue %r: %d attempts wait for a worker that has it"
            waiting = list(group)
            queue = self._source.queue_name(waiting[0])
            logger.warning(text, handler, queue, len(waiting), extra={"queue": queue} | run_fields(waiting[0]))

    def _recorded(self, batch: Sequence[EndedAttempt], left_out: NotRecorded) -> None:
        self._hooks.recorded((each[0].token for each in batch), left_out.busy)
        if (tracer := tracing.active()) is not None:
            without = left_out.stale | left_out.busy
            ended = ((each[0], to_us(each[3])) for each in batch if each[0].token not in without)
            tracer.recorded(ended, self.clock.now_us())

    def _put_back_all(self, attempts: Iterable[Attempt]) -> None:
        for attempt in attempts:
            self._put_back(UnstartedAttempt(attempt, STOPPED))

    def _put_back(self, unstarted: UnstartedAttempt) -> None:
        self.counters.handed_back += 1
        PUT_BACK.add(1, self._role)
        DEFERRALS.add(unstarted.is_deferral or unstarted.delay > _NO_DELAY, self._role)
        self.put_backs.add(unstarted)
        self._source.freed(self._execution.held)

    def _hand_over(self, attempt: Attempt) -> None:
        HANDED_OVER.add(1, self._role)
        self.hand_overs.add(attempt)

    def _has_left(self, attempt: Attempt) -> None:
        """The lease that it came with has one attempt less."""
        if (done_lease := self.held_leases.end(attempt.lease_id)) is not None:
            self.recorder.release(done_lease)

    def _ended(self, ended: Sequence[EndedAttempt]) -> None:
        """Record what came to an end; what was not started is put back, what a broker's consumer has is handed over."""
        self._on_ended(ended)
        if len(ended) == 1:  # of a handler with a task of its own: what follows would cost more than it saves
            self._ended_alone(ended[0])
            return
        if {type(each[1]) for each in ended} == _SUCCESSES:
            self.counters.succeeded += len(ended)
            self.ended += len(ended)
        else:
            ended = self._with_outcome(ended)
        if ended:
            open_in = Counter([each[0].lease_id for each in ended])
            done = [self.held_leases.end(lease_id, count) for lease_id, count in open_in.items()]
            self.recorder.add(ended, [lease_id for lease_id in done if lease_id is not None])
        self._source.freed(self._execution.held)

    def _ended_alone(self, ended: EndedAttempt) -> None:
        if type(ended[1]) is Succeeded:
            self.counters.succeeded += 1
            self.ended += 1
        elif not self._with_outcome((ended,)):
            self._source.freed(self._execution.held)
            return
        done_lease = self.held_leases.end(ended[0].lease_id)
        self.recorder.add((ended,), () if done_lease is None else (done_lease,))
        self._source.freed(self._execution.held)

    def _with_outcome(self, ended: Sequence[EndedAttempt]) -> list[EndedAttempt]:
        """Those to record. The others leave."""
        recorded: list[EndedAttempt] = []
        for each in ended:
            attempt, outcome = each[0], each[1]
            if type(outcome) is NotStarted:
                self._put_back(_unstarted(attempt, outcome))
                continue
            self.ended += 1
            self.counters.count(outcome)
            if type(outcome) is HandedOver:
                self._hand_over(attempt)
            else:
                recorded.append(each)
        return recorded

    def _gone(self, attempt: Attempt) -> None:
        """It is not ours any more: there is nothing to record."""
        self.counters.lost += 1
        self._leave(attempt)

    def _leave(self, attempt: Attempt) -> None:
        self._on_gone(attempt)
        self.ended += 1
        self._has_left(attempt)
        self._source.freed(self._execution.held)

    def _watch_gauges(self) -> None:
        self._unwatch = [
            RUNNING.watch_value(lambda: self._execution.running, self._role),
            HELD.watch_value(lambda: self._execution.held, self._role),
            UNRECORDED.watch_value(lambda: self._unrecorded, self._role),
            CLOCK_SKEW.watch_value(lambda: self.clock.skew_us / SECOND_US, self._role),
        ]

    async def _step_sweep(self) -> float:
        self.sweep()
        return SWEEP_SECONDS

    async def _watch(self) -> float:
        running = {each.attempt.token: each for each in self._execution.older_than(WATCH_SECONDS)}
        self.held_leases.running = [
            (each.attempt.lease_id, token[1], each.started_at) for token, each in running.items()
        ]
        await self._tell_progress()
        waiting = self._execution.waiting_tokens(WATCH_SECONDS)
        over = await self._source.ended_elsewhere(running.keys() | waiting)
        if over:
            self._execution.halt([running[token] for token in over if token in running], Stop.LOST)
            for attempt in self._execution.take_over(over):
                self._gone(attempt)
        return WATCH_SECONDS

    async def _tell_progress(self) -> None:
        if (texts := self._execution.progress()) and texts != self._progress:
            await self._source.note_progress(texts)
            self._progress = texts

    async def _let_go(self, grace: timedelta) -> None:
        self._put_back_all(self._execution.take_waiting())
        if not self._execution.idle.is_set():
            seconds, held = grace.total_seconds(), self._execution.held
            it = "it" if held == 1 else "them"
            logger.info("waiting for %s, at most %g s; Ctrl-C again to hand %s back", counted(held, "run"), seconds, it)
            await _any_within((self._execution.idle, self._hurried), seconds)
        if not self._execution.idle.is_set():
            logger.info("handing back %s", counted(self._execution.held, "run"))
            self._execution.halt_all(Stop.HANDED_BACK)
            await self._execution.idle.wait()  # the sweep ends them

    async def _finish_requests(self) -> None:
        try:
            async with asyncio.timeout(LAST_REQUESTS_SECONDS):
                await self._source.hand_over_rest()
                self._put_back_all(self._execution.take_waiting())
                await self.put_backs.drain()
                await self.hand_overs.drain()
                await self.recorder.drain()
        except TimeoutError:
            logger.error("%d outcomes could not be recorded; their attempts will be lost", self._unrecorded)  # noqa: TRY400 - how it came to that was logged

    async def _briefly(self, *ends: Coroutine[Any, Any, None]) -> None:
        """Wait for these, but not for long: what has not ended by then is cancelled."""
        tasks = [asyncio.create_task(end) for end in ends]
        _, late = await asyncio.wait(tasks, timeout=3 * STOP_SECONDS)
        for task in late:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                logger.warning("%s stops in spite of this: %r", self.name, result)


def unique_name(base: str) -> str:
    """A name that no process had before: what an earlier process of this name has leased must run out."""
    return f"{_NOT_IN_NAMES.sub('-', base)[:80]}-{os.getpid()}-{secrets.token_hex(4)}"


def deferral_of(attempt: Attempt) -> timedelta:
    """How long an attempt waits that could not be started, by how often that was so before."""
    return deferral_delay(RunKey(attempt.job_id, to_us(attempt.fire_at)), attempt.deferrals)


def _unstarted(attempt: Attempt, outcome: NotStarted) -> UnstartedAttempt:
    """What its handler did not begin comes again when the handler said, else after a growing while."""
    if outcome.wait is not None:
        # Counted once: it is known that it was put back before, and a later deferral waits hardly longer for it.
        return UnstartedAttempt(attempt, outcome.error, outcome.wait, is_deferral=not attempt.deferrals)
    return UnstartedAttempt(attempt, outcome.error, deferral_of(attempt), is_deferral=True)


def _slots(handlers: Registry, concurrency: int, threads: int) -> int:
    """How many attempts can run at once, given what kinds of handlers there are; without any, none is leased."""
    kinds = handlers.kinds()
    return (concurrency if True in kinds else 0) + (threads if False in kinds else 0)


def _handler(attempt: Attempt) -> str:
    return attempt.handler or ""


async def _any_within(events: Iterable[asyncio.Event], seconds: float) -> None:
    """Return when one of these is set, or after so long."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
