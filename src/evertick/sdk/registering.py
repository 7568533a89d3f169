"""Registering the jobs that an app declares, when it starts.

1. Each recurring job is put: created, or replaced if the declaration has changed. The log tells what has changed.
2. A one-off is created once for each declaration: the database remembers the digest of the last one, also after the job
   is gone. One whose time has passed is skipped with a warning.
3. Jobs that the app declared before and does not declare now are orphans. Which version of the code is newer is known
   by when each set of declared jobs was registered first: an old process that starts again during a deployment leaves
   alone what a newer version declares. After a rollback it is the newer version that is gone: what an older one has
   declared again since is no orphan either while a worker of that version is alive. A job that was paused as an orphan
   is resumed by a start that declares it.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from evertick.contract.annotations import MAX_PER_PAGE
from evertick.contract.job import Job, JobDocument
from evertick.domain.errors import InvalidFields, OverBefore
from evertick.domain.serving import AppVersion
from evertick.domain.states import JobStatus
from evertick.sdk.declarations import APP_LABEL, Declarations, Declared, Orphans
from evertick.store.jobs import declared
from evertick.store.jobs.declared import Declaration, DeclaredJob
from evertick.usecases.context import Page, TenantContext, unit_of_work
from evertick.usecases.errors import JobNotFound
from evertick.usecases.jobs import costs, lifecycle, reading
from evertick.usecases.jobs.edit import put
from evertick.usecases.tenants.admission import TenantAdmission

logger = logging.getLogger("evertick.app")

REGISTER_PATIENCE = timedelta(minutes=1)
_T = TypeVar("_T")


async def register(tenant: TenantContext, admission: TenantAdmission, app: str, declarations: Declarations) -> None:
    """Register what an app declares. It may wait for the tenant's rate. InvalidDeclaration: one cannot be used."""
    declarations.check_payloads()
    version = AppVersion(app, declarations.digest)
    version_at = await declared.version(tenant.pool, tenant.tenant_id, version, sorted(declarations.jobs))
    known = await declared.jobs(tenant.pool, tenant.tenant_id, app, version_at)
    registration = _Registration(tenant, admission, app, version_at)
    for job in declarations.jobs.values():
        try:
            await registration.register(job, known.get(job.name))
        except InvalidFields as refused:
            raise job.refusal(refused.faults) from refused
    await registration.settle_orphans(declarations, known)
    await declared.forget_old(tenant.pool, tenant.tenant_id, app)


