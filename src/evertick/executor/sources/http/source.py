"""The source of remote workers: attempts by long polls of the HTTP API, outcomes to it. It needs no database.

Each attempt is a lease of its own here, for each may be lost alone. The server decides what follows an outcome, by the
job's policy, and marks the start of last tries when it leases them.

Server away: polls, heartbeats and outcomes are tried again with growing pauses, and a handler is stopped when its lease
has run out here. While the server answers that its database is away (503) handlers go on past that, since nobody can be
given their attempts, but none is started. A lease is counted from before the request that gave it, so it never ends
later here than there. The heartbeat names all that is held, even what has ended and is not recorded yet: a lease whose
answer got lost is not among that, and has to run out.
"""

import asyncio
import itertools
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from typing import assert_never

import msgspec

from evertick.client import ApiError, AsyncClient, Invalid
from evertick.client.request import encode
from evertick.contract.workers import (
    MAX_PROGRESS_TEXTS,
    Heartbeat,
    Lease as LeaseAnswer,
    LeasedAttempt,
    OutcomeReport,
    Recorded,
)
from evertick.domain.attempt import Attempt, Deferred, Failed, HandedOver, NotRecorded, NotStarted, Succeeded, Token
from evertick.domain.ids import Prefix, RunKey, format_token, parse_id, parse_token
from evertick.domain.schedule.instants import to_us
from evertick.domain.states import Outcome
from evertick.executor.held_leases import HeldLease
from evertick.executor.source import Consumer, EndedAttempt, RecordFailure, UnstartedAttempt
from evertick.executor.sources.http.polling import LongPoll
from evertick.runtime.clock import now_of
from evertick.runtime.loop import Loop, Unavailable

logger = logging.getLogger("evertick.worker")

MAX_OUTCOMES = 100
"""In one call: with the longest errors, still well within what the server reads."""
MAX_OUTPUT_BYTES = 262_144
"""The same, of what handlers returned."""
MAX_POLL_SECONDS = 20.0
MAX_TOKENS = 10_000
MAX_REMEMBERED_DEFERRALS = 10_000
MAX_HEARTBEAT_SECONDS = 5.0
"""A cancelled run goes on for at most that long."""
MIN_HEARTBEAT_SECONDS = 0.05
HEARTBEAT_TIMEOUT_SECONDS = 10.0
LONGEST_BACKOFF = 15.0
LONGEST_WAIT = timedelta(days=1)
_UNAVAILABLE = 503


@dataclass(frozen=True, slots=True)
class RemoteAttempt:
    """An attempt as the server gave it."""

    token: Token
    lease_id: int
    job_id: int
    name: str
    fire_at: datetime
    reason: str
    attempt: int
    deferrals: int
    handler: str | None
    payload: str | None
    timeout_seconds: int
    idempotency_key: str
    tenant_id: int = 0
    spec_version: int = 0
    spec: str | None = None
    due_at: datetime | None = None
    trace_parent: str | None = None


