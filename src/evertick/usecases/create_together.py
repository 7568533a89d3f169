"""Creating the jobs of several requests in one transaction: each gets a verdict of its own, as if it had come alone.

1. Draft the jobs, before the transaction opens: a schedule's first tick may take long to find. A schedule that cannot
   be used concerns its own request only.
2. Claim the Idempotency-Keys. Whose key someone else holds is told so; whose request was answered before gets that
   answer.
3. Write what is left. So does a name that is taken.
4. Note the new jobs in the audit log, keep the answers, commit: all of them are durable when the first one is told.

An error of the database undoes all of it. If it says so, each is tried alone, and only whose fault it was hears of it.
If nobody knows what was done, all hear of it, as each would alone.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import NamedTuple, TypeAlias

from evertick.contract.job import Job, JobSpec
from evertick.domain.errors import InvalidFields
from evertick.domain.schedule.text import is_costly
from evertick.runtime import background
from evertick.runtime.background import Steps
from evertick.runtime.event_loop import Slices
from evertick.store import audit, jobs
from evertick.store.audit import AuditRecord
from evertick.store.database import is_transient
from evertick.store.jobs import NumbersTaken
from evertick.usecases import idempotency
from evertick.usecases.context import Tenant
from evertick.usecases.jobs.create import view
from evertick.usecases.jobs.drafting import Draft, Drafter, numbered, write
from evertick.usecases.errors import NameTaken
from evertick.usecases.idempotency import Answer, KeyedRequest, InFlight, ClaimResult
from evertick.usecases.unit_of_work import unit_of_work


class Wanted(NamedTuple):
    """A job that a request wants. `answer` writes what is kept for who asks again."""

    spec: JobSpec
    actor: str
    action: str
    request_id: str
    asked: KeyedRequest | None
    answer: Callable[[Job], Answer]


Result: TypeAlias = Job | ClaimResult


class _Drafted(NamedTuple):
    """A request with its draft, or why there can be none."""

    wanted: Wanted
    draft: Draft | InvalidFields
    now_at: datetime


async def create_together(tenant: Tenant, wanted: Sequence[Wanted]) -> list[Result | Exception]:
    """Create jobs. An exception in a result's place is that request's own."""
    return await numbered(lambda: _create(tenant, wanted))


async def _create(tenant: Tenant, wanted: Sequence[Wanted]) -> list[Result | Exception]:
    drafted = await _draft(tenant, wanted)
    try:
        return await _in_one(tenant, drafted)
    except Exception as error:
        if len(wanted) == 1 or is_transient(error) or isinstance(error, NumbersTaken):
            raise
    return [await _alone(tenant, each) for each in drafted]


async def _draft(tenant: Tenant, wanted: Sequence[Wanted]) -> list[_Drafted]:
    now_at, numbers = await jobs.numbers(tenant.pool, len(wanted))
    drafter, slices = Drafter(tenant, now_at), Slices()
    drafts: dict[int, Draft | InvalidFields] = {}
    costly = [place for place, each in enumerate(wanted) if is_costly(each.spec.schedule)]
    if costly:
        drafts = await background.run_steps(tenant.tenant_id, _draft_costly(drafter, wanted, numbers, costly))
    drafted: list[_Drafted] = []
    for place, (each, number) in enumerate(zip(wanted, numbers, strict=True)):
        if slices.is_over:
            await slices.pause()
        draft = drafts[place] if place in drafts else _drafted(drafter, each.spec, number)
        drafted.append(_Drafted(each, draft, now_at))
    return drafted


def _draft_costly(
    drafter: Drafter, wanted: Sequence[Wanted], numbers: Sequence[int], places: Sequence[int]
) -> Steps[dict[int, Draft | InvalidFields]]:
    drafts = {}
    for place in places:
        drafts[place] = _drafted(drafter, wanted[place].spec, numbers[place])
        yield
    return drafts


def _drafted(drafter: Drafter, spec: JobSpec, number: int) -> Draft | InvalidFields:
    try:
        return drafter.draft(spec, number)
    except InvalidFields as refused:
        return refused


async def _alone(tenant: Tenant, drafted: _Drafted) -> Result | Exception:
    try:
        return (await _in_one(tenant, [drafted]))[0]
    except Exception as error:  # noqa: BLE001 - told to the one whose request it is
        return error


async def _in_one(tenant: Tenant, drafted: Sequence[_Drafted]) -> list[Result | Exception]:
    async with unit_of_work(tenant) as inside:
        results = await _answered(inside, [each.wanted for each in drafted])
        left = {place: each for place, each in enumerate(drafted) if place not in results}
        if left:
            results |= await _created(inside, left)
    return [results[place] for place in range(len(drafted))]


async def _answered(tenant: Tenant, wanted: Sequence[Wanted]) -> dict[int, Result | Exception]:
    """Those who are not to act: somebody else is at it, or has been."""
    results: dict[int, Result | Exception] = {}
    first: dict[str, int] = {}
    for number, each in enumerate(wanted):
        if each.asked is not None and first.setdefault(each.asked.key, number) != number:
            results[number] = InFlight()
    asked = [each.asked for number, each in enumerate(wanted) if each.asked and number not in results]
    if asked:
        found = await idempotency.claim(tenant, asked)
        results |= {first[key]: verdict for key, verdict in found.items()}
    return results


async def _created(tenant: Tenant, drafted: dict[int, _Drafted]) -> dict[int, Result | Exception]:
    results: dict[int, Result | Exception] = {}
    drafts: dict[int, Draft] = {}
    for place, (_, draft, _) in drafted.items():
        if isinstance(draft, InvalidFields):
            results[place] = draft
        else:
            drafts[place] = draft
    if not drafts:
        return results
    new = await _written(tenant, drafts, next(iter(drafted.values())).now_at)
    for place, draft in drafts.items():
        results[place] = new[place] if place in new else NameTaken(str(draft.spec.name))
    await _noted(tenant, [(drafted[place].wanted, job) for place, job in new.items()])
    return results


async def _written(tenant: Tenant, drafts: dict[int, Draft], now_at: datetime) -> dict[int, Job]:
    news = list(drafts.values())
    created = await write(tenant.pool, tenant, news, now_at)
    tenant.notify(created)
    return {place: view(draft, now_at) for place, draft in drafts.items() if draft.job_id in created}


async def _noted(tenant: Tenant, made: Sequence[tuple[Wanted, Job]]) -> None:
    """Beside each new job, its entry in the audit log and the answer for who asks again."""
    if not made:
        return
    changes = [AuditRecord(tenant.tenant_id, each.actor, each.action, job.job_id, each.request_id) for each, job in made]
    await audit.record_all(tenant.pool, changes)
    answers = [(each.asked, each.answer(job)) for each, job in made if each.asked is not None]
    await idempotency.store(tenant, answers)
