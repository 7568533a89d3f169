"""Gates against what they promise, with schedulers, workers and sweeps at work at once.

Hypothesis chooses what happens to runs of three keys: manual runs, runs that wait behind others of their job, retries,
lost workers, cancellations, limits that change, wake-ups that get lost. After each step no more runs of a key are
inside than may be, and what has begun was inside. Runs of the ordering key begin one after the other, in the order of
their fire times, but for those that were asked for after a later one had begun. In the end all are over: nothing waits
for something that waits for it.
"""

import asyncio
import itertools
from datetime import datetime, timedelta
from typing import NamedTuple

import asyncpg
import pytest
from hypothesis import HealthCheck, given, note, settings, strategies as st

from engine import AGAIN, AT, LEASE, Holder, Job, Planned, add_job, add_timer, ending_of, lease_free
from evertick.domain.retry import GiveUp, GiveUpReason, NextStep
from evertick.store.engine import gates, outcomes
from evertick.store.engine.lanes import Leased
from evertick.store.engine.outcomes import Ending
from evertick.store.statements import Connection

LIMITS = {"one": 1, "three": 3, "ordered": 1}
NODES = 2
JOBS = 2
_numbers = itertools.count(1)


class RunKey(NamedTuple):
    """In the order of a gate."""

    fire_at: datetime
    job_id: int


