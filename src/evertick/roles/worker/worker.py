"""The worker: leases ready attempts, runs their handlers in this process, records how they ended.

Duty: an attempt that was leased is run once, within its timeout, and its outcome recorded soon after; or it is given
back before anything of it was done.

Invariants: a handler is only called under a lease that has not run out. An outcome stays here until the database has
answered for it. A lease is let go in the statement that records its last open attempt, never before.

Steps, each a loop of its own:
1. lease: whenever there is room, and at least each second or when woken. As much as is done in about a second.
2. execute: async handlers as tasks on this loop, the others in threads; the sweep stops those over their time, and all
   whose lease is lost.
3. record: all endings that gathered meanwhile, in one statement, with the retries that follow.
4. heartbeat: extends the leases from a thread with its own connection, so that a handler which blocks the loop keeps
   its lease; but not for longer than that handler's timeout.
5. watch: each second asks which of the longer attempts were ended by others (cancelled), and stops them.

Crash: the leases run out, the reaper records their open attempts as lost, and they are retried. Slow database: endings
gather into larger batches, and leasing waits while too many are unrecorded. Lost database: recording is tried again
until it works; handlers go on until their lease runs out. Lost lease (the process stood still, the database was away
for too long): its handlers are cancelled and what they come to is not recorded, for others have the attempt. Stop:
leasing ends, what was not started is handed back at once, and so is what still runs after the grace; neither counts as
a try.
"""

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Sequence
from datetime import timedelta

from evertick.roles.worker import endings
from evertick.roles.worker.execution import Execution
from evertick.roles.worker.figures import Figures
from evertick.roles.worker.handlers import Handlers
from evertick.roles.worker.heartbeat import Heartbeat
from evertick.roles.worker.holdings import Holdings
from evertick.roles.worker.intake import Intake
from evertick.roles.worker.pace import Pace
from evertick.roles.worker.recorder import MOST, Recorder
from evertick.roles.worker.running import Stop
from evertick.runtime import patience
from evertick.runtime.clock import Clock, DatabaseClock, now_of
from evertick.runtime.loop import Loop
from evertick.runtime.wakeups import Ear, Notifier
from evertick.store import lanes
from evertick.store.database import Pool, close_pool, open_pool
from evertick.store.lanes import Leased
from evertick.store.outcomes import Ending
from evertick.store.wakeups import READY

logger = logging.getLogger("evertick.worker")

