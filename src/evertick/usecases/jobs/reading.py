"""Reading jobs: one by id or by name, and lists."""

import json
from collections.abc import Mapping

from evertick.contract.job import Job, JobStatus
from evertick.domain.ids import Prefix, format_id, parse_id
from evertick.domain.job.checks import UNSTORABLE
from evertick.store.jobs import jobs
from evertick.store.statements import Connection
from evertick.usecases.context import DEFAULT_PER_PAGE, Page, TenantContext, checked_cursor, checked_limit, job_key
from evertick.usecases.errors import JobNotFound
from evertick.usecases.jobs.rows import job_of


async def get(tenant: TenantContext, job_id: str) -> Job:
    """The job of an id, or JobNotFound."""
    return await read_job(tenant.pool, tenant, job_key(job_id))


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


async def list_jobs(  # noqa: PLR0913 - as many filters as there are
    tenant: TenantContext,
    *,
    status: JobStatus | None = None,
    labels: Mapping[str, str] | None = None,
    name_prefix: str | None = None,
    queue: str | None = None,
    limit: int = DEFAULT_PER_PAGE,
    cursor: str | None = None,
) -> Page[Job]:
    """Jobs in the order of their ids, which no write changes. `labels` must all be there with these values.

    A page looks at a limited number of jobs, so it may have few or none though more follow.
    """
    most = checked_limit(limit)
    after = -1 if cursor is None else checked_cursor(cursor, lambda text: parse_id(Prefix.JOB, text))
    wanted = jobs.JobRowFilter(status, json.dumps(dict(labels or {})), name_prefix, queue)
    keys, last_looked_at = await jobs.page(tenant.pool, tenant.tenant_id, wanted, after=after, most=most + 1)
    rows = await jobs.view(tenant.pool, tenant.tenant_id, keys[:most])
    last = keys[most - 1] if len(keys) > most else last_looked_at
    return Page(tuple(map(job_of, rows)), None if last is None else format_id(Prefix.JOB, last))
