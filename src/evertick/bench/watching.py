"""Waits for what the product does, at next to no cost for the database: a few tiny statements each second."""

import asyncio
import time
from datetime import datetime, timedelta

from evertick.bench import figures_queries
from evertick.bench.figures_queries import Counters
from evertick.bench.processes import BenchFailed
from evertick.bench.stage import Stage
from evertick.domain.ids import PARTITIONS
from evertick.store import timers

POLL_SECONDS = 0.5
CLOSE_SECONDS = 0.05
"""Near the end a look at the few leases tells when the last outcome was recorded, as exactly as this."""
NEAR_SECONDS = 2.0
SMALL = 20_000
"""So little is near its end from the beginning."""
PATIENCE_SECONDS = 60.0
"""When nothing happens for so long, nothing will: what is missing by then is missing."""
SOON = timedelta(days=1)
"""What is due so soon after something else is what comes again of it: the crowd is due much later."""
LEASE_TIME = timedelta(seconds=30)
"""The default, which holds because no setting of whoever measures reaches the processes."""


class Pulse:
    """How the counters grow. They are the server's, and lag by up to a second."""

    def __init__(self, base: Counters) -> None:
        self._base = base
        self._seen = base
        self._seen_at = self._moved_at = time.monotonic()
        self.outcomes_per_second = 0.0

    def beat(self, counters: Counters) -> Counters:
        """What was written since the base."""
        now = time.monotonic()
        if counters != self._seen:
            self.outcomes_per_second = (counters.outcomes - self._seen.outcomes) / max(now - self._seen_at, 1e-3)
            self._seen, self._seen_at, self._moved_at = counters, now, now
        return Counters(counters.attempts - self._base.attempts, counters.outcomes - self._base.outcomes)

    @property
    def is_gone(self) -> bool:
        return time.monotonic() - self._moved_at > PATIENCE_SECONDS


async def until_held(stage: Stage) -> None:
    """Wait until schedulers hold every partition."""
    stage.progress.begin("waiting for the scheduler to hold all partitions")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while await figures_queries.held(stage.pool) < PARTITIONS:
        stage.fleet.check()
        if time.monotonic() > deadline:
            raise BenchFailed("no scheduler holds all partitions")
        await asyncio.sleep(0.1)


async def until_fired(stage: Stage, before_at: datetime, expected: int, what: str) -> None:
    """Wait until no timer is left that was due before an instant, which has passed."""
    stage.progress.begin(what, expected)
    pulse = Pulse(await figures_queries.counters(stage.pool))
    while not pulse.is_gone:
        stage.fleet.check()
        if not await _is_due(stage, before_at):
            stage.progress.reach(expected)
            return
        stage.progress.reach(min(expected, pulse.beat(await figures_queries.counters(stage.pool)).attempts))
        await asyncio.sleep(POLL_SECONDS)


async def first_lease(stage: Stage) -> datetime | None:
    """Wait until a worker leases for the first time, and tell when that was; None: it was too short to be seen."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        stage.fleet.check()
        leases = await figures_queries.leases(stage.pool)
        if leases.expires_at is not None:
            return leases.expires_at - LEASE_TIME
        if not await figures_queries.is_ready(stage.pool):
            return None
        await asyncio.sleep(CLOSE_SECONDS)
    raise BenchFailed("no worker leases anything")


async def until_drained(
    stage: Stage, base: Counters, expected: int, what: str, *, due_before: datetime | None = None
) -> datetime:
    """Wait until nothing is ready or leased any more, nor any timer left of before an instant; returns the time then.

    `base` are the counters from before, `expected` how many outcomes there will be. What comes again after a while,
    such as a delivery that was put off, has a timer meanwhile.
    """
    stage.progress.begin(what, expected)
    pulse = Pulse(base)
    while True:
        stage.fleet.check()
        done = pulse.beat(await figures_queries.counters(stage.pool)).outcomes
        stage.progress.reach(min(expected, done))
        near = expected <= SMALL or done + NEAR_SECONDS * pulse.outcomes_per_second >= expected
        if (ended_at := await _drained_within(stage, POLL_SECONDS if near else 0, due_before)) is not None:
            stage.progress.reach(expected)
            return ended_at
        if pulse.is_gone:
            return await stage.now()
        if not near:
            await asyncio.sleep(POLL_SECONDS)


async def _drained_within(stage: Stage, seconds: float, due_before: datetime | None) -> datetime | None:
    """When the last lease was let go and nothing was due or ready, if that is now or soon."""
    until = time.monotonic() + seconds
    while True:
        if not (await figures_queries.leases(stage.pool)).is_any and (ended_at := await _drained(stage, due_before)):
            return ended_at
        if time.monotonic() >= until:
            return None
        await asyncio.sleep(CLOSE_SECONDS)


async def _drained(stage: Stage, due_before: datetime | None) -> datetime | None:
    """The time, if no work is left. Looks for it in the order in which it moves, so that none can slip by."""
    if await _is_due(stage, due_before) or await figures_queries.is_ready(stage.pool):
        return None
    leases = await figures_queries.leases(stage.pool)
    return None if leases.is_any else leases.now_at


async def _is_due(stage: Stage, before_at: datetime | None) -> bool:
    """Whether a timer is left that was due before an instant."""
    if before_at is None:
        return False
    next_at = await timers.next_due(stage.pool)
    return next_at is not None and next_at < before_at