@dataclass(frozen=True, slots=True)
class _Registration:
    """One start of an app."""

    tenant: TenantContext
    admission: TenantAdmission
    app: str
    version_at: datetime

    @property
    def _orphaned(self) -> str:
        """Why an orphan is paused."""
        return f"app {self.app} does not declare it any more"

    async def register(self, job: Declared, known: DeclaredJob | None) -> None:
        if job.is_one_off and known is not None and known.digest == job.digest:
            await self._note(self.tenant, job)
            return
        try:
            await self._put(job)
        except InvalidFields as refused:
            if not isinstance(refused.__cause__, OverBefore):
                raise
            logger.warning("%s: job %s is skipped: its schedule %s", job.place, job.name, refused.__cause__.reason)
            await self._note(self.tenant, job)

    async def _put(self, job: Declared) -> None:
        if not job.is_one_off:
            await self._note(self.tenant, job)  # first: what an older process takes for an orphan is put after it
        before = await self._named(job.name)
        cost = await costs.of_put(self.tenant, job.name, job.fields)
        async with self.admission.of(cost, REGISTER_PATIENCE) as entry:
            if job.is_one_off:
                # Together: a start that ends in between would create it again when it is over and gone.
                async with unit_of_work(self.tenant) as inside:
                    await self._note(inside, job)
                    done = await put(inside, job.name, job.fields)
            else:
                done = await put(self.tenant, job.name, job.fields)
            entry.created = int(done.is_new)
        if before is None or done.is_new:
            logger.info("%s: created, schedule %s", job.name, done.job.schedule)
            return
        changes = changes_between(before, done.job)
        if changes:
            logger.info("%s: %s", job.name, ", ".join(changes))
        if before.status == JobStatus.PAUSED and before.pause_reason == self._orphaned:
            await lifecycle.resume(self.tenant, before.job_id)
            logger.info("%s: resumed, since the app declares it again", job.name)

    async def settle_orphans(self, declarations: Declarations, known: dict[str, DeclaredJob]) -> None:
        """Do what `orphans` says with jobs that this version does not declare, and no newer one."""
        left: dict[str, list[str]] = {"go on until they are deleted": [], "are paused": [], "are deleted": []}
        newer: list[str] = []
        restored: list[str] = []
        async for job in self._labelled():
            row = known.get(job.name)
            if job.name in declarations.jobs or job.status == JobStatus.FINISHED:
                continue
            is_newer = row is not None and row.version_at > self.version_at
            if not is_newer and row is not None and row.is_restored:
                restored.append(job.name)
                continue
            # What no version is known to have declared, a person has labelled: it is only named.
            orphans = Orphans.WARN if row is None else declarations.orphans
            fate = None if is_newer else await self._settle(job, orphans)
            (newer if fate is None else left[fate]).append(job.name)
        for fate, names in left.items():
            if names:
                logger.warning(
                    "these jobs of app %s are not declared in the code any more, and %s: %s",
                    self.app,
                    fate,
                    ", ".join(sorted(names)),
                )
        if restored:
            logger.warning(
                "these jobs of app %s are not declared in this code, but another version has declared them again and"
                " its workers are alive: they stay as they are until a start without these: %s",
                self.app,
                ", ".join(sorted(restored)),
            )
        if newer:
            logger.warning(
                "these jobs of app %s are declared by a newer version of its code, and stay as they are;"
                " `evertick jobs delete` deletes one that is not wanted any more: %s",
                self.app,
                ", ".join(sorted(newer)),
            )

    async def _settle(self, job: Job, orphans: Orphans) -> str | None:
        """The fate of an orphan. None: it is none, since a newer version has declared it meanwhile."""
        if orphans is Orphans.WARN or (orphans is Orphans.PAUSE and job.status == JobStatus.PAUSED):
            return "are paused" if job.status == JobStatus.PAUSED else "go on until they are deleted"
        async with unit_of_work(self.tenant) as inside:
            if not await declared.lock(inside.pool, inside.tenant_id, self.app, job.name, self.version_at):
                return None
            if orphans is Orphans.PAUSE:
                await lifecycle.pause(inside, job.job_id, self._orphaned)
                return "are paused"
            await lifecycle.delete(inside, job.job_id)
            await declared.forget(inside.pool, inside.tenant_id, self.app, job.name)
            return "are deleted"

    def _labelled(self) -> AsyncIterator[Job]:
        labels = {APP_LABEL: self.app}
        return every_item(
            lambda cursor: reading.list_jobs(self.tenant, labels=labels, limit=MAX_PER_PAGE, cursor=cursor)
        )

    async def _note(self, tenant: TenantContext, job: Declared) -> None:
        declaration = Declaration(job.name, self.version_at, job.digest)
        await declared.declare(tenant.pool, tenant.tenant_id, self.app, declaration)

    async def _named(self, name: str) -> Job | None:
        try:
            return await reading.get_by_name(self.tenant, name)
        except JobNotFound:
            return None


def changes_between(before: Job, after: Job) -> list[str]:
    """What differs, field by field, as in `schedule every 7s → every 5s`."""
    pairs = ((name, getattr(before, name), getattr(after, name)) for name in JobDocument.__struct_fields__)
    return [f"{name} {_shown(old)} → {_shown(new)}" for name, old, new in pairs if old != new]


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 100 else f"{text[:99]}…"


async def every_item(read_page: Callable[[str | None], Awaitable[Page[_T]]]) -> AsyncIterator[_T]:
    """The items of all pages of a list. `read_page` takes the cursor of a page."""
    cursor: str | None = None
    while True:
        page = await read_page(cursor)
        for item in page.items:
            yield item
        cursor = page.next
        if cursor is None:
            return
