"""The worker: leases ready attempts, runs their handlers in this process, records how they ended.

Duty: an attempt that was leased is run once, within its timeout, and its outcome recorded soon after; or it is put back
before anything of it was done.

Invariants: a handler is only called under a lease that has not run out by the monotonic clock at that moment. An
outcome stays here until the database has answered for it. A lease is let go in the statement that records its last open
attempt, never before. What was not started leaves no outcome and counts as no try.

Steps, each a loop of its own:
1. lease: whenever there is room, and at least each second or when woken. As much as is done in about a second; over a
   slow line so much more as ends during its round trips, with several leases under way. Ranges that cannot be read are
   held and read again. Attempts that were put back come along, if their handler is here.
2. execute: async handlers as tasks on this loop, the others in threads; the sweep stops those over their time, and all
   whose lease is lost. An attempt whose loss would mean a dead letter has its start marked first.
3. record: all endings that gathered meanwhile, in one statement, with the retries that follow. What somebody has
   locked, or what cannot be stored, is tried apart and holds up nothing else.
4. put back: what has no handler here, and what was not started when the worker stops.
5. heartbeat: extends the leases from a thread with its own connection, so that a handler which blocks the loop keeps
   its lease; but not for longer than that handler's timeout.
6. watch: each second asks which of the longer attempts were ended by others (cancelled), and stops them.

Crash: the leases run out, the reaper records their open attempts as lost, and they are retried. Slow database: endings
gather into larger batches, and leasing waits while too many are unrecorded. Lost database: recording is tried again
until it works, and nothing is leased once that has lasted for two seconds. Handlers go on past the end of their lease,
but none is started after it, until a heartbeat is answered: what is still ours goes on, what is not is stopped. Lost
lease (the process stood still, the reaper took it): its handlers are cancelled and what they come to is not recorded,
for others have the attempt; what had ended before is recorded by the first writer. Stop: leasing ends, what was not
started is put back at once, and what still runs after the grace is handed back; neither counts as a try. With the
database away it ends all the same, after the grace and `LAST_WORDS_SECONDS`.
"""

import asyncio
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

from evertick.domain.ids import RunKey
from evertick.domain.retry import deferral_delay
from evertick.domain.schedule.instants import to_us
from evertick.roles.worker.execution import Execution
from evertick.roles.worker.figures import Figures
from evertick.roles.worker.handlers import Handlers
from evertick.roles.worker.heartbeat import Heartbeat
from evertick.roles.worker.holdings import Holdings
from evertick.roles.worker.intake import Intake
from evertick.roles.worker.pace import Pace
from evertick.roles.worker.recorder import MOST, Recorder
from evertick.roles.worker.returns import Returns
from evertick.roles.worker.round_trip import RoundTrip, Turnover
from evertick.roles.worker.running import Stop
from evertick.roles.worker.unknown import warn_of_unknown
from evertick.roles.worker.waiting import Waiting
from evertick.runtime import timeouts
from evertick.runtime.clock import Clock, DatabaseClock
from evertick.runtime.loop import Loop
from evertick.runtime.wakeups import Listener, Notifier
from evertick.store import lanes
from evertick.store.database import Pool, Timeouts, close_pool, open_pool, reason_of
from evertick.store.lanes import Leased
from evertick.store.outcomes import Ending, Token
from evertick.store.wakeups import READY

logger = logging.getLogger("evertick.worker")

CONCURRENCY = 100
THREADS = min(32, (os.cpu_count() or 1) + 4)
LEASE_TIME = timedelta(seconds=30)
GRACE = timedelta(seconds=30)
CONNECTIONS = 8
RECORDING_CONNECTIONS = 2  # whatever leasing waits for, outcomes get through
LEASES_AHEAD = 2
"""So many more leases may be under way over a slow line."""
SWEEP_SECONDS = 0.25
WATCH_SECONDS = 1.0
STOP_SECONDS = 2.0
"""For so long the worker's end waits for a statement that is under way."""
LAST_WORDS_SECONDS = 30.0
"""For so long a stopping worker tries to reach a database that is away. After that its leases run out by themselves."""


