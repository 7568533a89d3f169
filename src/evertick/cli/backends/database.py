"""Operations of commands as use cases on the database."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from evertick.cli.backend import JobFilter, Listing, RunFilter, is_job_id
from evertick.contract.annotations import MAX_PER_PAGE
from evertick.contract.job import Job
from evertick.contract.jobs import Missed, Verdict
from evertick.contract.runs import DEFAULT_RATE, DeadLetter, LetterFilter, Replaying, RunDetail, RunOrGap
from evertick.contract.server import InputError
from evertick.domain.states import GapStatus
from evertick.usecases.context import Page, TenantContext
from evertick.usecases.jobs import edit, lifecycle, reading as jobs
from evertick.usecases.jobs.create import create
from evertick.usecases.jobs.create_many import LineResult, create_many
from evertick.usecases.runs import dead_letters, reading as runs, requests

_T = TypeVar("_T")


class DatabaseBackend:
    """Each operation is one use case."""

    def __init__(self, tenant: TenantContext) -> None:
        self._tenant = tenant

    async def add_job(self, fields: Mapping[str, Any]) -> Job:
        return await create(self._tenant, fields)

    async def put_job(self, name: str, fields: Mapping[str, Any]) -> Job:
        return (await edit.put(self._tenant, name, fields)).job

    async def add_jobs(self, batch: Sequence[object]) -> list[Verdict]:
        results = await create_many(self._tenant, batch)
        return [_verdict(line, result) for line, result in enumerate(results, 1)]

    async def get_job(self, job: str) -> Job:
        find = jobs.get if is_job_id(job) else jobs.get_by_name
        return await find(self._tenant, job)

    async def list_jobs(self, filters: JobFilter, limit: int) -> Listing[Job]:
        return await _listing(
            limit,
            lambda size, cursor: jobs.list_jobs(self._tenant, **filters._asdict(), limit=size, cursor=cursor),
        )

    async def edit_job(self, job: str, fields: Mapping[str, Any]) -> Job:
        return await edit.edit(self._tenant, await self._id(job), fields)

    async def pause_job(self, job: str, reason: str | None) -> Job:
        return await lifecycle.pause(self._tenant, await self._id(job), reason)

    async def resume_job(self, job: str, missed: Missed) -> Job:
        return await lifecycle.resume(self._tenant, await self._id(job), missed)

    async def delete_job(self, job: str) -> str:
        job_id = await self._id(job)
        await lifecycle.delete(self._tenant, job_id)
        return job_id

    async def trigger_job(self, job: str, payload: Any) -> str:
        return await requests.trigger(self._tenant, await self._id(job), payload)

    async def list_runs(self, filters: RunFilter, limit: int) -> Listing[RunOrGap]:
        job, status, since, until = filters
        if job is not None:
            job_id = await self._id(job)
            return await _listing(
                limit,
                lambda size, cursor: runs.job_runs(
                    self._tenant, job_id, limit=size, cursor=cursor, status=status, from_at=since, to_at=until
                ),
            )
        assert not isinstance(status, GapStatus)
        found = await _listing(
            limit,
            lambda size, cursor: runs.tenant_runs(
                self._tenant, limit=size, cursor=cursor, status=status, from_at=since, to_at=until
            ),
        )
        return Listing(list(found.items), found.has_more)

    async def get_run(self, run_id: str) -> RunDetail:
        return await runs.get_run(self._tenant, run_id)

    async def cancel_run(self, run_id: str) -> RunDetail:
        await requests.cancel(self._tenant, run_id)
        return await self.get_run(run_id)

    async def replay_run(self, run_id: str) -> str:
        return await requests.replay(self._tenant, run_id)

    async def list_dead_letters(self, job: str | None, limit: int) -> Listing[DeadLetter]:
        job_id = None if job is None else await self._id(job)
        return await _listing(
            limit,
            lambda size, cursor: dead_letters.list_letters(self._tenant, job_id=job_id, limit=size, cursor=cursor),
        )

    async def replay_dead_letter(self, run_id: str) -> str:
        return await requests.replay_letter(self._tenant, run_id)

    async def replay_dead_letters(self, job: str | None) -> Replaying:
        chosen = LetterFilter(job_id=None if job is None else await self._id(job))
        done = await dead_letters.replay_letters(self._tenant, chosen, DEFAULT_RATE)
        return done.replaying(len(done.runs))

    async def dismiss_dead_letter(self, run_id: str) -> None:
        await dead_letters.dismiss(self._tenant, run_id)

    async def _id(self, job: str) -> str:
        return job if is_job_id(job) else (await jobs.get_by_name(self._tenant, job)).job_id


def _verdict(line: int, result: LineResult) -> Verdict:
    errors = tuple(InputError(pointer, reason) for pointer, reason in result.faults)
    return Verdict(line=line, status=422 if errors else 201, job_id=result.job_id, errors=errors)


async def _listing(limit: int, page: Callable[[int, str | None], Awaitable[Page[_T]]]) -> Listing[_T]:
    """The first items of a list, read page by page."""
    found: list[_T] = []
    cursor: str | None = None
    while len(found) < limit:
        part = await page(min(limit - len(found), MAX_PER_PAGE), cursor)
        found += part.items
        cursor = part.next
        if cursor is None:
            break
    return Listing(found, has_more=cursor is not None)
