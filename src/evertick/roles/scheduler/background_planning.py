"""Plans in the background thread what costs too much for the event loop, fair among tenants and beside the firing.

1. A batch leaves timers here whose rule is costly, and fires the others. Meanwhile they are pending, and
   neither due nor in the wheel.
2. Each tenant has one piece of planning in the background at a time, of about PIECE_SECONDS, beside what it asks the
   API for. So however many costly rules a tenant has, they delay its own.
3. A plan that was made is `prepared`, and its timers are due again: the next batch takes them in their tenant's turn,
   and fires by the plan as long as it is fresh, else they are planned anew.

What is loaded meanwhile counts: a timer that was changed, or whose partition is lost, is dropped here. Nothing
is kept over a stop or a crash: the table has the timers.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice

from evertick.domain.rule import Rule
from evertick.domain.schedule.instants import to_us
from evertick.roles.scheduler.pending_timers import PendingTimer
from evertick.roles.scheduler.planning import GroupKey, PreparedPlan, make_plan
from evertick.roles.scheduler.state import State
from evertick.runtime import background

logger = logging.getLogger("evertick.scheduler")

PIECE_SECONDS = 0.005
"""After so long no further plan is begun in a piece."""
PIECE_PLANS = 64
"""Plans of one piece at most."""
MAX_SECONDS = 5.0
"""Processor time of one plan. Its steps take less by far; what takes longer is a fault, and is not repeated."""
RETRY_SECONDS = 0.5

_Waiting = dict[GroupKey, list[PendingTimer]]


class BackgroundPlanning:
    """The timers that wait for plans, by tenant, and the plans that were made. `planned` is called after each piece."""

    def __init__(self, state: State, planned: Callable[[], None]) -> None:
        self._state = state
        self._planned = planned
        self._waiting: dict[int, _Waiting] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self.prepared: dict[GroupKey, PreparedPlan] = {}
        self.made = 0  # plans since the start

    def add(self, costly: Mapping[GroupKey, list[PendingTimer]]) -> None:
        """Plan these when it is their tenants' turn."""
        for group_key, entries in costly.items():
            for entry in entries:
                tenant_id = entry.timer.tenant_id
                self._waiting.setdefault(tenant_id, {}).setdefault(group_key, []).append(entry)
                if tenant_id not in self._tasks:
                    self._tasks[tenant_id] = asyncio.create_task(self._plan_for(tenant_id), name="plan")

    async def finish(self) -> bool:
        """Wait until all plans are made; returns whether there were any to make."""
        tasks = list(self._tasks.values())
        if tasks:
            await asyncio.wait(tasks)
        return bool(tasks)

    async def stop(self) -> None:
        """Leave what waits to the next holder of the partitions."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _plan_for(self, tenant_id: int) -> None:
        waiting = self._waiting[tenant_id]
        try:
            while waiting:
                try:
                    await self._plan_piece(tenant_id, waiting)
                except Exception:
                    logger.exception("planning in the background failed, next try in %s s", RETRY_SECONDS)
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            del self._waiting[tenant_id], self._tasks[tenant_id]

    async def _plan_piece(self, tenant_id: int, waiting: _Waiting) -> None:
        rules = self._next_rules(waiting)
        work = partial(_make_plans, rules, self._state.clock.now_us)
        # Not behind the tenant's requests: else a key that may only read could keep the tenant's jobs from firing.
        made = await background.run(("plan", tenant_id), work) if rules else {}
        self.made += len(made)
        for group_key, prepared in made.items():
            self._state.rule_cache.note_steps(group_key[0], prepared.steps)
            self._keep(group_key, prepared)
            self._release(waiting.pop(group_key))
        self._planned()

    def _next_rules(self, waiting: _Waiting) -> dict[GroupKey, Rule]:
        """What to plan next. Timers that changed are dropped, and those whose rule left the cache are due again."""
        rules: dict[GroupKey, Rule] = {}
        for group_key in list(islice(waiting, PIECE_PLANS)):
            waiting[group_key] = current = [
                entry for entry in waiting[group_key] if self._state.pending.is_current(entry)
            ]
            rule = self._state.rule_cache.known.get(group_key[0])
            if current and rule is not None:
                rules[group_key] = rule
            else:
                self._release(waiting.pop(group_key))
        return rules

    def _release(self, entries: list[PendingTimer]) -> None:
        for entry in entries:
            self._state.pending.retry_at(entry, to_us(entry.timer.due_at))

    def _keep(self, group_key: GroupKey, prepared: PreparedPlan) -> None:
        """Keep a plan, and none that is too old to be used."""
        while self.prepared:
            oldest = next(iter(self.prepared))
            if self.prepared[oldest].is_fresh(prepared.planned_us):
                break
            del self.prepared[oldest]
        self.prepared.pop(group_key, None)
        self.prepared[group_key] = prepared


def _make_plans(rules: Mapping[GroupKey, Rule], clock_us: Callable[[], int]) -> dict[GroupKey, PreparedPlan]:
    """Make as many of these plans as a piece has time for, at least one."""
    made: dict[GroupKey, PreparedPlan] = {}
    began = time.thread_time()
    for group_key, rule in rules.items():
        made[group_key] = _make_in_time(group_key, rule, clock_us())
        if time.thread_time() - began > PIECE_SECONDS:
            break
    return made


def _make_in_time(group_key: GroupKey, rule: Rule, now_us: int) -> PreparedPlan:
    began = time.thread_time()
    prepared = make_plan(group_key, rule, now_us)
    took = time.thread_time() - began
    if took > MAX_SECONDS:
        failure = f"rule {group_key[0]} took {took:.1f} s to plan, more than {MAX_SECONDS:.0f} s"
        return PreparedPlan(None, failure, prepared.steps, now_us)
    return prepared