class World:
    """Runs of some keys, by the second in which they are due."""

    def __init__(self, connection: asyncpg.Connection, holders: list[Holder]) -> None:
        number = next(_numbers)
        self._connection = connection
        self._holders = holders
        self._queue = f"gates-{number}"
        self._gates = {
            key: (10 * number + place) * (-1 if key == "ordered" else 1) for place, key in enumerate(LIMITS, 1)
        }
        self._limits = dict(LIMITS)
        self._jobs: dict[int, Job] = {}
        self._of_key: dict[tuple[str, int], Job] = {}
        self._noted: set[int] = set()
        self._asked: dict[RunKey, int] = {}
        self._begun: dict[RunKey, int] = {}
        self._ordered_jobs: set[int] = set()
        self._leased: list[Leased] = []

    async def open(self) -> None:
        for key, gate_id in self._gates.items():
            for number in range(NODES * JOBS):
                job = await add_job(
                    self._connection,
                    partition=number % NODES,
                    queue=self._queue,
                    fire_at=AT + timedelta(days=9000),
                    gate_id=gate_id,
                    gate_limit=LIMITS[key],
                )
                self._jobs[job.job_id] = job
                self._of_key[key, number] = job
                if key == "ordered":
                    self._ordered_jobs.add(job.job_id)

    async def ask(self, key: str, number: int, late: int) -> None:
        """A run that waits behind one of its job is in no order until that is over: such jobs have no other runs."""
        job = self._of_key[key, number]
        kind = "manual" if number < NODES else "queued"
        late = late if kind == "manual" else 0
        fire_at = AT + timedelta(seconds=len(self._asked) - late, milliseconds=len(self._asked))
        self._asked[RunKey(fire_at, job.job_id)] = len(self._begun)
        reason = "manual" if kind == "manual" else "tick"
        await add_timer(self._connection, job, kind, fire_at, reason, gate_id=self._gates[key])

    async def fire(self, node: int) -> None:
        holder = self._holders[node]
        rows = await holder.connection.fetch(
            "SELECT job_id, kind::text, fire_at, due_at, rule_id FROM timers"
            " WHERE partition = $1 AND job_id = ANY($2) AND due_at <= clock_at() ORDER BY fire_at",
            *(node, list(self._jobs)),
        )
        first: dict[int, Planned] = {}
        for job_id, kind, fire_at, due_at, rule_id in rows:
            planned = Planned(self._jobs[job_id], fire_at, kind=kind, due_at=due_at, rule_id=rule_id, policy="QUEUE")
            first.setdefault(job_id, planned)
        if first:
            self._noted.update((await holder.fire(*first.values())).gate_ids)

    async def let_in(self, connection: asyncpg.Connection | None = None) -> None:
        noted, self._noted = self._noted, set()
        await gates.let_in(connection or self._connection, noted)

    async def sweep(self) -> None:
        await self._sweep(self._connection)

    async def _sweep(self, connection: Connection) -> int:
        found = await gates.waiting(connection, range(256), after=gates.FIRST_GATE, most=999)
        return len(await gates.let_in(connection, {gate.gate_id for gate in found} & {*self._gates.values()}))

    async def go_on(self) -> None:
        """All that is due, as far as it gets."""
        for node in range(NODES):
            await self.fire(node)
        await self.let_in()
        await self.lease()

    async def lose(self) -> None:
        """What was noted is lost with its process."""
        self._noted.clear()

    async def lease(self) -> None:
        self._leased += [each for each in await lease_free(self._connection, *self._jobs.values()) if not each.is_over]

    async def end(self, place: int, result: str, then: NextStep) -> None:
        if self._leased:
            await self._record([self._take(place, result, then)])

    async def everything_at_once(self, place: int) -> None:
        """An outcome, two firings, and a sweep of another session."""
        endings = [self._take(place, "success", None)] if self._leased else []
        first, second = self._holders
        await asyncio.gather(self._record(endings), self._fire_and_sweep(first, 0), self._fire_and_sweep(second, 1))

    async def _fire_and_sweep(self, holder: Holder, node: int) -> None:
        await self.fire(node)
        await self._sweep(holder.connection)

    def _take(self, place: int, result: str, then: NextStep) -> Ending:
        return ending_of(self._leased.pop(place % len(self._leased)), result, then)

    async def _record(self, endings: list[Ending]) -> None:
        recorded = await outcomes.record(self._connection, "w", endings, [], left=self._noted.update)
        assert recorded.stale == set()
        while recorded.busy:  # a firing had the run locked
            recorded = await outcomes.record(self._connection, "w", endings, [], left=self._noted.update)

    async def kill(self, place: int) -> None:
        """A worker dies, and its lease runs out."""
        if not self._leased:
            return
        leased = self._leased.pop(place % len(self._leased))
        await self._connection.execute(
            "UPDATE leases SET expires_at = clock_at() - interval '1 second' WHERE lease_id = $1", leased.lease_id
        )
        await outcomes.reap(self._connection, "reaper", range(NODES), lease_time=LEASE, most=1)
        await outcomes.record(
            *(self._connection, "w", [ending_of(leased, "lost", AGAIN)], [leased.lease_id]),
            holder="reaper",
            left=self._noted.update,
        )

    async def cancel(self, place: int) -> None:
        """Of what has an open attempt."""
        rows = await self._connection.fetch(
            "SELECT job_id, fire_at, lane_id, seq FROM open_runs WHERE job_id = ANY($1) AND NOT EXISTS ("
            " SELECT FROM outcomes WHERE outcomes.lane_id = open_runs.lane_id AND outcomes.seq = open_runs.seq)"
            " ORDER BY fire_at",
            list(self._jobs),
        )
        if not rows:
            return
        job_id, fire_at, lane_id, seq = rows[place % len(rows)]
        ending = Ending(lane_id, seq, job_id, fire_at, 1, "manual", "cancelled", None, AT)
        await outcomes.record(self._connection, "user", [ending], [])  # nobody notes it
        self._leased = [each for each in self._leased if (each.lane_id, each.seq) != (lane_id, seq)]

    async def limit(self, limit: int) -> None:
        """More than are allowed may be inside for a while."""
        self._limits["three"] = max(limit, await self._inside("three"))
        await self._connection.execute(
            "UPDATE job_versions SET gate_limit = $2 WHERE gate_id = $1", self._gates["three"], limit
        )

    async def _inside(self, key: str) -> int:
        count = await self._connection.fetchval(
            "SELECT count(*) FROM open_runs WHERE gate_id = $1 AND is_inside", self._gates[key]
        )
        assert isinstance(count, int)
        return count

    async def check(self) -> None:
        for key, limit in self._limits.items():
            assert await self._inside(key) <= limit, key
        inside = await self._connection.fetch(
            "SELECT job_id, fire_at, lane_id, seq FROM open_runs WHERE job_id = ANY($1) AND is_inside", list(self._jobs)
        )
        for row in inside:  # of an order one at most, so that no step lets in two
            self._begun.setdefault(RunKey(row["fire_at"], row["job_id"]), len(self._begun))
        assert {(each.lane_id, each.seq) for each in self._leased} <= {(row["lane_id"], row["seq"]) for row in inside}
        self._check_order()

    def _check_order(self) -> None:
        begun = [run for run in self._begun if run.job_id in self._ordered_jobs]
        for earlier, later in itertools.pairwise(sorted(begun)):
            # Or it was asked for when the later one had begun.
            assert self._begun[earlier] < self._begun[later] or self._asked[earlier] > self._begun[later]

    async def drain(self) -> None:
        rounds = 0
        while await self._is_anything_left() or self._leased:
            await self._connection.execute(
                "UPDATE timers SET due_at = clock_at() WHERE job_id = ANY($1) AND kind <> 'tick'", list(self._jobs)
            )
            for node in range(NODES):
                await self.fire(node)
            await self.sweep()
            await self.lease()
            await self.check()
            while self._leased:
                await self.end(0, "success", None)
            rounds += 1
            assert rounds < 4 * len(self._asked) + 4, "something waits for ever"

    async def _is_anything_left(self) -> bool:
        is_left = await self._connection.fetchval(
            "SELECT EXISTS (SELECT FROM timers WHERE job_id = ANY($1) AND kind <> 'tick')"
            " OR EXISTS (SELECT FROM open_runs WHERE job_id = ANY($1))",
            list(self._jobs),
        )
        return bool(is_left)


