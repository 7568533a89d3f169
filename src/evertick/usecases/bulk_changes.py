"""One change of many jobs. Each job is changed in a transaction of its own, with its entry in the audit log: locks are
short, and what is done stays done if the rest is refused.
"""

import time
from enum import StrEnum
from typing import NamedTuple, assert_never

from evertick.domain.policies import Missed
from evertick.usecases import audit
from evertick.usecases.context import TenantContext, unit_of_work
from evertick.usecases.errors import JobNotFound, TriggerRefused
from evertick.usecases.jobs import lifecycle, reading
from evertick.usecases.runs import requests
from evertick.usecases.transactions import retry_transaction

COUNT_SECONDS = 0.1
COUNTED_AT_ONCE = 10_000


class BulkAction(StrEnum):
    """What can be done with many jobs at once."""

    PAUSE = "pause"
    RESUME = "resume"
    TRIGGER = "trigger"
    DELETE = "delete"

    @property
    def operation(self) -> str:
        """As the audit log names it: like the API's operation on one job."""
        return f"{self}_job"


class BulkChange(NamedTuple):
    """What to do, and who asks for it. `reason` is of a pause, `missed` of a resume."""

    action: BulkAction
    actor: str
    request_id: str
    reason: str | None = None
    missed: Missed = Missed.SKIP


class Matching(NamedTuple):
    """How many jobs match; there are more if it `is_cut`."""

    jobs: int
    is_cut: bool


async def count(tenant: TenantContext, filters: reading.JobFilters) -> Matching:
    """Count jobs, as far as that takes little time."""
    began, found, cursor = time.monotonic(), 0, None
    while time.monotonic() < began + COUNT_SECONDS:
        page = await reading.list_ids(tenant, filters, most=COUNTED_AT_ONCE, cursor=cursor)
        found, cursor = found + len(page.items), page.next
        if cursor is None:
            return Matching(found, is_cut=False)
    return Matching(found, is_cut=True)


async def change_one(tenant: TenantContext, job_id: str, change: BulkChange) -> bool:
    """Change one job. False: it is not there any more, or has a run open beside which its policy allows none."""

    async def work() -> None:
        async with unit_of_work(tenant) as inside:
            subject = await _act(inside, job_id, change)
            await audit.record(inside, change.actor, change.action.operation, subject, change.request_id)

    try:
        await retry_transaction(work)
    except (JobNotFound, TriggerRefused):
        return False
    return True


async def _act(tenant: TenantContext, job_id: str, change: BulkChange) -> str:
    """Returns the subject for the audit log."""
    match change.action:
        case BulkAction.PAUSE:
            await lifecycle.pause(tenant, job_id, change.reason)
        case BulkAction.RESUME:
            await lifecycle.resume(tenant, job_id, change.missed)
        case BulkAction.TRIGGER:
            return await requests.trigger(tenant, job_id)
        case BulkAction.DELETE:
            await lifecycle.delete(tenant, job_id)
        case _:
            assert_never(change.action)
    return job_id
