"""Waits until runs have fired or ended. Polls the database with a few cheap statements each second."""

import asyncio
import time
from datetime import datetime, timedelta

from evertick.bench import queries
from evertick.bench.processes import BenchFailed
from evertick.bench.queries import WrittenRows
from evertick.bench.testbed import Testbed
from evertick.domain.ids import PARTITIONS
from evertick.store.engine import timers

POLL_SECONDS = 0.5
CLOSE_SECONDS = 0.05
"""Near the end the leases are polled this often, to know when the last outcome was recorded."""
NEAR_SECONDS = 2.0
SMALL = 20_000
"""So few runs are near the end from the start."""
TIMEOUT_SECONDS = 60.0
"""If the counters do not change for this long, the missing runs count as missing."""
SOON = timedelta(days=1)
"""Retries of a run are due within this time. Jobs in the background are due much later."""
LEASE_TIME = timedelta(seconds=30)
"""The default: processes of the bench do not inherit settings from the environment."""


class StallDetector:
    """Watches the counters grow. They are the server's statistics, and lag by up to a second."""

    def __init__(self, base: WrittenRows) -> None:
        self._base = base
        self._seen = base
        self._changed_at = time.monotonic()
        self.outcomes_per_second = 0.0

    def update(self, written: WrittenRows) -> WrittenRows:
        """The growth since the base."""
        now = time.monotonic()
        if written != self._seen:
            self.outcomes_per_second = (written.outcomes - self._seen.outcomes) / max(now - self._changed_at, 1e-3)
            self._seen, self._changed_at = written, now
        return WrittenRows(written.attempts - self._base.attempts, written.outcomes - self._base.outcomes)

    @property
    def is_stalled(self) -> bool:
        return time.monotonic() - self._changed_at > TIMEOUT_SECONDS


async def wait_for_ownership(testbed: Testbed) -> None:
    """Wait until schedulers hold every partition."""
    testbed.progress.begin("waiting for the scheduler to hold all partitions")
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while await queries.held(testbed.pool) < PARTITIONS:
        testbed.fleet.check()
        if time.monotonic() > deadline:
            raise BenchFailed("no scheduler holds all partitions")
        await asyncio.sleep(0.1)


async def wait_until_fired(testbed: Testbed, before_at: datetime, expected: int, what: str) -> None:
    """Wait until no timer is due before an instant in the past."""
    testbed.progress.begin(what, expected)
    detector = StallDetector(await queries.written_rows(testbed.pool))
    while not detector.is_stalled:
        testbed.fleet.check()
        if not await _is_due(testbed, before_at):
            testbed.progress.reach(expected)
            return
        testbed.progress.reach(min(expected, detector.update(await queries.written_rows(testbed.pool)).attempts))
        await asyncio.sleep(POLL_SECONDS)


async def wait_for_first_lease(testbed: Testbed) -> datetime | None:
    """Wait for the first lease and return its time. None if all leases ended before a poll could see one."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        testbed.fleet.check()
        leases = await queries.leases(testbed.pool)
        if leases.expires_at is not None:
            return leases.expires_at - LEASE_TIME
        if not await queries.is_ready(testbed.pool):
            return None
        await asyncio.sleep(CLOSE_SECONDS)
    raise BenchFailed("no worker takes a lease")


async def wait_until_drained(
    testbed: Testbed, base: WrittenRows, expected: int, what: str, *, due_before: datetime | None = None
) -> datetime:
    """Wait until no attempt is ready or leased and no timer is due before `due_before`. Returns the time then.

    `base` are the counters at the start, `expected` is the number of outcomes to come. A deferred delivery has a timer
    until it is tried again.
    """
    testbed.progress.begin(what, expected)
    detector = StallDetector(base)
    while True:
        testbed.fleet.check()
        done = detector.update(await queries.written_rows(testbed.pool)).outcomes
        testbed.progress.reach(min(expected, done))
        near = expected <= SMALL or done + NEAR_SECONDS * detector.outcomes_per_second >= expected
        if (ended_at := await _drained_within(testbed, POLL_SECONDS if near else 0, due_before)) is not None:
            testbed.progress.reach(expected)
            return ended_at
        if detector.is_stalled:
            return await testbed.now()
        if not near:
            await asyncio.sleep(POLL_SECONDS)


async def _drained_within(testbed: Testbed, seconds: float, due_before: datetime | None) -> datetime | None:
    """The time when the last lease ended and nothing was due or ready, if that happens within `seconds`."""
    until = time.monotonic() + seconds
    while True:
        if not (await queries.leases(testbed.pool)).is_any and (ended_at := await _drained(testbed, due_before)):
            return ended_at
        if time.monotonic() >= until:
            return None
        await asyncio.sleep(CLOSE_SECONDS)


async def _drained(testbed: Testbed, due_before: datetime | None) -> datetime | None:
    """The time, if no work is left. Checks timers, lanes, leases in this order, the order in which work moves."""
    if await _is_due(testbed, due_before) or await queries.is_ready(testbed.pool):
        return None
    leases = await queries.leases(testbed.pool)
    return None if leases.is_any else leases.now_at


async def _is_due(testbed: Testbed, before_at: datetime | None) -> bool:
    """Whether a timer is due before an instant."""
    if before_at is None:
        return False
    next_at = await timers.next_due(testbed.pool)
    return next_at is not None and next_at < before_at
