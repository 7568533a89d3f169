"""The spans of firings, while the process traces: one for each run that a statement appended."""

from collections.abc import Iterator
from datetime import datetime

from evertick.domain.schedule.instants import to_us
from evertick.domain.tracing import FiredRun
from evertick.roles.scheduler.planning import PlannedBatch
from evertick.roles.scheduler.state import State
from evertick.runtime import tracing
from evertick.store.engine import timers
from evertick.store.engine.timers import Fired


class FireSpans:
    """Knows the trace contexts that the runs of the current batch, and their jobs, were asked for with."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._callers: dict[tuple[int, datetime], str] = {}
        self._authors: dict[int, str] = {}

    async def prepare(self, planned: PlannedBatch) -> None:
        """Read the contexts of runs and of their jobs, before they fire."""
        self._callers, self._authors = {}, {}
        if (tracer := tracing.active()) is None:
            return
        runs = [
            (entry.timer.job_id, plan.kind, plan.run_at)
            for plan, entries in planned.groups
            if plan.run_at is not None
            for entry in entries
        ]
        if by_hand := [(job_id, run_at) for job_id, kind, run_at in runs if kind != "tick"]:
            self._callers = await timers.trace_parents(self._state.firing, by_hand)
        # One that was asked for by hand is sampled as its caller says, whatever its own id.
        sampled = [run for run in runs if run[1] != "tick" or tracer.is_sampled(run[0], to_us(run[2]))]
        if sampled:
            self._authors = await timers.trace_authors(self._state.firing, sampled)

    def add(self, planned: PlannedBatch, fired: Fired) -> None:
        if (tracer := tracing.active()) is not None:
            tracer.fired(self._runs(planned, fired), to_us(fired.now_at))

    def _runs(self, planned: PlannedBatch, fired: Fired) -> Iterator[FiredRun]:
        without = {*fired.refused, *fired.waiting, *fired.early, *fired.busy, *fired.passed}
        place = 0
        for plan, entries in planned.groups:
            for entry in entries:
                place += 1
                if plan.run_at is not None and place not in without:
                    job_id, tenant_id = entry.timer.job_id, entry.timer.tenant_id
                    caller = self._callers.get((job_id, plan.run_at)) if self._callers else None
                    author = self._authors.get(job_id) if self._authors else None
                    yield FiredRun(job_id, to_us(plan.run_at), to_us(plan.due_at), tenant_id, plan.kind, caller, author)
