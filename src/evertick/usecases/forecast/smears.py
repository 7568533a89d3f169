"""Smears: an advice is applied to many jobs, looked at and undone here, and worked off by janitors
(`roles/janitor/smearer`), or by the command line on a database.
"""

import asyncio
from collections.abc import Callable

from evertick.contract.forecast import ApplyAdviceRequest, Smear
from evertick.domain.errors import InvalidInput
from evertick.domain.forecast.advice import smearable
from evertick.domain.ids import MAX_ID, Prefix, format_id, parse_id
from evertick.domain.states import SmearStatus
from evertick.runtime.smearing import smear_batch
from evertick.store.database import Pool, Session
from evertick.store.jobs import references, smears
from evertick.store.jobs.smears import SmearRow
from evertick.usecases.context import DEFAULT_PER_PAGE, Page, TenantContext, checked_cursor, checked_limit, page_of
from evertick.usecases.errors import NothingToSmear, SmearFinished, SmearNotFound, TooManySmears
from evertick.usecases.forecast.advising import candidates
from evertick.usecases.forecast.reading import filter_of, labels_of
from evertick.usecases.transactions import Computed, compute_outside

_CHUNK = 50_000
"""Jobs that one statement adds to a smear."""
_POLL_SECONDS = 0.2
MAX_RUNNING = 5
"""Smears of a tenant at the same time."""


async def apply(tenant: TenantContext, given: ApplyAdviceRequest, actor: str) -> Smear:
    """Start to give the jitter of an advice to the jobs of its rules. NothingToSmear: no job may get it.

    Of more jobs than one smear may have, some get it; the others may with the next smear.
    """
    rule_ids = [int(text, 16) for text in given.rules]
    canonicals = await references.rules(tenant.pool, rule_ids)

    def may_be_smeared() -> Computed[list[int]]:
        return Computed([key for key, text in canonicals.items() if smearable(text, given.jitter_seconds)])

    allowed = await compute_outside(
        tenant.tenant_id, ("smear", given.jitter_seconds, *sorted(canonicals)), may_be_smeared
    )
    wanted = filter_of(tenant.tenant_id, labels_of(given.label), given.queue)
    found = await candidates(tenant, wanted, allowed) if allowed else []
    job_ids = [job_id for each in found for job_id in each.job_ids]
    versions = [version for each in found for version in each.spec_versions]
    if not job_ids:
        raise NothingToSmear(given.jitter_seconds)
    if await smears.count_running(tenant.pool, tenant.tenant_id) >= MAX_RUNNING:
        raise TooManySmears(MAX_RUNNING)

    async def start(session: Session) -> int:
        smear_id = await smears.start(session, tenant.tenant_id, given.jitter_seconds, actor)
        for first in range(0, len(job_ids), _CHUNK):
            chunk = slice(first, first + _CHUNK)
            await smears.add_jobs(session, smear_id, job_ids[chunk], versions[chunk])
        return smear_id

    return await get(tenant, format_id(Prefix.SMEAR, await tenant.in_transaction(start)))


async def list_smears(
    tenant: TenantContext, *, limit: int = DEFAULT_PER_PAGE, cursor: str | None = None
) -> Page[Smear]:
    """The tenant's smears, newest first."""
    most = checked_limit(limit)
    before = MAX_ID if cursor is None else checked_cursor(cursor, lambda text: parse_id(Prefix.SMEAR, text))
    rows = await smears.page(tenant.pool, tenant.tenant_id, before=before, most=most + 1)
    return page_of([_smear_of(row) for row in rows], most, lambda smear: smear.smear_id)


async def get(tenant: TenantContext, smear_id: str) -> Smear:
    """A smear with its progress."""
    return _smear_of(await _row(tenant, smear_id))


async def undo(tenant: TenantContext, smear_id: str) -> Smear:
    """Start to take the jitter back from jobs that were not edited since. SmearFinished: that is done, or under way."""
    row = await _row(tenant, smear_id)
    if not await smears.undo(tenant.pool, tenant.tenant_id, row.smear_id):
        raise SmearFinished(smear_id, SmearStatus((await _row(tenant, smear_id)).status))
    return await get(tenant, smear_id)


async def work_off(tenant: TenantContext, smear_id: str, progress: Callable[[Smear], None]) -> Smear:
    """Do batches until a smear is over, as a janitor does; they may both be at work."""
    assert isinstance(tenant.pool, Pool)
    while True:
        found = await get(tenant, smear_id)
        progress(found)
        if found.finished_at is not None:
            return found
        if await smear_batch(tenant.pool) is None:
            await asyncio.sleep(_POLL_SECONDS)  # a janitor has it, or jobs are locked


async def _row(tenant: TenantContext, smear_id: str) -> SmearRow:
    try:
        key = parse_id(Prefix.SMEAR, smear_id)
    except InvalidInput:
        raise SmearNotFound(smear_id) from None
    rows = await smears.page(tenant.pool, tenant.tenant_id, before=MAX_ID, only=key, most=1)
    if not rows:
        raise SmearNotFound(smear_id)
    return rows[0]


def _smear_of(row: SmearRow) -> Smear:
    return Smear(
        smear_id=format_id(Prefix.SMEAR, row.smear_id),
        status=SmearStatus(row.status),
        jitter_seconds=row.jitter_seconds,
        jobs=row.jobs,
        waiting=row.waiting,
        changed=row.changed,
        skipped=row.skipped,
        undone=row.undone,
        kept=row.kept,
        created_at=row.created_at,
        created_by=row.actor,
        finished_at=row.finished_at,
    )
