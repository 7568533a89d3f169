"""Lists of jobs: which ones are on a page, in several orders."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import chain, repeat
from typing import NamedTuple

from evertick.domain.ids import partition_of
from evertick.domain.schedule.instants import to_us
from evertick.store import statements
from evertick.store.jobs.lane_reading import few_per_lane
from evertick.store.statements import Connection

MAX_LOOKED_AT = 10_000
"""Jobs that one page looks at, so that a search for what hardly any job has costs no more than any other page."""
MAX_LETTERS = 10_000
"""Newest dead letters of a tenant among which those of a job are counted."""


class JobRowFilter(NamedTuple):
    """Which jobs to list; None fits all."""

    status: str | None = None
    labels: str = "{}"
    name_prefix: str | None = None
    queue: str | None = None
    handler: str | None = None
    target_host: str | None = None
    has_finished: bool = True


NO_FILTER = JobRowFilter()


class Candidate(NamedTuple):
    """A job in an order, and its position there."""

    job_id: int
    position: str


class _NextRun(NamedTuple):
    """A job and when its tick is due. `cut_at`: from there on more jobs may follow; None: all were read."""

    job_id: int | None
    due_at: datetime | None
    cut_at: datetime | None


class JobsPage(NamedTuple):
    """Jobs that match. `last_looked_at`: if they are fewer than a page, where the next one begins; None at the end."""

    job_ids: list[int]
    last_looked_at: int | None


class LetterCount(NamedTuple):
    """How many of its tenant's newest dead letters are a job's."""

    job_id: int
    letters: int


_SQL = statements.load("job_lists")
_PAGE = _SQL["page"].values(int)
_FITTING = _SQL["fitting"].values(int)
_NEXT_BY_NAME = _SQL["next_by_name"].rows(Candidate)
_NEXT_BY_RUN = _SQL["next_by_run"].rows(_NextRun)
_DUE_TOGETHER = _SQL["due_together"].values(int)
_NEXT_BY_FAILURES = _SQL["next_by_failures"].rows(Candidate)
_COUNT_LETTERS = _SQL["count_letters"].rows(LetterCount)
_NEXT_BY_LAST_FAILURE = _SQL["next_by_last_failure"].rows(Candidate)
_LAST_LOOKED_AT = _SQL["last_looked_at"].values(int)
_LAST_CHARACTER = chr(0x10FFFF)


async def page(connection: Connection, tenant_id: int, wanted: JobRowFilter, *, after: int, most: int) -> JobsPage:
    """Those of a tenant's next jobs that fit. Of a long list it looks at the beginning only."""
    job_ids = await _PAGE.all(
        connection, tenant_id=tenant_id, after=after, most=most, most_looked_at=MAX_LOOKED_AT, **wanted._asdict()
    )
    last_looked_at = None
    if len(job_ids) < most:
        last_looked_at = await _LAST_LOOKED_AT.one_or_none(
            connection, tenant_id=tenant_id, after=after, most_looked_at=MAX_LOOKED_AT
        )
    return JobsPage(job_ids, last_looked_at)


async def fitting(
    connection: Connection, tenant_id: int, job_ids: Sequence[int], wanted: JobRowFilter, most: int
) -> list[int]:
    """Those of some jobs that fit, in their order."""
    return await _FITTING.all(connection, tenant_id=tenant_id, job_ids=job_ids, most=most, **wanted._asdict())


async def next_by_name(
    connection: Connection, tenant_id: int, *, prefix: str, after: str, most: int
) -> list[Candidate]:
    below = prefix + 2 * _LAST_CHARACTER
    return await _NEXT_BY_NAME.all(connection, tenant_id=tenant_id, prefix=prefix, below=below, after=after, most=most)


async def next_by_run(  # noqa: PLR0913 - a position in an order
    connection: Connection, tenant_id: int, *, queue: str | None, after_at: datetime, after_id: int, most: int
) -> list[Candidate]:
    """Look at few jobs of each lane, and at more only if that is not enough. Any number may be due at one instant."""
    of_tenant = {"tenant_id": tenant_id, "queue": queue}
    found = await _due_together(connection, of_tenant, after_at, after_id, most) if after_id >= 0 else []
    for per_lane in chain(few_per_lane(most), repeat(most)):
        left = most - len(found)
        if left <= 0:
            break
        rows = await _NEXT_BY_RUN.all(connection, **of_tenant, after_at=after_at, per_lane=per_lane, most=left)
        found += [_by_run(row.job_id, row.due_at) for row in rows if row.job_id is not None and row.due_at is not None]
        cut_at = rows[0].cut_at
        if cut_at is None:
            break
        found += await _due_together(connection, of_tenant, cut_at, -1, most - len(found))
        after_at = cut_at
    # A job that fired between two statements is found again at its next due time: its first place counts.
    first: dict[int, Candidate] = {}
    for candidate in found:
        first.setdefault(candidate.job_id, candidate)
    return list(first.values())


async def _due_together(
    connection: Connection, of_tenant: Mapping[str, object], due_at: datetime, after_id: int, most: int
) -> list[Candidate]:
    """Jobs that are due at one instant, after one of them; -1: from the first."""
    if most <= 0:
        return []
    first_partition = 0 if after_id < 0 else partition_of(after_id)
    job_ids = await _DUE_TOGETHER.all(
        connection, **of_tenant, due_at=due_at, first_partition=first_partition, after_id=after_id, most=most
    )
    return [_by_run(job_id, due_at) for job_id in job_ids]


def _by_run(job_id: int, due_at: datetime) -> Candidate:
    return Candidate(job_id, f"{to_us(due_at)}.{job_id}")


async def next_by_failures(
    connection: Connection, tenant_id: int, *, after_letters: int, after_id: int, most: int
) -> list[Candidate]:
    return await _NEXT_BY_FAILURES.all(
        connection,
        tenant_id=tenant_id,
        after_letters=after_letters,
        after_id=after_id,
        most=most,
        most_letters=MAX_LETTERS,
    )


async def count_letters(connection: Connection, tenant_id: int, job_ids: list[int]) -> list[LetterCount]:
    return await _COUNT_LETTERS.all(connection, tenant_id=tenant_id, job_ids=job_ids, most_letters=MAX_LETTERS)


async def next_by_last_failure(
    connection: Connection, tenant_id: int, *, after_us: int, after_id: int, most: int
) -> list[Candidate]:
    return await _NEXT_BY_LAST_FAILURE.all(
        connection,
        tenant_id=tenant_id,
        after_us=after_us,
        after_id=after_id,
        most=most,
        most_letters=MAX_LETTERS,
    )
