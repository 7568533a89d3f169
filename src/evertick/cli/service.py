"""What commands ask for, wherever it is done: `services` has the ways there. Answers are the HTTP API's, typed."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from evertick.contract.dead_letters import DeadLetter, Replaying
from evertick.contract.job import Job, JobStatus
from evertick.contract.jobs import Missed, Verdict
from evertick.contract.runs import RunDetail, RunOrGap
from evertick.domain.errors import InvalidInput
from evertick.domain.ids import Prefix, parse_id
from evertick.domain.states import GapStatus, RunStatus

_T = TypeVar("_T")

JOBS_OWN_PAYLOAD = msgspec.UNSET


class Found(NamedTuple, Generic[_T]):
    """The first of a list, and whether there are more."""

    items: list[_T]
    is_more: bool


class JobFilter(NamedTuple):
    """Which jobs are wanted; None: whichever."""

    status: JobStatus | None = None
    labels: Mapping[str, str] = {}
    name_prefix: str | None = None
    queue: str | None = None


class RunFilter(NamedTuple):
    """Which runs are wanted: of a job, by id or name, or of all; gaps only stand in a job's."""

    job: str | None = None
    status: RunStatus | GapStatus | None = None
    from_at: datetime | None = None
    to_at: datetime | None = None


class Service(Protocol):
    """One tenant's Evertick. A `job` is an id or a name."""

    async def add_job(self, fields: Mapping[str, Any]) -> Job: ...

    async def put_job(self, name: str, fields: Mapping[str, Any]) -> Job:
        """Add the job of this name, or replace it."""
        ...

    async def add_jobs(self, batch: Sequence[object]) -> list[Verdict]:
        """Add those that can be; a verdict on each, in their order."""
        ...

    async def get_job(self, job: str) -> Job: ...
    async def list_jobs(self, wanted: JobFilter, limit: int) -> Found[Job]: ...
    async def edit_job(self, job: str, fields: Mapping[str, Any]) -> Job: ...
    async def pause_job(self, job: str, reason: str | None) -> Job: ...
    async def resume_job(self, job: str, missed: Missed) -> Job: ...
    async def delete_job(self, job: str) -> str:
        """Returns its id."""
        ...

    async def trigger_job(self, job: str, payload: Any) -> str:
        """Returns the new run's id. The payload may be JOBS_OWN_PAYLOAD."""
        ...

    async def list_runs(self, wanted: RunFilter, limit: int) -> Found[RunOrGap]: ...
    async def get_run(self, run_id: str) -> RunDetail: ...
    async def cancel_run(self, run_id: str) -> RunDetail: ...
    async def replay_run(self, run_id: str) -> str:
        """Returns the new run's id."""
        ...

    async def list_letters(self, job: str | None, limit: int) -> Found[DeadLetter]: ...
    async def replay_letter(self, run_id: str) -> str:
        """Returns the new run's id."""
        ...

    async def replay_letters(self, job: str | None) -> Replaying:
        """Replay all, or all of a job."""
        ...

    async def dismiss_letter(self, run_id: str) -> None: ...


def is_job_id(job: str) -> bool:
    """Whether a job was given by its id, not by its name."""
    try:
        parse_id(Prefix.JOB, job)
    except InvalidInput:
        return False
    return True
