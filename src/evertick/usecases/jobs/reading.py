"""Reading jobs: one by id or by name, and lists."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict, Unpack

from evertick.contract.job import Job
from evertick.contract.jobs import JobSort
from evertick.domain.ids import MAX_ID, Prefix, format_id, parse_id
from evertick.domain.job.checks import UNSTORABLE
from evertick.domain.schedule.instants import from_us
from evertick.domain.states import JobStatus, RunStatus
from evertick.store.jobs import job_lists, jobs
from evertick.store.statements import Connection
from evertick.usecases.context import DEFAULT_PER_PAGE, Page, TenantContext, checked_cursor, checked_limit, job_key
from evertick.usecases.errors import JobNotFound
from evertick.usecases.jobs.rows import job_of

MAX_SORTED = 2_000
"""Jobs that a page in another order than that of ids looks at, if not all of them fit."""
MAX_BY_RUN = 300
"""The same for the order of the next run, which reads so many of each of the tenant's lanes: some hundreds."""
_LAST_US = 253_000_000_000_000_000  # in the year 9987


async def get(tenant: TenantContext, job_id: str) -> Job:
    """The job of an id, or JobNotFound."""
    return await read_job(tenant.pool, tenant, job_key(job_id))


async def get_written(tenant: TenantContext, job: Job) -> dict[str, Any]:
    """The fields of a job as its author wrote them: without defaults, and without what was worked out."""
    stored = await jobs.stored(tenant.pool, job_key(job.job_id))
    return {**json.loads(stored.spec), "payload": job.payload}


async def get_by_name(tenant: TenantContext, name: str) -> Job:
    """The job of a name, or JobNotFound."""
    key = await _key_of(tenant, name)
    if key is None:
        raise JobNotFound(repr(name))
    return await read_job(tenant.pool, tenant, key)


async def has_name(tenant: TenantContext, name: str) -> bool:
    """Whether a job has this name now."""
    return await _key_of(tenant, name) is not None


async def _key_of(tenant: TenantContext, name: str) -> int | None:
    # The database refuses a name that it cannot store.
    return None if UNSTORABLE.search(name) else await jobs.named(tenant.pool, tenant.tenant_id, name)


async def read_job(connection: Connection, tenant: TenantContext, key: int) -> Job:
    """The job as this transaction sees it."""
    rows = await jobs.view(connection, tenant.tenant_id, [key])
    if not rows:
        raise JobNotFound(format_id(Prefix.JOB, key))
    return job_of(rows[0])


def labels_of(texts: Iterable[str]) -> dict[str, str] | None:
    """Labels from texts such as `team:billing`. None: no job has them all, for a key has one value."""
    pairs = {(key, value) for key, _, value in (text.partition(":") for text in texts)}
    labels = dict(pairs)
    return labels if len(labels) == len(pairs) else None


class JobFilters(TypedDict, total=False):
    """Which jobs; without a filter, all. `labels` must all be there with these values."""

    status: JobStatus | None
    labels: Mapping[str, str] | None
    name_prefix: str | None
    queue: str | None
    handler: str | None
    target_host: str | None
    finished: bool
    """False leaves out jobs that have finished."""


def _row_filter(filters: JobFilters) -> job_lists.JobRowFilter:
    return job_lists.JobRowFilter(
        filters.get("status"),
        json.dumps(dict(filters.get("labels") or {})),
        filters.get("name_prefix"),
        filters.get("queue"),
        filters.get("handler"),
        filters.get("target_host"),
        filters.get("finished", True),
    )


async def list_jobs(
    tenant: TenantContext,
    *,
    sort: JobSort = JobSort.CREATED,
    limit: int = DEFAULT_PER_PAGE,
    cursor: str | None = None,
    **filters: Unpack[JobFilters],
) -> Page[Job]:
    """Jobs in an order; that of their ids is one that no write changes.

    A page looks at a limited number of jobs, so it may have few or none though more follow.
    """
    most = checked_limit(limit)
    if sort is not JobSort.CREATED:
        return await _sorted_page(tenant, _row_filter(filters), sort, most, cursor)
    keys, following = await _keys(tenant, _row_filter(filters), most, cursor)
    rows = await jobs.view(tenant.pool, tenant.tenant_id, keys)
    return Page(tuple(map(job_of, rows)), following)