class Worker:
    """One process's worker. `queues` of one tenant, or of all if none is named."""

    def __init__(  # noqa: PLR0913 - where it works and how much
        self,
        url: str,
        handlers: Handlers,
        *,
        queues: Sequence[str] = ("default",),
        tenant_id: int | None = None,
        name: str | None = None,
        concurrency: int = CONCURRENCY,
        threads: int = THREADS,
        lease_time: timedelta = LEASE_TIME,
        pooler: bool = False,
        waiting: Waiting | None = None,
        clock: Clock | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        # Unlike any other that ever was: what an earlier process of this name has leased must run out.
        self.name = f"{name or socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self.figures = Figures()
        self.clock: Clock = clock or DatabaseClock()
        self._url = url
        self._pooler = pooler
        self._lease_time = lease_time
        self._queues = queues
        self._tenant_id = tenant_id
        self._handlers = handlers
        self._monotonic = monotonic
        self._slots = _slots(handlers, concurrency, threads)
        self._ended_count = 0
        self._round_trip = RoundTrip()
        self._turnover = Turnover(self._round_trip, monotonic)
        self._warned: set[str | None] = set()
        self._holdings = Holdings(lease_time)
        self._execution = Execution(
            handlers,
            self.clock,
            self._holdings,
            ended=self._ended,
            refused=self._refused,
            mark=self._mark,
            concurrency=concurrency,
            threads=threads,
            waiting=waiting,
            monotonic=monotonic,
        )
        self._heartbeat = Heartbeat(url, self.name, self._holdings, lease_time, pooler=pooler, monotonic=monotonic)
        self._listener: Listener | None = None

    async def open(self) -> None:
        """Connect, and put the parts together; nothing runs yet."""
        async with AsyncExitStack() as undo:
            self._pool = await self._open_pool(undo, CONNECTIONS, timeouts.LEASE)
            self._recording = await self._open_pool(undo, RECORDING_CONNECTIONS, timeouts.record(self._lease_time))
            await self._look_at_clock()
            undo.pop_all()
        self._assemble(self._pool)

    async def close(self) -> None:
        self._execution.close()
        await asyncio.gather(close_pool(self._pool), close_pool(self._recording))

    async def start(self) -> None:
        """Work until `stop`."""
        await self.open()
        self._heartbeat.start()
        self._notifier.start()
        self._recorder.start()
        self._returns.start()
        for loop in (self._sweep_loop, self._watch_loop, *self._lease_loops):
            loop.start()
        if not self._pooler:
            self._listener = Listener(self._url, self._heard, READY)
            self._listener.start()
        logger.info("worker %s started on %s", self.name, ", ".join(self._queues))

    async def stop(self, grace: timedelta = GRACE) -> None:
        """Lease no more, let what runs finish within the grace, give back the rest, record everything, and end.

        With the database away no statement is waited for longer than `STOP_SECONDS`, and all of them together no longer
        than `LAST_WORDS_SECONDS`.
        """
        self._execution.start_no_more()
        if self._listener is not None:
            await _briefly(self._listener.stop())
        await _briefly(*(loop.stop(STOP_SECONDS) for loop in self._lease_loops))
        await self._let_go(grace)
        await self._say_last_words()
        loops = (self._sweep_loop, self._watch_loop)
        await _briefly(
            *(part.stop(STOP_SECONDS) for part in (self._recorder, self._returns)),
            *(loop.stop(STOP_SECONDS) for loop in loops),
        )
        await self._heartbeat.stop()
        await _briefly(self._notifier.stop())
        await self.close()
        logger.info("worker %s stopped", self.name)

    async def work_off(self) -> int:
        """Lease, run and record until nothing is ready, without loops of its own; returns how many were leased."""
        leased = 0
        self._intake.look_again()
        while self._slots and (count := await self._intake.lease(MOST)):
            leased += count
            while not await _set_within(self._execution.idle, SWEEP_SECONDS):
                self._sweep()
            await self._returns.flush()
            await self._recorder.flush()
        return leased

    async def _open_pool(self, undo: AsyncExitStack, connections: int, waits: Timeouts) -> Pool:
        pool = await open_pool(self._url, max_size=connections, pooler=self._pooler, timeouts=waits)
        undo.callback(pool.terminate)
        return pool

    def _assemble(self, pool: Pool) -> None:
        self._notifier = Notifier(pool)
        self._recorder = Recorder(
            self._recording, self.name, self.figures, following=self._notifier.timers, monotonic=self._monotonic
        )
        self._returns = Returns(pool, self.name, returned=self._returned, notify=self._notifier.put_back)
        self._pace = Pace(self._slots)
        self._intake = self._make_intake(pool)
        self._lease_loops = [Loop("lease", self._intake.step)]
        self._lease_loops += [Loop(f"lease ahead {n}", self._intake.step_ahead) for n in range(LEASES_AHEAD)]
        self._sweep_loop = Loop("sweep", self._step_sweep)
        self._watch_loop = Loop("watch", self._watch)

    def _make_intake(self, pool: Pool) -> Intake:
        return Intake(pool, self.name, self._queues, self._tenant_id, **self._intake_options())

    def _intake_options(self) -> dict[str, Any]:
        return {
            "handlers": sorted(self._handlers),
            "lease_time": self._lease_time,
            "holdings": self._holdings,
            "pace": self._pace,
            "round_trip": self._round_trip,
            "room": self._room,
            "taken": self._taken,
            "released": self._recorder.release,
            "monotonic": self._monotonic,
        }

    def _room(self, size: int, under_way: int) -> int:
        """How many attempts to lease now, at a pace of `size`: to fill half-empty hands, or else each free slot.

        What is under way counts as held. Over a slow line hands count as full only with what ends before more arrives.
        """
        if not self._may_lease:
            return 0
        held = self._execution.held + under_way
        ahead = self._turnover.per_lease
        if held <= size // 2 + ahead:
            return size + ahead - held
        return self._slots - held - self._execution.written_off

    @property
    def _may_lease(self) -> bool:
        unsettled = len(self._recorder) + len(self._returns)
        return unsettled <= 2 * MOST and not self._recorder.is_stalled and not self._execution.is_stuck

    def _taken(self, attempts: Sequence[Leased]) -> None:
        self.figures.leased += len(attempts)
        for leased in attempts:
            if leased.is_over:
                self._ended(leased, None)
        self._execution.add(leased for leased in attempts if not leased.is_over)

    def _refused(self, attempts: list[Leased]) -> None:
        """Put back what no handler is here for: at once, but after a growing while should it come here again."""
        for leased in attempts:
            self._put_back(leased, deferral_of(leased) if leased.deferrals else timedelta(0), is_deferral=True)
        warn_of_unknown(attempts, self._warned, self._intake.queue_name)

    def _put_back(self, leased: Leased, delay: timedelta = timedelta(0), *, is_deferral: bool = False) -> None:
        self.figures.handed_back += 1
        self._returns.add(leased, delay, is_deferral=is_deferral)
        self._lease_if_room()

    def _returned(self, leased: Leased) -> None:
        """It is put back, so the lease that it came with has one attempt less."""
        if (done_lease := self._holdings.end(leased.lease_id)) is not None:
            self._recorder.release(done_lease)

    async def _mark(self, attempts: Sequence[Leased]) -> set[Token]:
        return await lanes.mark_started(self._pool, self.name, [(each.lease_id, each.seq) for each in attempts])

    def _ended(self, leased: Leased, ending: Ending | None) -> None:
        self._ended_count += 1
        done_lease = self._holdings.end(leased.lease_id)
        if ending is not None:
            self.figures.count(ending)
            self._recorder.add(leased, ending, done_lease)
        elif done_lease is not None:
            self._recorder.release(done_lease)
        self._lease_if_room()

    def _lease_if_room(self) -> None:
        if self._execution.held < self._slots or 2 * self._execution.held <= self._pace.size:
            self._lease_loops[0].wake()
            if self._round_trip.is_slow:
                for loop in self._lease_loops[1:]:
                    loop.wake()

    def _sweep(self) -> None:
        self._heartbeat.alive()
        self._turnover.look(self._ended_count)
        self._holdings.keep(self._recorder.stalled_leases)
        if lost := self._holdings.drop_lost():
            count = self._execution.drop(lost)
            self.figures.lost += count
            if count:
                logger.warning("%d attempts of %s are others' now: their leases were lost", count, self.name)
        self._execution.sweep()
        if self._execution.waits_for_leases:
            self._heartbeat.hurry()
        for leased in self._execution.take_stranded():
            self._put_back(leased)

    async def _step_sweep(self) -> float:
        self._sweep()
        return SWEEP_SECONDS

    async def _watch(self) -> float:
        await self._look_at_clock()
        running = {each.token: each for each in self._execution.older_than(WATCH_SECONDS)}
        waiting = self._execution.waiting_tokens()
        if running or waiting:
            over = await lanes.ended_elsewhere(self._pool, sorted(running.keys() | waiting))
            self._execution.halt((running[token] for token in over if token in running), Stop.LOST)
            for leased in self._execution.take_over(set(over)):
                self._ended(leased, None)
        return WATCH_SECONDS

    async def _look_at_clock(self) -> None:
        asked = time.monotonic()
        self.clock.observe(await lanes.clock(self._pool))
        self._round_trip.note(time.monotonic() - asked)

    async def _let_go(self, grace: timedelta) -> None:
        for leased in self._execution.take_waiting():
            self._put_back(leased)
        if not await _set_within(self._execution.idle, grace.total_seconds()):
            self._execution.halt_all(Stop.HANDED_BACK)
            await self._execution.idle.wait()  # the sweep sees to it

    async def _say_last_words(self) -> None:
        try:
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                await self._put_back_unread()
                await self._returns.drain()
                await self._recorder.drain()
        except TimeoutError:
            unsaid = len(self._recorder) + len(self._returns)
            logger.error("%d outcomes could not be recorded; their attempts will be lost", unsaid)  # noqa: TRY400 - how it came to that was logged

    async def _put_back_unread(self) -> None:
        """What was leased and could not be read yet can be put back when it is known what it is."""
        while self._intake.has_unread:
            try:
                await self._intake.read_again()
            except Exception as error:  # noqa: BLE001 - there is time for more tries
                logger.info("what was leased last could not be read: %s", reason_of(error))
                await asyncio.sleep(SWEEP_SECONDS)
            for leased in self._execution.take_waiting():
                self._put_back(leased)

    def _heard(self, _: str, lane_ids: frozenset[int] | None) -> None:
        if self._intake.hear(lane_ids):
            self._lease_loops[0].wake()


def deferral_of(leased: Leased) -> timedelta:
    """How long an attempt waits that could not be started, by how often that was so before."""
    return deferral_delay(RunKey(leased.job_id, to_us(leased.fire_at)), leased.deferrals)


def _slots(handlers: Handlers, concurrency: int, threads: int) -> int:
    """How many attempts can run at once, given what kinds of handlers there are; without any, none is leased."""
    kinds = {handler.is_async for handler in handlers.values()}
    return (concurrency if True in kinds else 0) + (threads if False in kinds else 0)


async def _briefly(*ends: Coroutine[Any, Any, None]) -> None:
    """Wait for these, but not for long: what does not come to its end is cancelled."""
    tasks = [asyncio.create_task(end) for end in ends]
    _, late = await asyncio.wait(tasks, timeout=3 * STOP_SECONDS)
    for task in late:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            logger.warning("the worker stops in spite of this: %s", reason_of(result))


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
