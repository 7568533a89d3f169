"""Whatever people do to a job, and whenever: each of its ticks is in exactly one place, a run or a gap."""

import random
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import pytest

from evertick.domain.policies import Missed
from evertick.domain.schedule.instants import to_us
from evertick.store.engine import lanes
from evertick.usecases.context import TenantContext
from evertick.usecases.errors import JobNotFound, TriggerRefused
from evertick.usecases.jobs.create import create
from evertick.usecases.jobs.edit import edit
from evertick.usecases.jobs.lifecycle import delete, pause, resume
from evertick.usecases.runs.requests import trigger
from faults.checkers import check_all
from faults.ledger import read_ledger
from usecases.world import LOOK, WORKER, World, at

STEPS = 100
SECOND = timedelta(seconds=1)
FAR_US = 86_400_000_000


async def judge(world: World) -> None:
    """Let all runs end, and look for every tick up to where each job's timer stands."""
    await world.connection.execute("UPDATE timers SET due_at = 'infinity' WHERE kind = 'tick'")
    for _ in range(100):
        await world.run_all()
        if not await world.connection.fetchval("SELECT count(*) FROM timers WHERE kind <> 'tick'"):
            break
        await world.run_clock(await lanes.clock(world.connection) + SECOND)
    ledger = await read_ledger(world.connection)
    verdicts = check_all(
        ledger.jobs,
        now_us=to_us(at(600)) + FAR_US,
        start_bound_us=FAR_US,
        end_bound_us=FAR_US,
        allow_gaps=True,
        allow_cancelled=True,
        timers=(),
        deliveries=None,
        writes=ledger.writes,
    )
    faults = "\n".join(str(verdict) for verdict in verdicts if not verdict.ok)
    assert not faults


def in_two_seconds(now_at: datetime) -> str:
    return (now_at + 2 * SECOND).isoformat()


class Storm:
    """People who do what chance tells them to one tenant's jobs."""

    def __init__(self, world: World, tenant: TenantContext, chance: random.Random) -> None:
        self._world = world
        self._tenant = tenant
        self._chance = chance
        self._jobs: list[str] = []

    async def step(self) -> None:
        acts: Mapping[Callable[[], Awaitable[object]], int] = {
            self._advance: 10,
            self._fire: 8,
            self._create: 2 if self._jobs else 1000,
            self._edit: 4,
            self._pause: 2,
            self._resume: 4,
            self._trigger: 1,
            self._delete: 2,
        }
        (act,) = self._chance.choices(list(acts), list(acts.values()))
        with suppress(JobNotFound):  # deleted before
            await act()

    async def _advance(self) -> None:
        then_at = await lanes.clock(self._world.connection) + self._chance.random() * 2 * SECOND
        if self._chance.random() < 0.6:  # to just before the next tick, so that it comes between two looks at the clock
            then_at += SECOND - timedelta(microseconds=then_at.microsecond) - self._chance.random() * 4 * LOOK
        await self._world.run_clock(then_at)

    async def _fire(self) -> None:
        await self._world.run_all()

    async def _create(self) -> None:
        policies = {
            "missed_window": self._chance.choice(["SKIP", "RUN_ONCE", "RUN_ALL"]),
            "misfire_grace_seconds": self._chance.choice([0, 1, 60]),
            "concurrent_policy": self._chance.choice(["SKIP", "ALLOW", "QUEUE"]),
            "jitter_seconds": self._chance.choice([0, 0.5, 1, 5]),
        }
        fields = {"schedule": await self._schedule(), "target": WORKER, **policies}
        self._jobs.append((await create(self._tenant, fields)).job_id)

    async def _edit(self) -> None:
        changes: list[dict[str, Any]] = [
            {"schedule": await self._schedule()},
            {"payload": self._chance.random()},
            {"jitter_seconds": self._chance.choice([0, 0.7, 3])},
        ]
        await edit(self._tenant, self._job(), self._chance.choice(changes))

    async def _schedule(self) -> str:
        now_at = await lanes.clock(self._world.connection)
        schedules = ["every 1s", "every 1s", "every 2s", "every 3s", "*/2 * * * * *", in_two_seconds(now_at), "manual"]
        return self._chance.choice(schedules)

    async def _pause(self) -> None:
        await pause(self._tenant, self._job())

    async def _resume(self) -> None:
        await resume(self._tenant, self._job(), self._chance.choice(list(Missed)))

    async def _trigger(self) -> None:
        with suppress(TriggerRefused):
            await trigger(self._tenant, self._job(), force=self._chance.random() < 0.5)

    async def _delete(self) -> None:
        await delete(self._tenant, self._job())

    def _job(self) -> str:
        return self._chance.choice(self._jobs[-3:])


@pytest.mark.parametrize("act", [delete, pause, resume])
async def test_a_tick_that_comes_while_its_job_is_changed_is_in_one_place(
    world: World, tenant: TenantContext, act: Callable[[TenantContext, str], Awaitable[object]]
) -> None:
    for looks in range(10):
        await world.run_clock(at(looks, 30))
        job = await world.minutely(jitter_seconds=30)
        if act is resume:
            await pause(tenant, job.job_id)
        await world.run_clock(at(looks + 1) - LOOK * (looks + 0.5))
        await act(tenant, job.job_id)
    await judge(world)


@pytest.mark.parametrize("seed", range(12))
async def test_every_tick_is_in_one_place_whatever_people_do(world: World, tenant: TenantContext, seed: int) -> None:
    await world.run_clock(at(0, 30))
    storm = Storm(world, tenant, random.Random(seed))
    for _ in range(STEPS):
        await storm.step()
    await judge(world)
