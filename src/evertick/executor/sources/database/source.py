"""The source of workers and dispatchers: attempts from the lanes of the database, outcomes into its tables.

Leasing is a loop of its own (`leasing`): as much as is done in about a second; over a slow line also what ends
during its round trips, with several leases under way. Outcomes are recorded with the retries that follow, in one
statement for thousands of them, on connections that leasing does not use.
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any, TypeAlias, assert_never

from evertick.domain.attempt import (
    SUCCEEDED,
    Attempt,
    Deferred,
    Failed,
    HandedOver,
    NotRecorded,
    NotStarted,
    Succeeded,
    Token,
)
from evertick.domain.retry import Ended, GiveUp, NextStep, Retry
from evertick.domain.serving import AppVersion
from evertick.domain.states import Outcome
from evertick.executor.held_leases import HeldLease
from evertick.executor.source import Consumer, EndedAttempt, RecordFailure, UnstartedAttempt
from evertick.executor.sources.database.leasing import Leasing
from evertick.executor.sources.database.pace import CompletionRate, Pace, RoundTrip
from evertick.executor.sources.database.queues import QueueSelection
from evertick.runtime import timeouts
from evertick.runtime.clock import monotonic_us
from evertick.runtime.gates import Gates
from evertick.runtime.loop import Loop
from evertick.runtime.queue_rates import QueueRates
from evertick.runtime.rate_buckets import open_buckets
from evertick.runtime.rate_slices import RateSlices
from evertick.runtime.recent_rate import RecentRate
from evertick.runtime.retry_decision import is_last_try, next_step
from evertick.runtime.wakeups import Listener, Notifier
from evertick.store.database import (
    Pool,
    Session,
    Timeouts,
    connect,
    is_transient,
    open_pool,
    reason_of,
    was_conflict,
)
from evertick.store.engine import consumers, lanes, outcomes, workers
from evertick.store.engine.consumers import HandOver
from evertick.store.engine.lanes import Leased, PutBack, queue_of
from evertick.store.engine.outcomes import Ending
from evertick.store.engine.wakeups import READY
from evertick.store.engine.workers import Announcement
from evertick.store.location import DatabaseAddress
from evertick.version import __version__

logger = logging.getLogger("evertick.worker")

LEASE_TIME = timedelta(seconds=30)
MAX_OUTCOMES = 8192
"""In one statement."""
MAX_OUTPUT_BYTES = 8_388_608
"""The same, of what handlers returned."""
CONNECTIONS = 8
RECORDING_CONNECTIONS = 2  # whatever leasing waits for, outcomes get through
LEASES_AHEAD = 2
"""How many more leases may be under way over a slow line."""
LEASES_BESIDE = 3
"""How many leases for tenants of which nothing is here may be under way beside others."""
STOP_SECONDS = 2.0
"""How long the end of leasing waits for a statement that is under way."""
UNREAD_PAUSE_SECONDS = 0.25
_Columns: TypeAlias = tuple[str, int | None, str | None, str | None, str | None, NextStep]
"""Result, code, error, excerpt, output, and what follows."""
_SUCCESS = Outcome.SUCCESS.value
_PLAIN_SUCCESS: _Columns = (_SUCCESS, None, None, None, None, None)
_AT_ONCE = timedelta(0)
_DATA_CLASSES = frozenset({"22", "23", "54"})
"""Of SQLSTATEs: data exceptions, constraint violations, limits of the server."""


class DatabaseSource:
    """Leases from the selected queues, on a pool of its own."""

    max_outcomes = MAX_OUTCOMES
    max_output_bytes = MAX_OUTPUT_BYTES
    marks_starts = True
    drops_expired = False  # the database may be away for everyone

    def __init__(  # noqa: PLR0913 - where it leases, and for whom
        self,
        url: DatabaseAddress,
        queues: QueueSelection,
        *,
        lease_time: timedelta = LEASE_TIME,
        redis_url: str | None = None,
        app_version: AppVersion | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url = url
        self._app_version = app_version
        self._redis_url = redis_url
        self._queues = queues
        self._lease_time = lease_time
        self._monotonic = monotonic
        self._round_trip = RoundTrip()
        self._listener: Listener | None = None
        self._heartbeat_session: Session | None = None
        self._announce_from = -math.inf
        self._is_started = False

    @property
    def heartbeat_seconds(self) -> float:
        return self._lease_time.total_seconds() / 3

    @property
    def heartbeat_timeout_seconds(self) -> float:
        return self.heartbeat_seconds

    def loop(
        self, name: str, step: Callable[[], Awaitable[float]], longest_pause: Callable[[], float] | None = None
    ) -> Loop:
        return Loop(name, step, longest_pause=longest_pause)

    async def open(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._worker = consumer.name
        self._finished = RecentRate(lambda: consumer.ended, self._monotonic)
        self._slots = consumer.slots
        consumer.held_leases.seconds = self._lease_time.total_seconds()
        async with AsyncExitStack() as undo:
            self.pool = await self._open_pool(undo, "lease", CONNECTIONS, timeouts.LEASE)
            waits = timeouts.record(self._lease_time)
            self._recording = await self._open_pool(undo, "record", RECORDING_CONNECTIONS, waits)
            buckets = await undo.enter_async_context(open_buckets(self.pool, self._redis_url))
            await self._observe_clock()
            self._opened = undo.pop_all()
        self.rate_slices = RateSlices(buckets, monotonic=self._monotonic)
        self._notifier = Notifier(self.pool)
        self._gates = Gates(self.pool, self._notifier.put_back)
        self._pace = Pace(self._slots)
        self._leasing = Leasing(
            self.pool,
            self._queues,
            consumer,
            lease_time=self._lease_time,
            pace=self._pace,
            round_trip=self._round_trip,
            rate=CompletionRate(self._round_trip, self._monotonic),
            queue_rates=QueueRates(self.rate_slices),
            monotonic=self._monotonic,
        )
        self._lease_loop = Loop("lease", self._leasing.step)
        self._beside_loops = [Loop(f"lease beside {n}", self._leasing.step_beside) for n in range(LEASES_BESIDE)]
        self._ahead_loops = [Loop(f"lease ahead {n}", self._leasing.step_ahead) for n in range(LEASES_AHEAD)]

    def start(self) -> None:
        self._is_started = True
        self._notifier.start()
        for loop in (self._lease_loop, *self._beside_loops, *self._ahead_loops, self._gates.loop):
            loop.start()
        self._listener = Listener(self._url, self._heard, READY)
        self._listener.start()

    async def lease(self, most: int, lane_ids: Collection[int] | None = None) -> int:
        if lane_ids is None:
            self._leasing.look_again()
        return await self._leasing.lease(most, lane_ids)

    def freed(self, held: int) -> None:
        if held < self._slots or 2 * held <= self._pace.size:
            self._lease_loop.wake()
            if self._round_trip.is_slow:
                for loop in self._ahead_loops:
                    loop.wake()

    async def stop_leasing(self) -> None:
        listeners = [] if self._listener is None else [self._listener.stop()]
        loops = (self._lease_loop, *self._beside_loops, *self._ahead_loops)
        await asyncio.gather(*listeners, *(loop.stop(STOP_SECONDS) for loop in loops))

    async def hand_over_rest(self) -> None:
        """What was leased and could not be read yet can be put back when it is known what it is."""
        while self._leasing.has_unread:
            try:
                await self._leasing.read_again()
            except Exception as error:  # noqa: BLE001 - there is time for more tries
                logger.info("what was leased last could not be read: %s", reason_of(error))
                await asyncio.sleep(UNREAD_PAUSE_SECONDS)

    async def close(self) -> None:
        if self._is_started:
            await self._gates.loop.stop(STOP_SECONDS)
            await self._notifier.stop()
        await asyncio.gather(self.pool.close(), self._recording.close())
        await self._opened.aclose()

    def queue_name(self, attempt: Attempt) -> str:
        return self._queues.name_of(queue_of(attempt.token[0]))

    def is_last_try(self, attempt: Attempt) -> bool:
        leased: Any = attempt  # a `Leased`: this source handed it out
        return is_last_try(leased.retry, leased.attempt)

    async def mark_started(self, attempts: Sequence[Attempt]) -> set[Token]:
        return await lanes.mark_started(self.pool, self._worker, [(each.lease_id, each.token[1]) for each in attempts])

    async def record(self, ended: Sequence[EndedAttempt], done_leases: Sequence[int]) -> NotRecorded:
        endings = [_ending_of(each) for each in ended]
        recorded = await outcomes.record(self._recording, self._worker, endings, done_leases, left=self._gates.note)
        if due := [
            each.job_id
            for each in endings
            if type(each.then) is Retry and (each.lane_id, each.seq) not in recorded.busy
        ]:
            self._notifier.timers(due)
        if self._leasing.is_capped:
            self._lease_loop.wake()
        left = recorded.stale | recorded.busy
        if dead := [
            token for each in endings if type(each.then) is GiveUp and (token := (each.lane_id, each.seq)) not in left
        ]:
            self._consumer.died(dead)
        return recorded

    def failure_of(self, error: Exception) -> RecordFailure:
        if was_conflict(error):
            return RecordFailure.LOCKED
        if is_transient(error):
            return RecordFailure.UNKNOWN
        sqlstate = getattr(error, "sqlstate", None)
        if isinstance(sqlstate, str):
            return RecordFailure.UNSTORABLE if sqlstate[:2] in _DATA_CLASSES else RecordFailure.REFUSED
        # The driver could not even send it.
        return RecordFailure.UNSTORABLE if isinstance(error, ValueError | OverflowError) else RecordFailure.UNKNOWN

    async def put_back(self, unstarted: Sequence[UnstartedAttempt]) -> None:
        gone = await lanes.put_back(self.pool, self._worker, [_put_back_of(each) for each in unstarted])
        self._leasing.put_back(each.attempt.token for each in unstarted)
        if gone:
            logger.info("%d attempts that were to be put back belong to others already", len(gone))
        if at_once := {queue_of(each.attempt.token[0]) for each in unstarted if each.delay <= _AT_ONCE}:
            self._notifier.put_back(at_once)

    async def hand_over(self, attempts: Sequence[Attempt]) -> None:
        published = [HandOver(*each.token, each.tenant_id, each.timeout_seconds) for each in attempts]
        await consumers.hand_over(self._recording, self._worker, published)

    async def ended_elsewhere(self, tokens: Collection[Token]) -> set[Token]:
        await self._observe_clock()
        return set(await lanes.ended_elsewhere(self.pool, sorted(tokens))) if tokens else set()

    async def note_progress(self, texts: Mapping[Token, str]) -> None:
        await lanes.note_progress(self.pool, self._worker, texts)

    def forget(self, lease_ids: Collection[int]) -> None:
        """The database knows."""

    async def extend(self, leases: Sequence[HeldLease]) -> set[int]:
        mine = [lease.lease_id for lease in leases]
        running = self._consumer.held_leases.running
        return await lanes.extend(await self._connected(), self._worker, self._lease_time, mine, running)

    async def announce(self) -> None:
        now = self._monotonic()
        if now < self._announce_from:
            return  # a hurried heartbeat
        app, digest = self._app_version or (None, None)
        served = Announcement(
            self._worker,
            self._consumer.role,
            __version__,
            self._queues.names,
            self._consumer.handler_names if self._queues.has_handlers else None,
            self._queues.tenant_id,
            app,
            digest,
            self._finished.per_second(),
        )
        await workers.announce(await self._connected(), served, self._lease_time)
        self._announce_from = now + self.heartbeat_seconds / 2

    async def leave(self) -> None:
        if self._heartbeat_session is not None and not self._heartbeat_session.is_closed():
            await workers.leave(self._heartbeat_session, self._worker)

    async def hang_up(self) -> None:
        session, self._heartbeat_session = self._heartbeat_session, None
        if session is not None and not session.is_closed():
            session.terminate()

    async def _connected(self) -> Session:
        """The heartbeat's own connection."""
        if self._heartbeat_session is None or self._heartbeat_session.is_closed():
            waits = timeouts.lease_heartbeat(self._lease_time)
            self._heartbeat_session = await connect(self._url, timeouts=waits)
        return self._heartbeat_session

    async def _open_pool(self, undo: AsyncExitStack, purpose: str, connections: int, waits: Timeouts) -> Pool:
        pool = await open_pool(self._url, max_size=connections, timeouts=waits, purpose=purpose)
        undo.callback(pool.terminate)
        return pool

    async def _observe_clock(self) -> None:
        asked, asked_us = time.monotonic(), monotonic_us()
        self._consumer.clock.observe(await lanes.clock(self.pool), asked_us)
        self._round_trip.note(time.monotonic() - asked)

    def _heard(self, _: str, lane_ids: frozenset[int] | None) -> None:
        if self._leasing.hear(lane_ids):
            self._lease_loop.wake()
            for loop in self._beside_loops:
                loop.wake()


