"""Pausing, resuming, triggering and deleting many jobs: those that are selected, or all that a filter matches.

A page asks first, with the number of jobs. Then each request changes jobs for a while, and its page goes on with the
next request until all are done. Leaving the page stops it there.
"""

import time
from typing import Annotated, Any, NamedTuple

from msgspec import Meta, field

from evertick.api.messages import AuthenticatedRequest, Response, authorise
from evertick.api.operations import HandlerMode, ResponseSpec
from evertick.contract.annotations import MAX_PER_PAGE, JobId
from evertick.contract.jobs import PauseReason
from evertick.dashboard.forms import form
from evertick.dashboard.pages.jobs import JobsPageQuery, filter_texts, filters_of
from evertick.dashboard.rendering import page_routes, redirect, render
from evertick.domain.access import KeyRole
from evertick.domain.policies import Missed
from evertick.usecases import bulk_changes
from evertick.usecases.bulk_changes import BulkAction, BulkChange, Matching
from evertick.usecases.context import Page
from evertick.usecases.errors import QuotaReached
from evertick.usecases.jobs import costs, reading

routes = page_routes("Many jobs")
AT_ONCE = 200
"""Ids that are read at once."""
CHANGE_SECONDS = 2.0
"""For which one request goes on."""
_PAGE = ResponseSpec(None, "A page.")
_TEXTS = {
    BulkAction.PAUSE: ("Pause", "paused"),
    BulkAction.RESUME: ("Resume", "resumed"),
    BulkAction.TRIGGER: ("Trigger", "triggered"),
    BulkAction.DELETE: ("Delete", "deleted"),
}


class BulkQuery(JobsPageQuery, forbid_unknown_fields=True, kw_only=True):
    """Jobs by id, or with `all` those of the filters."""

    action: BulkAction
    job_id: Annotated[list[JobId], Meta(max_length=MAX_PER_PAGE)] = field(default_factory=list)
    all: bool = False


class BulkForm(BulkQuery, forbid_unknown_fields=True, kw_only=True):
    """What was confirmed. `cursor` is where the request before ended, `done` how many jobs were changed so far."""

    reason: PauseReason | None = None
    missed: Missed = Missed.SKIP
    done: Annotated[int, Meta(ge=0)] = 0
    total: Annotated[int, Meta(ge=0)] = 0


class Progress(NamedTuple):
    """How far a request came. `problem`: why it stopped early."""

    done: int
    cursor: str | None
    problem: str = ""


@routes.operation("GET", "/jobs/bulk", KeyRole.OPERATOR, _PAGE)
async def confirm_bulk(request: AuthenticatedRequest, query: BulkQuery) -> Response:
    """Ask before many jobs are changed."""
    _check_role(request, query.action)
    filters = filters_of(query)
    if not query.all:
        matching = Matching(len(query.job_id), is_cut=False)
    else:
        matching = Matching(0, is_cut=False) if filters is None else await bulk_changes.count(request.tenant, filters)
    return render(request, "jobs_bulk.html", **_context(query, matching), progress=None)


@routes.operation("POST", "/jobs/bulk", KeyRole.OPERATOR, _PAGE, body=form(BulkForm), mode=HandlerMode.COMPUTATION)
async def change_jobs(request: AuthenticatedRequest, body: BulkForm) -> Response:
    """Change many jobs, for a while."""
    _check_role(request, body.action)
    progress = await _change(request, body)
    verb = _TEXTS[body.action][1]
    if progress.cursor is None and not progress.problem:
        noun = "job" if progress.done == 1 else "jobs"
        return redirect(request, "/jobs", toast=f"{progress.done:,} {noun} {verb}.")
    return render(request, "jobs_bulk.html", **_context(body, Matching(body.total, is_cut=False)), progress=progress)


def _check_role(request: AuthenticatedRequest, action: BulkAction) -> None:
    if action is BulkAction.DELETE:
        authorise(request.caller, KeyRole.EDITOR)


def _context(query: BulkQuery, matching: Matching) -> dict[str, Any]:
    label, verb = _TEXTS[query.action]
    hidden: dict[str, Any] = {
        **{name: text for name, text in filter_texts(query).items() if name not in {"cursor", "limit", "sort"}},
        "action": str(query.action),
        "job_id": query.job_id,
        "all": "true" if query.all else "",
    }
    if isinstance(query, BulkForm):
        hidden |= {"reason": query.reason or "", "missed": str(query.missed)}
    return {"action": query.action, "label": label, "verb": verb, "matching": matching, "hidden": hidden}


async def _change(request: AuthenticatedRequest, body: BulkForm) -> Progress:
    change = BulkChange(body.action, request.caller.key_id, request.request_id, body.reason, body.missed)
    done, cursor, ends = body.done, body.cursor, time.monotonic() + CHANGE_SECONDS
    while True:
        ids, following = await _next_ids(request, body, cursor)
        for job_id in ids:
            try:
                await _admit(request, body.action)
            except QuotaReached as refused:
                return Progress(done, cursor, str(refused))
            async with request.services.slot_for(KeyRole.OPERATOR, request.tenant.tenant_id):
                done += await bulk_changes.change_one(request.tenant, job_id, change)
            cursor = job_id
            if time.monotonic() >= ends:
                return Progress(done, cursor)
        cursor = following
        if cursor is None or time.monotonic() >= ends:
            return Progress(done, cursor)


async def _next_ids(
    request: AuthenticatedRequest, body: BulkForm, cursor: str | None
) -> tuple[tuple[str, ...], str | None]:
    if not body.all:
        ids = sorted(set(body.job_id))
        return tuple(job_id for job_id in ids if cursor is None or job_id > cursor), None
    filters = filters_of(body)
    if filters is None:
        return (), None
    async with request.services.slot_for(KeyRole.OPERATOR, request.tenant.tenant_id):
        found: Page[str] = await reading.list_ids(request.tenant, filters, most=AT_ONCE, cursor=cursor)
    return found.items, found.next


async def _admit(request: AuthenticatedRequest, action: BulkAction) -> None:
    """Draw from the quotas what each change would alone. A deletion makes room, and draws nothing."""
    if action is BulkAction.TRIGGER:
        await request.admit(costs.OF_RUN)
    elif action is not BulkAction.DELETE:
        await request.admit(costs.OF_CHANGE)
