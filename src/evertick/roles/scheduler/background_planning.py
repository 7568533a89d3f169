"""Plans in the background thread what costs too much for the event loop, fair among tenants and beside the firing.

1. A batch leaves timers here whose rule is costly, and fires the others. They are in nobody's hands meanwhile: known to
   the agenda, and neither due nor to come.
2. Each tenant has one piece of planning in the background at a time, of about PIECE_SECONDS, beside what it asks the
   API for. So however many costly rules a tenant has, they delay its own.
3. A plan that was made is `prepared`, and its timers are due again: the next batch takes them in their tenant's turn,
   and fires by the plan as long as it is fresh, else they are planned anew.

What the agenda learns meanwhile counts: a timer that was changed, or whose partition is lost, is dropped here. Nothing
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
from evertick.roles.scheduler.agenda import Entry
from evertick.roles.scheduler.planning import Likeness, Prepared, make_plan
from evertick.roles.scheduler.state import State
from evertick.runtime import background

logger = logging.getLogger("evertick.scheduler")

PIECE_SECONDS = 0.005
"""After so long no further plan is begun in a piece."""
PIECE_PLANS = 64
"""Plans of one piece at most."""
MAX_SECONDS = 5.0
"""Processor time of one plan. Its steps take less by far; whatever takes longer is a fault, and not to be repeated."""
RETRY_SECONDS = 0.5

_Waiting = dict[Likeness, list[Entry]]


class BackgroundPlanning:
    """The timers that wait for plans, by tenant, and the plans that were made. `planned` is called after each piece."""

    def __init__(self, state: State, planned: Callable[[], None]) -> None:
        self._state = state
        self._planned = planned
        self._waiting: dict[int, _Waiting] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self.prepared: dict[Likeness, Prepared] = {}

    def add(self, costly: Mapping[Likeness, list[Entry]]) -> None:
        """Plan these when it is their tenants' turn."""
        for likeness, entries in costly.items():
            for entry in entries:
                tenant_id = entry.timer.tenant_id
                self._waiting.setdefault(tenant_id, {}).setdefault(likeness, []).append(entry)
                if tenant_id not in self._tasks:
                    self._tasks[tenant_id] = asyncio.create_task(self._plan_for(tenant_id), name="plan")

    async def finish(self) -> bool:
        """Wait until all plans are made; returns whether there were any to make."""
        tasks = list(self._tasks.values())
        if tasks:
            await asyncio.wait(tasks)
        return bool(tasks)

    async def stop(self) -> None:
        """Leave what waits to whoever holds the partitions next."""
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
        # Beside the tenant's requests, not behind them: who may only read could otherwise keep its jobs from firing.
        made = await background.run(("plan", tenant_id), work) if rules else {}
        for likeness, prepared in made.items():
            self._state.rulebook.note_steps(likeness[0], prepared.steps)
            self._keep(likeness, prepared)
            self._release(waiting.pop(likeness))
        self._planned()

    def _next_rules(self, waiting: _Waiting) -> dict[Likeness, Rule]:
        """What to plan next. Timers that changed are dropped, and those whose rule was let go are due again."""
        rules: dict[Likeness, Rule] = {}
        for likeness in list(islice(waiting, PIECE_PLANS)):
            waiting[likeness] = standing = [entry for entry in waiting[likeness] if self._state.agenda.stands(entry)]
            rule = self._state.rulebook.known.get(likeness[0])
            if standing and rule is not None:
                rules[likeness] = rule
            else:
                self._release(waiting.pop(likeness))
        return rules

    def _release(self, entries: list[Entry]) -> None:
        for entry in entries:
            self._state.agenda.again(entry, to_us(entry.timer.due_at))

    def _keep(self, likeness: Likeness, prepared: Prepared) -> None:
        """Keep a plan, and none that is too old to be used."""
        while self.prepared:
            oldest = next(iter(self.prepared))
            if self.prepared[oldest].is_fresh(prepared.planned_us):
                break
            del self.prepared[oldest]
        self.prepared.pop(likeness, None)
        self.prepared[likeness] = prepared


def _make_plans(rules: Mapping[Likeness, Rule], clock_us: Callable[[], int]) -> dict[Likeness, Prepared]:
    """Make as many of these plans as a piece has time for, at least one."""
    made: dict[Likeness, Prepared] = {}
    began = time.thread_time()
    for likeness, rule in rules.items():
        made[likeness] = _make_in_time(likeness, rule, clock_us())
        if time.thread_time() - began > PIECE_SECONDS:
            break
    return made


def _make_in_time(likeness: Likeness, rule: Rule, now_us: int) -> Prepared:
    began = time.thread_time()
    prepared = make_plan(likeness, rule, now_us)
    took = time.thread_time() - began
    if took > MAX_SECONDS:
        failure = f"rule {likeness[0]} took {took:.1f} s to plan, more than {MAX_SECONDS:.0f} s"
        return Prepared(None, failure, prepared.steps, now_us)
    return prepared
