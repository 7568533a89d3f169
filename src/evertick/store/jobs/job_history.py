"""What one job did day by day, and its versions. Called by the use cases for pages."""

from datetime import datetime
from typing import NamedTuple

from evertick.store import statements
from evertick.store.jobs.runs import FireTimeRange
from evertick.store.statements import Connection


class DayRow(NamedTuple):
    """The runs of a day, counted from 1970. What is in neither of the others is open, retried or cancelled."""

    day: int
    runs: int
    succeeded: int
    failed: int


class VersionRow(NamedTuple):
    """A version as it is stored; `actor` as in the audit log, None if that does not say."""

    spec_version: int
    effective_at: datetime
    spec: str
    payload: str | None
    actor: str | None


_SQL = statements.load("job_history")
_DAYS = _SQL["days"].rows(DayRow)
_VERSION = _SQL["version"].values(str)
_VERSIONS = _SQL["versions"].rows(VersionRow)


async def days(connection: Connection, job_id: int, stretch: FireTimeRange, most: int) -> list[DayRow]:
    """The days of a stretch that have runs."""
    return await _DAYS.all(connection, job_id=job_id, most=most, **stretch._asdict())


async def version(connection: Connection, job_id: int, spec_version: int) -> str | None:
    """What a version says, as JSON; None: it is not kept."""
    return await _VERSION.one_or_none(connection, job_id=job_id, spec_version=spec_version)


async def versions(connection: Connection, tenant_id: int, job_id: int, *, subject: str, most: int) -> list[VersionRow]:
    """A job's newest versions, the newest first. `subject` is how the audit log names the job."""
    return await _VERSIONS.all(connection, tenant_id=tenant_id, job_id=job_id, subject=subject, most=most)
