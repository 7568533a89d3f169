"""The statement `fire` against a model of what the semantics say about runs of one job that overlap.

Hypothesis chooses what happens to a job: ticks under changing policies, manual runs, ends, failures, retries. The
tables must show after each step what the model says.
"""

import itertools
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import assert_never

import asyncpg
import pytest
from hypothesis import HealthCheck, example, given, note, settings, strategies as st

from engine import AGAIN, AT, MINUTE, Holder, Job, Planned, add_job, add_timer, finish
from evertick.domain.policies import ConcurrentPolicy

SKIP, ALLOW, QUEUE, REPLACE = ConcurrentPolicy
_numbers = itertools.count()


class Verdict(Enum):
    """What becomes of a due timer."""

    RUN = "it runs"
    WAIT = "its timer is put off"
    QUEUE = "the tick becomes a run that waits its turn"
    SKIP = "the tick becomes a gap"


@dataclass
class Model:
    """The runs of one job, by the minute of their fire time.

    Open is every run that was started and is unfinished: ready, running, or between two attempts. A run that waits its
    turn is unfinished, but not open. One exception keeps SKIP cheap: only the job's last tick remembers a first attempt
    that was fired under SKIP, so after an edit to ALLOW the next tick that runs makes it `uncounted`.
    """

    ready: list[int] = field(default_factory=list)
    retrying: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    started: set[int] = field(default_factory=set)
    skipped: set[int] = field(default_factory=set)
    under_skip: int | None = None
    uncounted: set[int] = field(default_factory=set)

    @property
    def open_runs(self) -> list[int]:
        return [each for each in (*self.ready, *self.retrying) if each not in self.uncounted]

    def tick(self, minute: int, policy: ConcurrentPolicy, limit: int) -> Verdict:
        verdict = self._verdict_on_tick(policy, limit)
        match verdict:
            case Verdict.RUN:
                if policy is REPLACE:
                    self.ready = [each for each in self.ready if each in self.uncounted]
                    self.retrying, self.waiting = [], []
                elif self.under_skip is not None:
                    self.uncounted.add(self.under_skip)
                self.under_skip = minute if policy is SKIP else None
                self.start(minute)
            case Verdict.QUEUE:
                self.waiting.append(minute)
            case Verdict.SKIP:
                self.skipped.add(minute)
            case Verdict.WAIT:
                pass
            case _:
                assert_never(verdict)
        return verdict

    def _verdict_on_tick(self, policy: ConcurrentPolicy, limit: int) -> Verdict:
        if policy is REPLACE:
            return Verdict.RUN
        if policy is QUEUE and self.waiting:
            # At most one waits, and it goes first.
            return Verdict.SKIP if self.open_runs else Verdict.WAIT
        if len(self.open_runs) < limit:
            # A run that still waits after an edit of the policy takes room only when it starts.
            return Verdict.RUN
        return Verdict.QUEUE if policy is QUEUE else Verdict.SKIP

    def turn(self, limit: int) -> Verdict:
        """The timer of the oldest run that waits its turn is due."""
        if len(self.open_runs) >= limit:
            return Verdict.WAIT
        self.start(self.waiting.pop(0))
        return Verdict.RUN

    def end(self) -> list[int]:
        """All attempts that are ready end."""
        ended, self.ready = self.ready, []
        self.under_skip, self.uncounted = None, set()
        return ended

    def start(self, minute: int) -> None:
        self.ready.append(minute)
        self.started.add(minute)