CONCURRENCY = 100
THREADS = min(32, (os.cpu_count() or 1) + 4)
LEASE_TIME = timedelta(seconds=30)
GRACE = timedelta(seconds=30)
CONNECTIONS = 6
RECORDING_CONNECTIONS = 2  # whatever leasing waits for, outcomes get through
SWEEP_SECONDS = 0.25
WATCH_SECONDS = 1.0
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
        clock: Clock | None = None,
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
        self._slots = _slots(handlers, concurrency, threads)
        self._holdings = Holdings(lease_time)
        self._execution = Execution(handlers, self.clock, self._ended, concurrency=concurrency, threads=threads)
        self._heartbeat = Heartbeat(url, self.name, self._holdings, lease_time, pooler=pooler)
        self._ear: Ear | None = None

    async def open(self) -> None:
        """Connect, and put the parts together; nothing runs yet."""
        self._pool = await open_pool(self._url, max_size=CONNECTIONS, pooler=self._pooler, patience=patience.LEASE)
        try:
            self._recording = await open_pool(
                self._url, max_size=RECORDING_CONNECTIONS, pooler=self._pooler, patience=patience.RECORD
            )
            self.clock.observe(await lanes.clock(self._pool))
        except BaseException:
            self._pool.terminate()
            raise
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
        for loop in (self._sweep_loop, self._watch_loop, self._lease_loop):
            loop.start()
        if not self._pooler:
            self._ear = Ear(self._url, self._heard, READY)
            self._ear.start()
        logger.info("worker %s started on %s", self.name, ", ".join(self._queues))

    async def stop(self, grace: timedelta = GRACE) -> None:
        """Lease no more, let what runs finish within the grace, hand back the rest, record everything, and end."""
        if self._ear is not None:
            await self._ear.stop()
        await self._lease_loop.stop()
        await self._let_go(grace)
        await self._say_last_words()
        await self._recorder.stop()
        for loop in (self._sweep_loop, self._watch_loop):
            await loop.stop()
        await self._heartbeat.stop()
        try:
            await self._notifier.stop()
        finally:
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
            await self._recorder.flush()
        return leased

    def _assemble(self, pool: Pool) -> None:
        self._notifier = Notifier(pool)
        self._recorder = Recorder(self._recording, self.name, self.figures, following=self._notifier.timers)
        self._pace = Pace(self._slots)
        self._intake = Intake(
            pool,
            self.name,
            self._queues,
            self._tenant_id,
            lease_time=self._lease_time,
            holdings=self._holdings,
            pace=self._pace,
            room=self._room,
            taken=self._taken,
        )
        self._lease_loop = Loop("lease", self._intake.step)
        self._sweep_loop = Loop("sweep", self._step_sweep)
        self._watch_loop = Loop("watch", self._watch)

    def _room(self, size: int) -> int:
        """How many attempts to lease now, at a pace of `size`: to fill half-empty hands, or else each free slot."""
        if len(self._recorder) > 2 * MOST or self._execution.is_stuck:
            return 0
        held = self._execution.held
        return size - held if held <= size // 2 else self._slots - held - self._execution.written_off

    def _taken(self, attempts: Sequence[Leased]) -> None:
        self.figures.leased += len(attempts)
        for leased in attempts:
            if leased.is_over:
                self._ended(leased, None)
        self._execution.add(leased for leased in attempts if not leased.is_over)

    def _ended(self, leased: Leased, ending: Ending | None) -> None:
        done_lease = self._holdings.end(leased.lease_id)
        if ending is not None:
            self.figures.count(ending)
            self._recorder.add(ending, done_lease)
        elif done_lease is not None:
            self._recorder.release(done_lease)
        if self._execution.held < self._slots or 2 * self._execution.held <= self._pace.size:
            self._lease_loop.wake()

    def _sweep(self) -> None:
        self._heartbeat.alive()
        if lost := self._holdings.drop_lost():
            logger.warning("%d leases of %s ran out: their attempts are others' now", len(lost), self.name)
            self.figures.lost += self._execution.drop(lost)
        self._execution.sweep()
        now_at = now_of(self.clock)
        for leased in self._execution.take_stranded():
            self._ended(leased, endings.handed_back(leased, None, now_at))

    async def _step_sweep(self) -> float:
        self._sweep()
        return SWEEP_SECONDS

    async def _watch(self) -> float:
        self.clock.observe(await lanes.clock(self._pool))
        running = {each.token: each for each in self._execution.older_than(WATCH_SECONDS)}
        waiting = self._execution.waiting_tokens()
        if running or waiting:
            over = await lanes.ended_elsewhere(self._pool, sorted(running.keys() | waiting))
            self._execution.halt((running[token] for token in over if token in running), Stop.LOST)
            for leased in self._execution.take_over(set(over)):
                self._ended(leased, None)
        return WATCH_SECONDS

    async def _let_go(self, grace: timedelta) -> None:
        now_at = now_of(self.clock)
        for leased in self._execution.take_waiting():
            self._ended(leased, endings.handed_back(leased, None, now_at))
        if not await _set_within(self._execution.idle, grace.total_seconds()):
            self._execution.halt_all(Stop.HANDED_BACK)
            await self._execution.idle.wait()  # the sweep sees to it

    async def _say_last_words(self) -> None:
        try:
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                await self._recorder.drain()
        except TimeoutError:
            logger.error("%d outcomes could not be recorded; their attempts will be lost", len(self._recorder))  # noqa: TRY400 - how it came to that was logged

    def _heard(self, _: str, lane_ids: frozenset[int] | None) -> None:
        if self._intake.hear(lane_ids):
            self._lease_loop.wake()


def _slots(handlers: Handlers, concurrency: int, threads: int) -> int:
    """How many attempts can run at once, given what kinds of handlers there are; without any, none is leased."""
    kinds = {handler.is_async for handler in handlers.values()}
    return (concurrency if True in kinds else 0) + (threads if False in kinds else 0)


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
