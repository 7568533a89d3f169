"""The two backends of commands: the HTTP API and the database, with the same operations for one tenant.

Here is what both share. In all operations a `job` is an id or a name.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from evertick.domain.errors import InvalidInput
from evertick.domain.ids import Prefix, parse_id
from evertick.domain.states import GapStatus, RunStatus

if TYPE_CHECKING:  # importing all answers takes longer than most commands
    from evertick.contract.forecast import ForecastHorizon
    from evertick.contract.runs import Run
    from evertick.contract.server import Attention, Cluster, Stats
    from evertick.contract.workers import Queue
    from evertick.domain.states import JobStatus

_T = TypeVar("_T")

ACTOR = "command line"
"""Who the audit log says made a change on the database."""


class Listing(NamedTuple, Generic[_T]):
    """The first items of a list, and whether the list has more."""

    items: list[_T]
    has_more: bool


class JobListFilter(NamedTuple):
    """Which jobs to list. None and {} match all."""

    status: "JobStatus | None" = None
    labels: Mapping[str, str] = {}
    name_prefix: str | None = None
    queue: str | None = None
    finished: bool = True


class RunListFilter(NamedTuple):
    """Which runs to list: of one job, by id or name, or of all. Only the list of one job has gaps."""

    job: str | None = None
    status: RunStatus | GapStatus | None = None
    from_at: datetime | None = None
    to_at: datetime | None = None
    archive: bool = False


class LetterListFilter(NamedTuple):
    """Which dead letters to replay. None matches all."""

    job: str | None = None
    queue: str | None = None
    error: str | None = None
    label: str | None = None
    died_from: datetime | None = None
    died_before: datetime | None = None


class OverviewFigures(NamedTuple):
    """What `evertick top` shows."""

    stats: "Stats"
    cluster: "Cluster"
    attention: "Attention"
    queues: "list[Queue]"
    runs: "list[Run]"


class ForecastFilter(NamedTuple):
    """What to forecast: how far ahead, and of which jobs."""

    horizon: "ForecastHorizon"
    from_at: datetime | None = None
    to_at: datetime | None = None
    bucket_seconds: int | None = None
    labels: Mapping[str, str] = {}
    queue: str | None = None
    hottest: int = 10
    all_tenants: bool = False


def is_job_id(job: str) -> bool:
    """Whether the text is the id of a job. Otherwise it is a name."""
    try:
        parse_id(Prefix.JOB, job)
    except InvalidInput:
        return False
    return True