class HttpSource:
    """Leases from queues by name. `make_client` gives a client with a time-out; each event loop gets one of its own."""

    max_outcomes = MAX_OUTCOMES
    max_output_bytes = MAX_OUTPUT_BYTES
    marks_starts = False

    def __init__(self, make_client: Callable[[float | None], AsyncClient], queues: Sequence[str]) -> None:
        self._make_client = make_client
        self._queues = queues
        self._lease_seconds = 3 * MAX_HEARTBEAT_SECONDS
        self._knows_lease_time = False
        self._is_database_away = False
        self._tokens: dict[int, Token] = {}  # of all that is held or not recorded yet, by lease
        self._numbers = itertools.count(1)
        self._deferrals: dict[RunKey, int] = {}
        self._polls: list[LongPoll] = []
        self._heartbeat_client: AsyncClient | None = None
        self._progress: dict[str, str] | None = None  # which the next heartbeat tells
        # A server of the version before refuses requests with fields that it does not know.
        self._takes_progress = True
        self._names_dead = True

    @property
    def heartbeat_seconds(self) -> float:
        return max(MIN_HEARTBEAT_SECONDS, min(MAX_HEARTBEAT_SECONDS, self._lease_seconds / 3))

    @property
    def heartbeat_timeout_seconds(self) -> float:
        return min(HEARTBEAT_TIMEOUT_SECONDS, self._lease_seconds / 2)

    @property
    def drops_expired(self) -> bool:
        return not self._is_database_away

    def loop(
        self, name: str, step: Callable[[], Awaitable[float]], longest_pause: Callable[[], float] | None = None
    ) -> Loop:
        return Loop(name, step, longest_backoff=LONGEST_BACKOFF, diagnose=diagnose_server, longest_pause=longest_pause)

    async def open(self, consumer: Consumer) -> None:
        """ApiError: the server cannot be reached, or does not take the key."""
        self._consumer = consumer
        consumer.held_leases.seconds = self._lease_seconds
        self.client = self._make_client(None)
        try:
            await self.client.workers.heartbeat(consumer.name)
        except BaseException:
            await self.client.close()
            raise
        self._polls = [
            LongPoll(
                self.client,
                queue,
                consumer.name,
                handlers=consumer.handler_names,
                room=self._room,
                wait_seconds=self._poll_seconds,
                answered=self._answered,
                loop=self.loop,
            )
            for queue in self._queues
        ]

    def start(self) -> None:
        for poll in self._polls:
            poll.start()

    async def lease(self, most: int, lane_ids: Collection[int] | None = None) -> int:  # noqa: ARG002 - the server knows
        return sum([await poll.lease(min(most, MAX_OUTCOMES), wait_seconds=0) for poll in self._polls])

    def freed(self, held: int) -> None:  # noqa: ARG002 - each free slot is worth a poll
        for poll in self._polls:
            poll.wake()

    async def stop_leasing(self) -> None:
        await asyncio.gather(*(poll.stop() for poll in self._polls))

    async def hand_over_rest(self) -> None:
        """What a poll brings is handed over at once."""

    async def close(self) -> None:
        await self.client.close()

    def queue_name(self, attempt: Attempt) -> str:  # noqa: ARG002 - the server does not say
        return ", ".join(self._queues)

    def is_last_try(self, attempt: Attempt) -> bool:  # noqa: ARG002 - the server has marked it
        return False

    async def mark_started(self, attempts: Sequence[Attempt]) -> set[Token]:
        return {each.token for each in attempts}

    async def record(self, ended: Sequence[EndedAttempt], done_leases: Sequence[int]) -> NotRecorded:  # noqa: ARG002 - the server lets go of them
        if not ended:
            return NotRecorded(set(), set())
        recorded = await self._record([_report_of(each) for each in ended])
        if recorded.dead:
            self._consumer.died([parse_token(token) for token in recorded.dead])
        for attempt, *_ in ended:
            self._tokens.pop(attempt.lease_id, None)
        return NotRecorded({parse_token(token) for token in recorded.stale}, set())

    def failure_of(self, error: Exception) -> RecordFailure:
        return RecordFailure.UNSTORABLE if isinstance(error, Invalid) else RecordFailure.UNKNOWN

    async def put_back(self, unstarted: Sequence[UnstartedAttempt]) -> None:
        for first in range(0, len(unstarted), MAX_OUTCOMES):
            batch = unstarted[first : first + MAX_OUTCOMES]
            await self._record([self._deferral_of(each) for each in batch])
            for each in batch:
                self._tokens.pop(each.attempt.lease_id, None)
                if each.is_deferral:
                    self._count_deferral(_run_of(each.attempt))

    async def hand_over(self, attempts: Sequence[Attempt]) -> None:  # noqa: ARG002 - it has none
        raise AssertionError("a remote worker has no brokers")

    async def ended_elsewhere(self, tokens: Collection[Token]) -> set[Token]:  # noqa: ARG002 - heartbeats are answered so
        return set()

    async def note_progress(self, texts: Mapping[Token, str]) -> None:
        if not self._takes_progress:
            return
        told = islice(texts.items(), MAX_PROGRESS_TEXTS)
        self._progress = {format_token(*token): text for token, text in told}
        self._consumer.beat_now()

    def forget(self, lease_ids: Collection[int]) -> None:
        for lease_id in lease_ids:
            self._tokens.pop(lease_id, None)

    async def extend(self, leases: Sequence[HeldLease]) -> set[int]:
        if self._heartbeat_client is None:
            self._heartbeat_client = self._make_client(HEARTBEAT_TIMEOUT_SECONDS)
        held = {format_token(*token): lease_id for lease_id, token in self._tokens.copy().items()}
        names = list(held)
        stop: set[str] = set()
        try:
            for first in range(0, len(names), MAX_TOKENS):
                named = names[first : first + MAX_TOKENS]
                progress = None if first else self._progress
                answer = await self._beat(self._heartbeat_client, named, progress)
                stop.update(answer.cancel)
                if progress is not None and progress is self._progress:
                    self._progress = None
        except BaseException as error:  # a time-out, too: a server that hangs says nothing about its database
            self._is_database_away = isinstance(error, ApiError) and error.status == _UNAVAILABLE
            raise
        self._is_database_away = False
        return {lease.lease_id for lease in leases} - {held[token] for token in stop if token in held}

    async def _beat(self, client: AsyncClient, tokens: Sequence[str], progress: Mapping[str, str] | None) -> Heartbeat:
        name = self._consumer.name
        if progress is None or not self._takes_progress:
            return await client.workers.heartbeat(name, tokens)
        try:
            return await client.workers.heartbeat(name, tokens, progress)
        except Invalid:
            answer = await client.workers.heartbeat(name, tokens)
        self._takes_progress = False
        logger.warning("the server takes no progress of runs: it is told none until this process is started again")
        return answer

    async def announce(self) -> None:
        """Polls and heartbeats tell the server."""

    async def leave(self) -> None:
        """Without polls and heartbeats it counts as gone after a minute."""

    async def hang_up(self) -> None:
        client, self._heartbeat_client = self._heartbeat_client, None
        if client is not None:
            await client.close()

    def _poll_seconds(self) -> float:
        """A lease counts from when it was asked for: a poll that waits leaves at least half of it.

        The first poll does not wait, since its answer says how long a lease lasts.
        """
        return min(MAX_POLL_SECONDS, self._lease_seconds / 2) if self._knows_lease_time else 0.0

    def _room(self) -> int:
        consumer = self._consumer
        free = consumer.slots - consumer.held - consumer.written_off
        if not consumer.may_lease or free <= 0:
            return 0
        return max(1, free // len(self._queues))

    def _answered(self, lease: LeaseAnswer, asked: float) -> None:
        consumer = self._consumer
        is_new = lease.lease_seconds != self._lease_seconds
        self._lease_seconds = consumer.held_leases.seconds = lease.lease_seconds
        self._knows_lease_time = True
        for given in lease.attempts:
            consumer.clock.observe(given.deadline - timedelta(seconds=given.timeout_seconds))
        attempts = [self._attempt_of(given) for given in lease.attempts]
        self._tokens |= {each.lease_id: each.token for each in attempts}
        consumer.held_leases.add(attempts, asked)
        # The pause until the next heartbeat may be too long, or much of the lease went by while the poll waited.
        if is_new or time.monotonic() - asked > self.heartbeat_seconds:
            consumer.beat_now()
        consumer.take(attempts)

    def _attempt_of(self, given: LeasedAttempt) -> RemoteAttempt:
        job_id = parse_id(Prefix.JOB, given.job_id)
        return RemoteAttempt(
            token=parse_token(given.token),
            lease_id=next(self._numbers),
            job_id=job_id,
            name=given.name,
            fire_at=given.scheduled_at,
            reason=given.reason,
            attempt=given.attempt,
            deferrals=self._deferrals.get(RunKey(job_id, to_us(given.scheduled_at)), 0),
            handler=given.handler,
            payload=None if given.payload is None else encode(given.payload).decode(),
            timeout_seconds=given.timeout_seconds,
            idempotency_key=given.idempotency_key,
            trace_parent=given.traceparent,
        )

    async def _record(self, reports: Sequence[OutcomeReport]) -> Recorded:
        name = self._consumer.name
        if not self._names_dead:
            return await self.client.workers.record(name, reports)
        try:
            return await self.client.workers.record(name, reports, with_dead=True)
        except Invalid:  # for this, unless it refuses the outcomes themselves
            recorded = await self.client.workers.record(name, reports)
        self._names_dead = False
        logger.warning("the server does not name dead runs: on_dead is not called until this process is started again")
        return recorded

    def _deferral_of(self, unstarted: UnstartedAttempt) -> OutcomeReport:
        return OutcomeReport(
            token=format_token(*unstarted.attempt.token),
            result=Outcome.DEFERRED.value,
            finished_at=now_of(self._consumer.clock),
            error=unstarted.reason,
            retry_after_seconds=unstarted.delay.total_seconds() or None,
        )

    def _count_deferral(self, run: RunKey) -> None:
        if len(self._deferrals) >= MAX_REMEMBERED_DEFERRALS:
            self._deferrals.clear()
        self._deferrals[run] = self._deferrals.get(run, 0) + 1


def diagnose_server(error: BaseException) -> Unavailable | None:
    """Whatever the API answers is tried again, after as long as the server asks for; spread, so that workers do not
    come back together.
    """
    if not isinstance(error, ApiError | TimeoutError):
        return None
    asked = (error.retry_after or 0.0) if isinstance(error, ApiError) else 0.0
    reason = str(error) or "no answer in time"
    return Unavailable("the server", reason, min(asked, LONGEST_BACKOFF) + random.uniform(0.0, 0.2))  # noqa: S311 - no secret


def _run_of(attempt: Attempt) -> RunKey:
    return RunKey(attempt.job_id, to_us(attempt.fire_at))


def _report_of(ended: EndedAttempt) -> OutcomeReport:
    attempt, outcome, started_at, finished_at, _ = ended  # the server knows when it leased it
    report = partial(OutcomeReport, token=format_token(*attempt.token), started_at=started_at, finished_at=finished_at)
    match outcome:
        case Succeeded(excerpt, _, output):
            given = None if output is None else msgspec.Raw(output.encode())
            return report(result=Outcome.SUCCESS.value, output=given, excerpt=excerpt)
        case Failed(error, result, _, _, retryable, wait):
            seconds = 0.0 if wait is None else min(max(wait, timedelta(0)), LONGEST_WAIT).total_seconds()
            return report(result=result.value, error=error, retryable=retryable, retry_after_seconds=seconds or None)
        case Deferred(error):
            return report(result=Outcome.DEFERRED.value, error=error)
        case NotStarted():
            raise AssertionError("what was not started is put back, not recorded")
        case HandedOver():
            raise AssertionError("a remote worker has no brokers")
        case _:
            assert_never(outcome)
