"""The remote worker: runs the same handlers as `App`, on any machine that reaches the HTTP API. It needs no database.

Duty and invariants are those of `roles.worker`, whose execution it uses; only the way to the attempts differs.

Steps, each a loop of its own:
1. lease: a long poll for each queue, whenever there is room.
2. execute: as `roles.worker` does. The sweep stops those over their time, and those that are not ours any more.
3. outcomes: all that gathered meanwhile, in one call. The server decides what follows, by the job's policy.
4. heartbeat: from a thread, naming all that is held; the answer names what was cancelled or lost, and the next sweep
   stops it.

Crash: the leases run out, and the attempts are given to others under larger tokens. Server away: polls, heartbeats and
outcomes are tried again with growing pauses; handlers go on until their lease runs out here. While the server answers
that its database is away (503) they go on past that, since nobody can be given their attempts, but none is started. A
lease is counted from before the request that gave it, so it never ends later here than there. Late outcome: the server
answers that it is stale, and nothing of it counts. Unknown handler: the attempt is handed back, each time for longer.
Stop: polling ends, what was not started is handed back at once, and so is what still runs after the grace; neither
counts as a try.
"""

import asyncio
import itertools
import logging
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

import uvloop

from evertick.client import AsyncClient, Client
from evertick.client.transport import TIMEOUT_SECONDS, place_of
from evertick.contract.target import DEFAULT_QUEUE
from evertick.contract.workers import Lease
from evertick.domain.ids import RunKey
from evertick.domain.retry import deferral_delay
from evertick.domain.schedule.instants import to_us
from evertick.executor.handlers import results
from evertick.executor.execution import Execution
from evertick.executor.counters import Counters
from evertick.executor.held_leases import HeldLeases
from evertick.executor.running import Stop
from evertick.roles.worker.unknown import warn_of_unknown
from evertick.roles.worker.worker import CONCURRENCY, GRACE, SWEEP_SECONDS, THREADS
from evertick.executor.executor import LAST_REQUESTS_SECONDS
from evertick.runtime.clock import DatabaseClock, now_of
from evertick.runtime.logs import set_up_logs
from evertick.runtime.loop import Loop
from evertick.runtime.process import stop_signal
from evertick.sdk.app import App
from evertick.sdk.pull.attempts import RemoteHandlers, leased_at, leased_of, report_of
from evertick.sdk.pull.beginning import Given, handlers_of, register, worker_name
from evertick.sdk.pull.heartbeat import ANSWER_SECONDS, Heartbeat
from evertick.executor.sources.http.polling import LongPoll
from evertick.sdk.pull.reporter import Reporter
from evertick.store.lanes import Leased
from evertick.store.outcomes import Ending

logger = logging.getLogger("evertick.worker")

REMEMBERED_REFUSALS = 10_000