@pytest.fixture
async def holders(connection: asyncpg.Connection, second: asyncpg.Connection) -> list[Holder]:
    holders = [Holder(connection, "first"), Holder(second, "second")]
    for node, holder in enumerate(holders):
        await holder.take(node)
    return holders


PLACES = st.integers(0, 9)
ASK = st.tuples(
    st.just("ask"),
    st.tuples(
        st.sampled_from([*LIMITS, "ordered"]),
        st.integers(0, NODES * JOBS - 1),
        st.sampled_from([0, 0, 3]),
    ),
)
STEPS = st.one_of(
    ASK,
    ASK,
    ASK,
    st.tuples(st.just("fire"), st.tuples(st.integers(0, NODES - 1))),
    st.tuples(st.sampled_from(["let_in", "sweep", "lose", "lease", "go_on", "go_on"]), st.just(())),
    st.tuples(st.sampled_from(["everything_at_once", "kill", "cancel"]), st.tuples(PLACES)),
    st.tuples(st.just("limit"), st.tuples(st.integers(1, 4))),
    st.tuples(
        st.just("end"),
        st.one_of(
            st.tuples(PLACES, st.just("success"), st.none()),
            st.tuples(PLACES, st.just("failed"), st.just(AGAIN)),
            st.tuples(PLACES, st.just("failed"), st.just(GiveUp(1, GiveUpReason.EXHAUSTED))),
        ),
    ),
)


@given(st.lists(STEPS, min_size=30, max_size=60))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
async def test_a_gate_keeps_its_limit_and_its_order_and_lets_everything_in(
    watcher: asyncpg.Connection, holders: list[Holder], steps: list[tuple[str, tuple[object, ...]]]
) -> None:
    world = World(watcher, holders)
    await world.open()
    note("; ".join(f"{name} {values}" for name, values in steps))
    for name, values in steps:
        await getattr(world, name)(*values)
        await world.check()
    await world.drain()
