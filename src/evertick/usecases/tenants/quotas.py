"""Admission by quota: what this process knows of tenants' use, and whether a request may enter.

The rate at which a tenant submits is one for all processes: they draw slices of its rate bucket. Jobs and runs are
counted now and then, and reserved in between, so with several processes a tenant may pass its quota by what the others
admit in that time. A tenant that would pass its quota of jobs is counted anew, and waits for the count.

While the whole system is overloaded, what tenants with the most waiting attempts submit is refused, by priority.
"""

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass, field
from datetime import timedelta

from evertick.domain.admission import Admission, AdmissionRequest, Admitted, Quota, Throttled, Usage, admit, with_rate
from evertick.domain.backpressure import ADMITTED_BELOW, DEFAULT_MAX_READY_IN_ALL, REFUSED_FROM, refused_priorities
from evertick.domain.limits import QuotaName
from evertick.domain.policies import Priority
from evertick.domain.rate_bucket import Drawn
from evertick.runtime.concurrency import Cached
from evertick.runtime.rate_slices import RateSlices
from evertick.store.database import Pool, is_transient, reason_of
from evertick.store.engine import ready
from evertick.store.engine.rate_buckets import DatabaseBuckets, RateBuckets, submit_key
from evertick.store.tenants import tenants
from evertick.store.tenants.tenants import Activity, StoredBytes, TenantRow
from evertick.usecases.tenants.tenants import quota_of

logger = logging.getLogger("evertick")

COUNT_SECONDS = 10.0
SHARE_OF_COUNTING = 100
"""A count that took a second is good for so many: counting must not become the load."""
ACTIVITY_SECONDS = 1.0
SHARE_OF_LOOKING = 50
"""As `SHARE_OF_COUNTING`, for a look at what waits in the whole system."""
LOOK_WAIT_SECONDS = 0.1
"""For so long a submission waits for a look that is under way. Then the last one counts."""
DUE_PER_LANE = 100
"""Due timers of a tenant that are counted in one lane."""
MAX_COUNTED_ROOM = 25_000
"""Of a tenant that may have so many more attempts waiting, due timers are not counted."""
STORAGE_SECONDS = 1.0
"""Storage is summed up in the database, so looking costs little; a tenant may pass its quota by a second's writes."""
_IDLE = Activity(0, 0)
_NOTHING = StoredBytes(0, 0)


class _AdmittedRuns:
    """Runs that were admitted and are not in the last count: their requests are under way, or ended after it began."""

    def __init__(self) -> None:
        self.count = 0
        self._ended: deque[tuple[float, int]] = deque()

    def add(self, runs: int) -> None:
        self.count += runs

    def end(self, runs: int) -> None:
        self._ended.append((time.monotonic(), runs))

    def counted(self, began: float) -> None:
        """A count began at this time: it has what ended before."""
        while self._ended and self._ended[0][0] < began:
            self.count -= self._ended.popleft()[1]


class _Overload:
    """How loaded the system is, looked at about once a second while somebody submits."""

    def __init__(self, pool: Pool, max_ready: int) -> None:
        self._pool = pool
        self._max_ready = max_ready
        self._least = int(ADMITTED_BELOW * min(REFUSED_FROM.values()) * max_ready)
        self._refused: frozenset[Priority] = frozenset()
        self._tenant_ids: frozenset[int] = frozenset()
        self._until = 0.0
        self._looking = Cached(self._look, 0.0)

    async def refused(self, tenant_id: int) -> frozenset[Priority]:
        if time.monotonic() > self._until:
            # A submission neither fails nor waits for long because of a look.
            await asyncio.wait({self._looking.refresh()}, timeout=LOOK_WAIT_SECONDS)
        return self._refused if tenant_id in self._tenant_ids else frozenset()

    async def _look(self) -> None:
        began = time.monotonic()
        try:
            load = await ready.load(self._pool, self._least)
        except Exception as error:
            if not (is_transient(error) or isinstance(error, TimeoutError)):
                raise
            logger.warning("could not count what waits for workers (%s): the last count holds", reason_of(error))
            return
        finally:
            self._until = began + max(ACTIVITY_SECONDS, SHARE_OF_LOOKING * (time.monotonic() - began))
        before, self._refused = self._refused, refused_priorities(self._refused, load.ready, self._max_ready)
        self._tenant_ids = frozenset(load.tenant_ids)
        if before != self._refused:
            words = ", ".join(sorted(self._refused)) or "none"
            logger.warning("%d attempts wait for workers: submissions of priority %s are refused", load.ready, words)


@dataclass(slots=True)
class _Use:
    """What is known of one tenant. `pending` jobs are reserved, and created or not; `created` are all that ever were.

    Times are monotonic. A look at jobs or runs under way is for all who want one meanwhile: a tenant that is over its
    quota would otherwise have its jobs counted by as many statements as it sends requests.
    """

    quota: Quota
    jobs: int = 0
    pending: int = 0
    created: int = 0
    runs: _AdmittedRuns = field(default_factory=_AdmittedRuns)
    jobs_until: float = 0.0
    activity: Activity = _IDLE
    due: int = 0
    activity_until: float = 0.0
    stored: StoredBytes = _NOTHING
    stored_until: float = 0.0
    counting: Cached[None] = field(init=False)
    looking: Cached[None] = field(init=False)


