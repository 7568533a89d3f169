"""The operations that commands call. `backends` implements them on the HTTP API and on the database."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from evertick.contract.job import Job, JobStatus
from evertick.contract.jobs import Missed, Verdict
from evertick.contract.runs import DeadLetter, Replaying, RunDetail, RunOrGap
from evertick.domain.errors import InvalidInput
from evertick.domain.ids import Prefix, parse_id
from evertick.domain.states import GapStatus, RunStatus

_T = TypeVar("_T")

JOB_PAYLOAD = msgspec.UNSET
"""A triggered run takes the job's payload."""


class Listing(NamedTuple, Generic[_T]):
    """The first items of a list, and whether the list has more."""

    items: list[_T]
    has_more: bool


class JobFilter(NamedTuple):
    """Which jobs to list. None and {} match all."""

    status: JobStatus | None = None
    labels: Mapping[str, str] = {}
    name_prefix: str | None = None
    queue: str | None = None


class RunFilter(NamedTuple):
    """Which runs to list: of one job, by id or name, or of all. Only the list of one job has gaps."""

    job: str | None = None
    status: RunStatus | GapStatus | None = None
    from_at: datetime | None = None
    to_at: datetime | None = None


class Backend(Protocol):
    """The operations on behalf of one tenant. A `job` is an id or a name."""

    async def add_job(self, fields: Mapping[str, Any]) -> Job: ...

    async def put_job(self, name: str, fields: Mapping[str, Any]) -> Job:
        """Create the job of this name, or replace it."""
        ...

    async def add_jobs(self, batch: Sequence[object]) -> list[Verdict]:
        """Create the valid jobs. Returns a verdict for each job, in their order."""
        ...

    async def get_job(self, job: str) -> Job: ...
    async def list_jobs(self, filters: JobFilter, limit: int) -> Listing[Job]: ...
    async def edit_job(self, job: str, fields: Mapping[str, Any]) -> Job: ...
    async def pause_job(self, job: str, reason: str | None) -> Job: ...
    async def resume_job(self, job: str, missed: Missed) -> Job: ...
    async def delete_job(self, job: str) -> str:
        """Returns the id of the deleted job."""
        ...

    async def trigger_job(self, job: str, payload: Any) -> str:
        """Returns the new run's id. The payload may be JOB_PAYLOAD."""
        ...

    async def list_runs(self, filters: RunFilter, limit: int) -> Listing[RunOrGap]: ...
    async def get_run(self, run_id: str) -> RunDetail: ...
    async def cancel_run(self, run_id: str) -> RunDetail: ...
    async def replay_run(self, run_id: str) -> str:
        """Returns the new run's id."""
        ...

    async def list_dead_letters(self, job: str | None, limit: int) -> Listing[DeadLetter]: ...
    async def replay_dead_letter(self, run_id: str) -> str:
        """Returns the new run's id."""
        ...

    async def replay_dead_letters(self, job: str | None) -> Replaying:
        """Replay all dead letters, or all of one job."""
        ...

    async def dismiss_dead_letter(self, run_id: str) -> None: ...


def is_job_id(job: str) -> bool:
    """Whether the text is the id of a job. Otherwise it is a name."""
    try:
        parse_id(Prefix.JOB, job)
    except InvalidInput:
        return False
    return True