async def count_letters(tenant: TenantContext, listed: Sequence[Job]) -> dict[str, int]:
    """How many dead letters jobs have, by their ids: the numbers that `JobSort.FAILURES` orders by."""
    if not listed:
        return {}
    counted = await job_lists.count_letters(tenant.pool, tenant.tenant_id, [job_key(job.job_id) for job in listed])
    return {format_id(Prefix.JOB, each.job_id): each.letters for each in counted}


async def list_ids(tenant: TenantContext, filters: JobFilters, *, most: int, cursor: str | None = None) -> Page[str]:
    """As `list_jobs` in the order of ids, but the ids alone."""
    keys, following = await _keys(tenant, _row_filter(filters), most, cursor)
    return Page(tuple(format_id(Prefix.JOB, key) for key in keys), following)


async def _keys(
    tenant: TenantContext, wanted: job_lists.JobRowFilter, most: int, cursor: str | None
) -> tuple[list[int], str | None]:
    after = -1 if cursor is None else checked_cursor(cursor, lambda text: parse_id(Prefix.JOB, text))
    keys, last_looked_at = await job_lists.page(tenant.pool, tenant.tenant_id, wanted, after=after, most=most + 1)
    last = keys[most - 1] if len(keys) > most else last_looked_at
    return keys[:most], None if last is None else format_id(Prefix.JOB, last)


async def _sorted_page(
    tenant: TenantContext, wanted: job_lists.JobRowFilter, sort: JobSort, most: int, cursor: str | None
) -> Page[Job]:
    """Look at the next jobs in this order, and keep those that fit."""
    # A name's prefix bounds the search by name itself, and a queue that by the next run.
    others = wanted._replace(name_prefix=None) if sort is JobSort.NAME else wanted
    is_filtered = (others._replace(queue=None) if sort is JobSort.NEXT_RUN else others) != job_lists.NO_FILTER
    longest = MAX_BY_RUN if sort is JobSort.NEXT_RUN else MAX_SORTED
    look = max(longest, most + 1) if is_filtered else most + 1
    found = await _candidates(tenant, wanted, sort, look, cursor)
    ids = [candidate.job_id for candidate in found]
    kept = await job_lists.fitting(tenant.pool, tenant.tenant_id, ids, wanted, most + 1)
    viewed = {row.job_id: job_of(row) for row in await jobs.view(tenant.pool, tenant.tenant_id, kept[:most])}
    if sort is JobSort.LAST_STATUS:
        # A later run may have succeeded: that is seen with the rest of the job.
        viewed = {key: job for key, job in viewed.items() if job.last_run_status == RunStatus.DEAD}
    positions = {candidate.job_id: candidate.position for candidate in found}
    end = found[-1].position if len(found) == look else None
    following = positions[kept[most - 1]] if len(kept) > most else end
    return Page(tuple(viewed[key] for key in kept[:most] if key in viewed), following)


async def _candidates(
    tenant: TenantContext, wanted: job_lists.JobRowFilter, sort: JobSort, most: int, cursor: str | None
) -> list[job_lists.Candidate]:
    pool, tenant_id = tenant.pool, tenant.tenant_id
    if sort is JobSort.NAME:
        return await job_lists.next_by_name(
            pool, tenant_id, prefix=wanted.name_prefix or "", after=cursor or "", most=most
        )
    place, after_id = (None, -1) if cursor is None else checked_cursor(cursor, _position)
    if sort is JobSort.NEXT_RUN:
        after_at = from_us(0 if place is None else place)
        return await job_lists.next_by_run(
            pool, tenant_id, queue=wanted.queue, after_at=after_at, after_id=after_id, most=most
        )
    if sort is JobSort.LAST_STATUS:
        after_us = _LAST_US if place is None else place
        return await job_lists.next_by_last_failure(pool, tenant_id, after_us=after_us, after_id=after_id, most=most)
    letters = job_lists.MAX_LETTERS + 1 if place is None else place
    return await job_lists.next_by_failures(pool, tenant_id, after_letters=letters, after_id=after_id, most=most)


def _position(text: str) -> tuple[int, int]:
    """Where a page of an order by numbers ended: the number, and the job."""
    place, _, job_id = text.partition(".")
    found = int(place), int(job_id)
    if not all(0 <= value <= MAX_ID for value in found) or found[0] > _LAST_US:
        raise ValueError(text)
    return found
