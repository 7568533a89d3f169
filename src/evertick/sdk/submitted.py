"""What `submit` returns: the names of a one-off's job and run, and a way to ask what became of it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from evertick.domain.ids import Prefix, format_run_id, parse_id
from evertick.domain.schedule.instants import to_us
from evertick.domain.states import RunStatus
from evertick.sdk.link import Link
from evertick.usecases.errors import RunNotFound
from evertick.usecases.jobs import reading as jobs
from evertick.usecases.jobs.create import create
from evertick.usecases.runs import reading as runs


@dataclass(frozen=True, slots=True)
class Submitted:
    """A run that was asked for. It may have begun before `submit` returned."""

    job_id: str
    run_id: str
    fire_at: datetime
    _link: Callable[[], Awaitable[Link]] = field(repr=False, compare=False)

    async def status(self) -> RunStatus:
        """How the run stands now; JobNotFound when it was deleted before its time came."""
        tenant = (await self._link()).tenant
        try:
            return RunStatus((await runs.get_run(tenant, self.run_id)).status)
        except RunNotFound:
            await jobs.get(tenant, self.job_id)
            return RunStatus.PENDING


async def submit(fields: Mapping[str, Any], link: Callable[[], Awaitable[Link]]) -> Submitted:
    """Create the job of a one-off."""
    job = await create((await link()).tenant, fields)
    assert job.next_run_at is not None, "a one-off has one"
    run_id = format_run_id(parse_id(Prefix.JOB, job.job_id), to_us(job.next_run_at))
    return Submitted(job.job_id, run_id, job.next_run_at, link)
