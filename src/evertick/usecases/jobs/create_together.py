"""Creating the jobs of several requests in one transaction. Each request gets the result that it would get alone.

1. Draft the jobs, before the transaction opens: a schedule's first tick may take long to find. A schedule that cannot
   be used affects its own request only.
2. Claim the Idempotency-Keys. A request whose key is held by another is in flight; one that was answered before gets
   the same answer again.
3. Write what is left. A name that is taken affects its own request only.
4. Add the new jobs to the audit log, store the answers, commit: all jobs are durable before the first answer is sent.

An error of the database rolls back the whole transaction. If it says so, each request is tried alone, and only the one
that causes the error gets it. If it is unknown what was done, all requests get the error, as each would alone.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple, TypeAlias

from evertick.contract.job import Job, JobSpec
from evertick.domain.errors import InvalidFields
from evertick.domain.schedule.text import is_costly
from evertick.runtime import background
from evertick.runtime.background import Steps
from evertick.runtime.loop import Slices
from evertick.store.database import is_transient
from evertick.store.jobs import jobs
from evertick.store.jobs.jobs import NumbersTaken
from evertick.store.tenants import audit
from evertick.store.tenants.audit import AuditRecord
from evertick.usecases import idempotency
from evertick.usecases.context import TenantContext, unit_of_work
from evertick.usecases.errors import NameTaken
from evertick.usecases.idempotency import Answer, ClaimResult, InFlight, KeyedRequest
from evertick.usecases.jobs.create import Draft, Drafter, numbered, view, write


class NewJobRequest(NamedTuple):
    """A request to create a job. `answer` makes the answer that is stored for a repetition of the request.

    `trace_parent` is the request's own: those of one tenant are created together.
    """

    spec: JobSpec
    actor: str
    action: str
    request_id: str
    keyed: KeyedRequest | None
    answer: Callable[[Job], Answer]
    trace_parent: str | None = None


Result: TypeAlias = Job | ClaimResult


class _Drafted(NamedTuple):
    """A request with its draft, or the reason why it has none."""

    request: NewJobRequest
    draft: Draft | InvalidFields
    now_at: datetime


async def create_together(tenant: TenantContext, requests: Sequence[NewJobRequest]) -> list[Result | Exception]:
    """Create jobs. An exception in the place of a result belongs to that request alone."""
    return await numbered(lambda: _create(tenant, requests))


async def _create(tenant: TenantContext, requests: Sequence[NewJobRequest]) -> list[Result | Exception]:
    drafted = await _draft(tenant, requests)
    try:
        return await _in_one(tenant, drafted)
    except Exception as error:
        if len(requests) == 1 or is_transient(error) or isinstance(error, NumbersTaken):
            raise
    return [await _alone(tenant, each) for each in drafted]


async def _draft(tenant: TenantContext, requests: Sequence[NewJobRequest]) -> list[_Drafted]:
    drawn = await jobs.numbers(tenant.pool, tenant.tenant_id, len(requests))
    now_at, numbers = drawn.now_at, drawn.numbers
    drafter, slices = Drafter(tenant, drawn), Slices()
    drafts: dict[int, Draft | InvalidFields] = {}
    costly = [index for index, each in enumerate(requests) if is_costly(each.spec.schedule)]
    if costly:
        drafts = await background.run_steps(tenant.tenant_id, _draft_costly(drafter, requests, numbers, costly))
    drafted: list[_Drafted] = []
    for index, (each, number) in enumerate(zip(requests, numbers, strict=True)):
        if slices.is_over:
            await slices.pause()
        draft = drafts[index] if index in drafts else _drafted(drafter, each.spec, number)
        if each.trace_parent is not None and isinstance(draft, Draft):
            draft = draft._replace(trace_parent=each.trace_parent)
        drafted.append(_Drafted(each, draft, now_at))
    return drafted


def _draft_costly(
    drafter: Drafter, requests: Sequence[NewJobRequest], numbers: Sequence[int], indexes: Sequence[int]
) -> Steps[dict[int, Draft | InvalidFields]]:
    drafts = {}
    for index in indexes:
        drafts[index] = _drafted(drafter, requests[index].spec, numbers[index])
        yield
    return drafts


def _drafted(drafter: Drafter, spec: JobSpec, number: int) -> Draft | InvalidFields:
    try:
        return drafter.draft(spec, number)
    except InvalidFields as refused:
        return refused


async def _alone(tenant: TenantContext, drafted: _Drafted) -> Result | Exception:
    try:
        return (await _in_one(tenant, [drafted]))[0]
    except Exception as error:  # noqa: BLE001 - raised to the caller of this request
        return error


async def _in_one(tenant: TenantContext, drafted: Sequence[_Drafted]) -> list[Result | Exception]:
    async with unit_of_work(tenant) as inside:
        results = await _answered(inside, [each.request for each in drafted])
        left = {index: each for index, each in enumerate(drafted) if index not in results}
        if left:
            results |= await _created(inside, left)
    return [results[index] for index in range(len(drafted))]


async def _answered(tenant: TenantContext, requests: Sequence[NewJobRequest]) -> dict[int, Result | Exception]:
    """The results of requests that do nothing: another one is in flight, or was answered."""
    results: dict[int, Result | Exception] = {}
    first: dict[str, int] = {}
    for number, each in enumerate(requests):
        if each.keyed is not None and first.setdefault(each.keyed.key, number) != number:
            results[number] = InFlight()
    keyed = [each.keyed for number, each in enumerate(requests) if each.keyed and number not in results]
    if keyed:
        found = await idempotency.claim(tenant, keyed)
        results |= {first[key]: result for key, result in found.items()}
    return results


async def _created(tenant: TenantContext, drafted: dict[int, _Drafted]) -> dict[int, Result | Exception]:
    results: dict[int, Result | Exception] = {}
    drafts: dict[int, Draft] = {}
    for index, (_, draft, _) in drafted.items():
        if isinstance(draft, InvalidFields):
            results[index] = draft
        else:
            drafts[index] = draft
    if not drafts:
        return results
    new = await _written(tenant, drafts, next(iter(drafted.values())).now_at)
    for index, draft in drafts.items():
        results[index] = new[index] if index in new else NameTaken(str(draft.spec.name))
    await _audited(tenant, [(drafted[index].request, job) for index, job in new.items()])
    return results


async def _written(tenant: TenantContext, drafts: dict[int, Draft], now_at: datetime) -> dict[int, Job]:
    news = list(drafts.values())
    created = await write(tenant.pool, tenant, news, now_at)
    tenant.notify(created)
    return {index: view(draft, now_at) for index, draft in drafts.items() if draft.job_id in created}


async def _audited(tenant: TenantContext, made: Sequence[tuple[NewJobRequest, Job]]) -> None:
    """Add each new job to the audit log, and store its answer for a repetition of the request."""
    if not made:
        return
    changes = [
        AuditRecord(tenant.tenant_id, each.actor, each.action, job.job_id, each.request_id) for each, job in made
    ]
    await audit.record_all(tenant.pool, changes)
    answers = [(each.keyed, each.answer(job)) for each, job in made if each.keyed is not None]
    await idempotency.store(tenant, answers)