class Quotas:
    """Admits requests, tenant by tenant."""

    def __init__(
        self, pool: Pool, buckets: RateBuckets | None = None, max_ready: int = DEFAULT_MAX_READY_IN_ALL
    ) -> None:
        self._pool = pool
        self._overload = _Overload(pool, max_ready)
        self._slices = RateSlices(buckets or DatabaseBuckets(pool))
        self._uses: dict[int, _Use] = {}

    async def admit(self, tenant: TenantRow, request: AdmissionRequest) -> Admission:
        """Admit a request, or name the quota that refuses it. The jobs of an admitted one are reserved."""
        quota = quota_of(tenant)
        use = self._uses.get(tenant.tenant_id)
        if use is None:
            use = self._new_use(tenant.tenant_id, quota)
        use.quota = quota
        if request.jobs and (not use.jobs_until or use.jobs + request.jobs > quota.jobs):
            await use.counting.get()
        elif request.jobs and time.monotonic() > use.jobs_until:
            # A million jobs take long to count: nobody waits for that while there is room.
            use.counting.refresh()
        if request.runs and time.monotonic() > use.activity_until:
            await use.looking.get()
        if time.monotonic() > use.stored_until:
            await self._look_at_storage(tenant.tenant_id, use)
        overload = frozenset[Priority]() if request.priority is None else await self.overload(tenant.tenant_id)
        waiting = use.activity.ready + use.due + use.runs.count
        verdict = admit(quota, Usage(use.jobs, use.activity.running, waiting, *use.stored, overload), request)
        if isinstance(verdict, Admitted):
            verdict = await self._draw(tenant, use, request, verdict)
        return verdict

    async def _draw(self, tenant: TenantRow, use: _Use, request: AdmissionRequest, admitted: Admitted) -> Admission:
        """Draw what the counts admit from the rate. Its jobs are reserved first: others are admitted meanwhile."""
        rate = use.quota.submit
        use.runs.add(request.runs)
        self._reserve(use, admitted.jobs)
        verdict: Admission | None = None
        try:
            least = 1 if request.is_batch else admitted.submits
            most = min(admitted.submits, rate.burst)
            drawn = (
                await self._slices.take(submit_key(tenant.tenant_id), rate, least=least, most=most)
                if most
                else Drawn(0)
            )
            verdict = with_rate(rate, admitted, drawn)
        finally:
            kept = verdict.jobs if isinstance(verdict, Admitted) else 0
            self._reserve(use, kept - admitted.jobs)
            if not isinstance(verdict, Admitted):
                use.runs.add(-request.runs)
        return verdict

    async def overload(self, tenant_id: int) -> frozenset[Priority]:
        """Submissions of which priorities are refused because the system is overloaded, and the tenant a part of it."""
        return await self._overload.refused(tenant_id)

    def end_runs(self, tenant_id: int, runs: int) -> None:
        """A request with admitted runs has ended: their timers are in the table, or never will be."""
        if runs:
            self._uses[tenant_id].runs.end(runs)

    @staticmethod
    def _reserve(use: _Use, jobs: int) -> None:
        use.jobs = max(0, use.jobs + jobs)
        use.pending += jobs

    def throttled(self, tenant: TenantRow) -> Throttled | None:
        """Whether the rate admits nothing at all now: known at once, for requests that are costly to look at."""
        refusal = self._slices.refusal(submit_key(tenant.tenant_id))
        if refusal is None:
            return None
        return Throttled(QuotaName.SUBMIT_RATE, timedelta(microseconds=refusal.wait_us))

    def confirm(self, tenant: TenantRow, reserved: int, created: int) -> None:
        """Replace the jobs that an admitted request reserved by those that it created."""
        use = self._uses[tenant.tenant_id]
        use.pending -= reserved
        use.created += created
        use.jobs = max(0, use.jobs - (reserved - created))

    async def draw_up_to(self, tenant: TenantRow, submits: int) -> int:
        """Draw as much of this as the rate admits now, for a request that finds out only later how much it does."""
        if not submits:
            return 0
        return (
            await self._slices.take(submit_key(tenant.tenant_id), quota_of(tenant).submit, least=1, most=submits)
        ).granted

    def give_back(self, tenant_id: int, submits: int) -> None:
        """Return what was drawn for something that was undone."""
        if submits:
            self._slices.give_back(submit_key(tenant_id), submits)

    def _new_use(self, tenant_id: int, quota: Quota) -> _Use:
        use = self._uses[tenant_id] = _Use(quota)
        use.counting = Cached(lambda: self._count_jobs(tenant_id, use), 0.0)
        use.looking = Cached(lambda: self._look_at_activity(tenant_id, use), 0.0)
        return use

    async def _look_at_activity(self, tenant_id: int, use: _Use) -> None:
        began = time.monotonic()
        # First what is not fired yet: a run that is fired in between counts twice rather than not at all. It need not
        # be counted where there is much room.
        is_near = use.activity.ready + MAX_COUNTED_ROOM >= use.quota.ready
        use.due = await tenants.count_due(self._pool, tenant_id, DUE_PER_LANE) if is_near else 0
        use.activity = await tenants.activity(self._pool, tenant_id, use.quota.ready + 1)
        use.runs.counted(began)
        use.activity_until = time.monotonic() + ACTIVITY_SECONDS

    async def _look_at_storage(self, tenant_id: int, use: _Use) -> None:
        began = time.monotonic()
        use.stored_until = began + STORAGE_SECONDS  # the others need not look at the same time
        use.stored = await tenants.stored(self._pool, tenant_id)
        use.stored_until = began + max(STORAGE_SECONDS, SHARE_OF_COUNTING * (time.monotonic() - began))

    async def _count_jobs(self, tenant_id: int, use: _Use) -> None:
        began, created = time.monotonic(), use.created
        counted = await tenants.count_jobs(self._pool, tenant_id, use.quota.jobs + 1)
        # What is pending, or was created since, may be in the count or not: better twice than not at all.
        use.jobs = counted + use.pending + use.created - created
        took = time.monotonic() - began
        use.jobs_until = began + max(COUNT_SECONDS, SHARE_OF_COUNTING * took)