class Worker:
    """Runs an app's handlers, or given ones, for a server elsewhere.

    Without a URL or key of its own it uses EVERTICK_URL and EVERTICK_API_KEY; the key's role is `worker`. It draws from
    `queues`, by default the app's. Jobs that the app declares are put too if the key may do so (`admin`).
    """

    def __init__(  # noqa: PLR0913 - what it runs, for whom and how much
        self,
        app_or_handlers: Given,
        url: str | None = None,
        api_key: str | None = None,
        *,
        queues: Sequence[str] | None = None,
        concurrency: int | None = None,
        threads: int | None = None,
        name: str | None = None,
    ) -> None:
        app = app_or_handlers if isinstance(app_or_handlers, App) else None
        handlers = handlers_of(app_or_handlers)
        self.name = worker_name(name or socket.gethostname())
        self.figures = Counters()
        self.queues = tuple(queues or (app.shape.queue if app else DEFAULT_QUEUE,))
        self._app = app
        self._place = place_of(url, api_key, TIMEOUT_SECONDS, retries=0)
        tasks = concurrency or (app.shape.concurrency if app else CONCURRENCY)
        crew = threads or (app.shape.threads if app else THREADS)
        kinds = {handler.is_async for handler in handlers.values()}
        self._slots = (tasks if True in kinds else 0) + (crew if False in kinds else 0)
        self._clock = DatabaseClock()
        self._holdings = HeldLeases(timedelta(0))
        self._tokens: dict[int, str] = {}
        self._numbers = itertools.count(1)
        self._warned: set[str | None] = set()
        self._refusals: dict[RunKey, int] = {}
        self._handlers = RemoteHandlers(handlers)
        self._names = sorted(handlers)
        self._execution = Execution(
            self._handlers,
            self._clock,
            self._holdings,
            ended=self._ended,
            refused=self._refused,
            concurrency=tasks,
            threads=crew,
        )

    def run(self) -> None:
        """Work until SIGTERM or Ctrl-C."""
        if not logging.getLogger().handlers:
            set_up_logs()
        uvloop.run(self.serve())

    async def serve(self) -> None:
        """`run`, on a loop that runs already."""
        with stop_signal() as stopping:
            async with self.running():
                await stopping.wait()

    @asynccontextmanager
    async def running(self, grace: timedelta = GRACE) -> AsyncIterator["Worker"]:
        """The worker at work, for as long as the block lasts."""
        await self.start()
        try:
            yield self
        finally:
            await self.stop(grace)

    async def start(self) -> None:
        """Work until `stop`. ApiError: the server cannot be reached, or does not take the key."""
        place = self._place
        self._client = AsyncClient(place.url, place.api_key, retries=0)
        try:
            await self._client.workers.heartbeat(self.name)
            await register(self._client, self._app)
        except BaseException:
            await self._client.close()
            raise
        self._beating = Client(place.url, place.api_key, timeout=ANSWER_SECONDS, retries=0)
        self._reporter = Reporter(self._client, self.name, self.figures)
        self._heartbeat = Heartbeat(self._beating, self.name, self._holdings, self._tokens, self._reporter.tokens)
        self._sweep_loop = Loop("sweep", self._sweep)
        self._pullers = [
            LongPoll(self._client, queue, self.name, handlers=self._names, room=self._room, taken=self._taken)
            for queue in self.queues
            if self._slots
        ]
        self._heartbeat.start()
        self._reporter.start()
        self._sweep_loop.start()
        for puller in self._pullers:
            puller.start()
        logger.info("remote worker %s started on %s", self.name, ", ".join(self.queues))

    async def stop(self, grace: timedelta = GRACE) -> None:
        """Lease no more, let what runs finish within the grace, hand back the rest, tell everything, and end."""
        self._execution.start_no_more()
        await asyncio.gather(*(puller.stop() for puller in self._pullers))
        await self._let_go(grace)
        try:
            async with asyncio.timeout(LAST_REQUESTS_SECONDS):
                await self._reporter.drain()
        except TimeoutError:
            logger.error("%d outcomes could not be told; their attempts will be lost", len(self._reporter))  # noqa: TRY400 - how it came to that was logged
        await self._reporter.stop()
        await self._sweep_loop.stop()
        await asyncio.to_thread(self._heartbeat.stop)
        self._beating.close()
        self._execution.close()
        await self._client.close()
        logger.info("remote worker %s stopped", self.name)

    def _room(self) -> int:
        free = self._slots - self._execution.held - self._execution.written_off
        if len(self._reporter) > 2 * self._slots or free <= 0:
            return 0
        return max(1, free // len(self.queues))

    def _taken(self, lease: Lease, asked: float) -> None:
        for at in map(leased_at, lease.attempts):
            if at is not None:
                self._clock.observe(at)
        now_at = now_of(self._clock)
        attempts = [leased_of(each, next(self._numbers), now_at) for each in lease.attempts]
        self._tokens |= {each.lease_id: given.token for each, given in zip(attempts, lease.attempts, strict=True)}
        for held in self._holdings.add(attempts, asked):
            held.expires = asked + lease.lease_seconds
        self._heartbeat.lasts(lease.lease_seconds)
        self.figures.leased += len(attempts)
        self._execution.add(attempts)

    def _ended(self, leased: Leased, ending: Ending | None) -> None:
        self._holdings.end(leased.lease_id)
        self._tokens.pop(leased.lease_id, None)
        if ending is not None:
            self.figures.count(ending)
            self._reporter.add(report_of(ending))
        for puller in self._pullers:
            puller.wake()

    def _refused(self, attempts: list[Leased]) -> None:
        """Hand back what no handler is here for, each time for longer."""
        now_at = now_of(self._clock)
        for leased in attempts:
            run = RunKey(leased.job_id, to_us(leased.fire_at))
            wait = deferral_delay(run, self._refusals.get(run, 0))
            if len(self._refusals) >= REMEMBERED_REFUSALS:
                self._refusals.clear()
            self._refusals[run] = self._refusals.get(run, 0) + 1
            self._ended(leased, results.refused(leased, now_at, self._handlers.unknown(leased.handler), wait))
        warn_of_unknown(attempts, self._warned, lambda _: ", ".join(self.queues))

    async def _sweep(self) -> float:
        self._heartbeat.alive()
        if lost := self._holdings.drop_lost(None if self._heartbeat.is_put_off else time.monotonic()):
            logger.warning("%d attempts are not this worker's any more: cancelled, or not kept in time", len(lost))
            for number in lost:
                self._tokens.pop(number, None)
            self.figures.lost += self._execution.drop(lost)
        self._execution.sweep()
        self._hand_back(self._execution.take_stranded())
        return SWEEP_SECONDS

    def _hand_back(self, attempts: list[Leased]) -> None:
        """Hand back what was not started."""
        now_at = now_of(self._clock)
        for leased in attempts:
            self._ended(leased, results.handed_back(leased, None, now_at))

    async def _let_go(self, grace: timedelta) -> None:
        self._hand_back(self._execution.take_waiting())
        try:
            async with asyncio.timeout(grace.total_seconds()):
                await self._execution.idle.wait()
        except TimeoutError:
            self._execution.halt_all(Stop.HANDED_BACK)
            await self._execution.idle.wait()  # the sweep sees to it