def _ending_of(ended: EndedAttempt) -> Ending:
    """The row of an outcome, with what follows by the job's policy."""
    attempt, outcome, started_at, finished_at, leased_at = ended
    leased: Any = attempt  # a `Leased`: this source handed it out
    if outcome is SUCCEEDED:
        result, code, error, excerpt, output, then = _PLAIN_SUCCESS
    elif isinstance(outcome, Succeeded):
        result, code, error, excerpt, output, then = _SUCCESS, outcome.code, None, outcome.excerpt, outcome.output, None
    else:
        result, code, error, excerpt, output, then = _columns_of(leased, outcome)
    return Ending(
        leased.lane_id,
        leased.seq,
        leased.job_id,
        leased.fire_at,
        leased.spec_version,
        leased.reason,
        result,
        started_at,
        finished_at,
        code,
        error,
        excerpt,
        output,
        then,
        leased.is_listed,
        leased_at,
    )


def _columns_of(leased: Leased, outcome: Failed | Deferred | NotStarted | HandedOver) -> _Columns:
    match outcome:
        case Failed(error, result, code, excerpt, retryable, wait):
            then = next_step(
                leased.retry, leased.job_id, leased.fire_at, Ended(result, leased.attempt, retryable, wait)
            )
            return result.value, code, error, excerpt, None, then
        case Deferred(error):
            deferred = Ended(Outcome.DEFERRED, leased.attempt)
            then = next_step(leased.retry, leased.job_id, leased.fire_at, deferred)
            return Outcome.DEFERRED.value, None, error, None, None, then
        case NotStarted():
            raise AssertionError("what was not started is put back, not recorded")
        case HandedOver():
            raise AssertionError("what was handed over has no outcome yet")
        case _:
            assert_never(outcome)


def _put_back_of(unstarted: UnstartedAttempt) -> PutBack:
    attempt = unstarted.attempt
    deferrals = attempt.deferrals + unstarted.is_deferral
    return PutBack(*attempt.token, attempt.handler or "", unstarted.delay, deferrals)