class World:
    """One job in the tables, and what the model says about it."""

    def __init__(self, connection: asyncpg.Connection, holder: Holder, job: Job) -> None:
        self._connection = connection
        self._holder = holder
        self._job = job
        self._tick = 0
        self._manual = 0
        self.model = Model()

    async def tick(self, policy: ConcurrentPolicy, limit: int) -> None:
        verdict = self.model.tick(self._tick, policy, limit)
        assert await self._fire("tick", self._tick, policy, limit) == (verdict is Verdict.WAIT)
        self._tick += verdict is not Verdict.WAIT

    async def turn(self, policy: ConcurrentPolicy, limit: int) -> None:
        if self.model.waiting:
            minute = self.model.waiting[0]
            verdict = self.model.turn(limit)
            assert await self._fire("queued", minute, policy, limit) == (verdict is Verdict.WAIT)

    async def trigger(self) -> None:
        self._manual -= 1
        self.model.start(self._manual)
        await add_timer(self._connection, self._job, "manual", at(self._manual), "manual")
        await self._fire("manual", self._manual, SKIP, 1)

    async def end(self) -> None:
        self.model.end()
        await finish(self._connection, self._job)

    async def fail(self) -> None:
        self.model.retrying += self.model.end()
        await finish(self._connection, self._job, "failed", AGAIN)

    async def retry(self) -> None:
        if self.model.retrying:
            minute = self.model.retrying.pop(0)
            self.model.ready.append(minute)
            await self._fire("retry", minute, SKIP, 1)

    async def _fire(self, kind: str, minute: int, policy: ConcurrentPolicy, limit: int) -> bool:
        """Fire a timer, which may have been put off before; returns whether it is put off."""
        row = await self._connection.fetchrow(
            "UPDATE timers SET due_at = least(due_at, clock_at()) WHERE job_id = $1 AND kind = $2 AND fire_at = $3"
            " RETURNING due_at, rule_id",
            *(self._job.job_id, kind, at(minute)),
        )
        assert row is not None, f"there is no {kind} timer for minute {minute}"
        planned = Planned(
            self._job,
            at(minute),
            kind=kind,
            policy=policy.value,
            limit=limit,
            due_at=row["due_at"],
            rule_id=row["rule_id"],
        )
        fired = await self._holder.fire(planned)
        assert not list(fired.refused or ()) + list(fired.early) + list(fired.busy)
        return bool(list(fired.waiting))

    async def check(self) -> None:
        """The tables say what the model says."""
        assert await self._minutes("SELECT DISTINCT fire_at FROM attempts WHERE job_id = $1") == self.model.started
        waiting = "SELECT fire_at FROM timers WHERE job_id = $1 AND kind = 'queued'"
        assert await self._minutes(waiting) == set(self.model.waiting)
        retrying = "SELECT fire_at FROM timers WHERE job_id = $1 AND kind = 'retry'"
        assert await self._minutes(retrying) == set(self.model.retrying)
        ready = (
            "SELECT fire_at FROM attempts LEFT JOIN outcomes USING (lane_id, seq) WHERE job_id = $1 AND result IS NULL"
        )
        assert await self._minutes(ready) == set(self.model.ready)
        gaps = await self._connection.fetch(
            "SELECT first_at, last_at, ticks FROM gaps WHERE job_id = $1", self._job.job_id
        )
        skipped = {minute for first, last, _ in gaps for minute in range(minute_of(first), minute_of(last) + 1)}
        assert skipped == self.model.skipped
        assert sum(ticks for _, _, ticks in gaps) == len(skipped)

    async def _minutes(self, query: str) -> set[int]:
        return {minute_of(fire_at) for (fire_at,) in await self._connection.fetch(query, self._job.job_id)}


def at(minute: int) -> datetime:
    return AT + minute * MINUTE


def minute_of(fire_at: datetime) -> int:
    return (fire_at - AT) // MINUTE


@pytest.fixture
async def holder(connection: asyncpg.Connection) -> Holder:
    holder = Holder(connection)
    await holder.take(7)
    return holder


POLICIES = st.one_of(
    st.tuples(st.sampled_from([SKIP, QUEUE, REPLACE]), st.just(1)), st.tuples(st.just(ALLOW), st.integers(1, 3))
)
STEPS = st.one_of(
    st.tuples(st.just("tick"), POLICIES),
    st.tuples(st.just("turn"), POLICIES),
    st.tuples(st.sampled_from(["trigger", "end", "fail", "retry"]), st.just(())),
)


@given(st.lists(STEPS, max_size=20))
@example([("tick", (QUEUE, 1)), ("tick", (QUEUE, 1)), ("tick", (REPLACE, 1))])
@example([("tick", (QUEUE, 1)), ("tick", (QUEUE, 1)), ("turn", (REPLACE, 1))])
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
async def test_runs_of_one_job_overlap_as_its_policy_says(
    connection: asyncpg.Connection, holder: Holder, steps: list[tuple[str, tuple[ConcurrentPolicy, int] | tuple[()]]]
) -> None:
    world = World(connection, holder, await add_job(connection, queue=f"overlap-{next(_numbers)}"))
    note("; ".join(f"{name} {policy}" for name, policy in steps))
    for name, policy in steps:
        await getattr(world, name)(*policy)
        await world.check()
