"""Waiting for the ends of runs, by polling with growing pauses: one statement asks for all that a process waits for.

Workers would have to send a wake-up for every run, whether anybody waits for it or not, and behind a pooler there are
none.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from evertick.contract.runs import RunDetail
from evertick.domain.errors import RunCancelled
from evertick.domain.ids import Prefix, RunKey, format_id
from evertick.domain.schedule.instants import SECOND_US, from_us
from evertick.domain.states import FINAL_RUNS, JobStatus, RunStatus
from evertick.store.database import is_transient
from evertick.store.engine import lanes
from evertick.store.jobs import jobs as job_rows, runs
from evertick.usecases.context import TenantContext
from evertick.usecases.errors import JobNotFound, RunNotFound
from evertick.usecases.jobs import reading as jobs
from evertick.usecases.runs import reading
from evertick.usecases.runs.reading import run_key

FIRST_PAUSE = 0.02
LONGEST_PAUSE = 1.0
GROWTH = 1.5
MAX_ASKED = 1000
"""Runs in one statement."""


class _Wait:
    """One caller that waits for a run: asked for at `due`, and again after a growing pause."""

    __slots__ = ("due", "future", "key", "pause")

    def __init__(self, key: RunKey) -> None:
        self.key = key
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.pause = FIRST_PAUSE
        self.due = time.monotonic()

    def put_off(self) -> None:
        self.due = time.monotonic() + self.pause
        self.pause = min(GROWTH * self.pause, LONGEST_PAUSE)


class RunWaits:
    """The runs of a tenant that callers on one event loop wait for."""

    def __init__(self, tenant: TenantContext) -> None:
        self._tenant = tenant
        self._waits: set[_Wait] = set()
        self._poll: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    async def finished(self, run_id: str) -> RunDetail:
        """The run once it is over. RunCancelled: its job was deleted before its time. JobNotFound: there was none.

        RunNotFound: there is no such run, as its tick was skipped or it is beyond the history.
        """
        key = run_key(run_id)
        wait = _Wait(key)
        while True:
            await self._over(wait)
            try:
                run = await reading.get_run(self._tenant, run_id)
            except RunNotFound:
                await self._check_job(run_id, key)
            else:
                if run.status in FINAL_RUNS:
                    return run
            wait.future = asyncio.get_running_loop().create_future()
            wait.put_off()

    async def _check_job(self, run_id: str, key: RunKey) -> None:
        """Of a run that is not there and for which no timer waits: return if it may still come."""
        fire_at = from_us(key.fire_at_us)
        try:
            job = await jobs.get(self._tenant, format_id(Prefix.JOB, key.job_id))
        except JobNotFound:
            if not await job_rows.owned(self._tenant.pool, self._tenant.tenant_id, key.job_id):
                raise
            if fire_at > await lanes.clock(self._tenant.pool):
                raise RunCancelled(run_id, RunStatus.CANCELLED, 0, "its job was deleted before its time") from None
            raise RunNotFound(run_id) from None
        if job.status != JobStatus.PAUSED and job.next_run_at != fire_at:
            raise RunNotFound(run_id)  # its tick was skipped, or it is beyond the history

    async def close(self) -> None:
        if self._poll is not None:
            self._poll.cancel()
            await asyncio.gather(self._poll, return_exceptions=True)
        for wait in self._waits:
            if not wait.future.done():
                wait.future.set_exception(RuntimeError("the app was closed while something waited for a run"))

    async def _over(self, wait: _Wait) -> None:
        """Return when neither an attempt of the run is open nor a timer waits for it."""
        self._waits.add(wait)
        self._changed.set()
        if self._poll is None or self._poll.done():
            self._poll = asyncio.create_task(self._ask())
        try:
            await wait.future
        finally:
            self._waits.discard(wait)

    async def _ask(self) -> None:
        while self._waits:
            self._changed.clear()
            now = time.monotonic()
            due = sorted((wait for wait in self._waits if wait.due <= now), key=lambda wait: wait.due)[:MAX_ASKED]
            if due:
                await self._ask_for(due)
            else:
                pause = min(wait.due for wait in self._waits) - now
                await _within(self._changed.wait, pause)

    async def _ask_for(self, due: list[_Wait]) -> None:
        keys = {wait.key for wait in due}
        asked = [(key.job_id, from_us(key.fire_at_us), max(0, key.fire_at_us - SECOND_US)) for key in keys]
        try:
            going_on = await runs.going_on(self._tenant.pool, asked)
        except Exception as error:  # noqa: BLE001 - they wait on, or are told
            for wait in due:
                if is_transient(error):
                    wait.put_off()
                elif not wait.future.done():
                    wait.future.set_exception(error)
                    self._waits.discard(wait)
            return
        for wait in due:
            if (wait.key.job_id, from_us(wait.key.fire_at_us)) in going_on:
                wait.put_off()
            elif not wait.future.done():
                wait.future.set_result(None)
                self._waits.discard(wait)


async def _within(wait: Callable[[], Awaitable[object]], seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await wait()
    except TimeoutError:
        return
