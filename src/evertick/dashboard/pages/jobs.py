"""The list of jobs."""

import time
from typing import Annotated

import msgspec
from msgspec import Meta

from evertick.api.messages import AuthenticatedRequest, Response
from evertick.api.operations import HandlerMode, ResponseSpec
from evertick.contract import patterns
from evertick.contract.job import Job
from evertick.contract.jobs import JobSort, JobsQuery
from evertick.dashboard.rendering import page_routes, render
from evertick.domain.access import KeyRole
from evertick.domain.states import JobStatus
from evertick.usecases.context import Page
from evertick.usecases.jobs import reading

routes = page_routes("Jobs")
MAX_LOOKS = 5
LOOK_SECONDS = 0.1
"""So many pages of the use case, for so long, one page reads before it asks the user whether to go on."""
_PAGE = ResponseSpec(None, "A page.")


class JobsPageQuery(JobsQuery, forbid_unknown_fields=True):
    """As of the API. `q` is what people type: the beginning of a name, or `key:value` for a label."""

    q: Annotated[str, Meta(max_length=400, pattern=patterns.STORABLE)] = ""
    sort: JobSort | None = None  # type: ignore[assignment]  # chosen by what is searched


@routes.operation("GET", "/jobs", KeyRole.VIEWER, _PAGE, mode=HandlerMode.LATE_READ)
async def jobs_page(request: AuthenticatedRequest, query: JobsPageQuery) -> Response:
    """The list of jobs."""
    sort = query.sort or (JobSort.NAME if query.q or query.name_prefix else JobSort.CREATED)
    found = await _search(request, query, sort)
    given = {name: text for name, text in filter_texts(query).items() if name not in {"cursor", "limit"}}
    return render(
        request,
        "jobs.html",
        found=found,
        letters=await reading.count_letters(request.tenant, found.items),
        query=given,
        sort=sort,
        statuses=[("", "Any status"), *((each.value, each.value.capitalize()) for each in JobStatus)],
        is_first=query.cursor is None,
        is_filtered=bool(set(given) - {"sort"}),
        # Other orders leave jobs out: the filters alone match more than is shown.
        has_all=sort in {JobSort.CREATED, JobSort.NAME},
    )


def filters_of(query: JobsPageQuery) -> reading.JobFilters | None:
    """What a query wants. None: nothing, for it asks for two values of one label."""
    prefix, labels = query.name_prefix, [*query.label]
    for word in query.q.split():
        if ":" in word.strip(":"):
            labels.append(word)
        else:
            prefix = query.q.strip()
    wanted = reading.labels_of(labels)
    if wanted is None:
        return None
    return {
        "status": query.status,
        "labels": wanted,
        "name_prefix": prefix,
        "queue": query.queue,
        "handler": query.handler,
        "target_host": query.target_host,
        "finished": query.finished,
    }


def filter_texts(query: JobsPageQuery) -> dict[str, str | list[str]]:
    """The filters of a query that are no defaults, as links and forms repeat them."""
    given = {name: value for name, value in msgspec.to_builtins(query).items() if value}
    given.pop("finished", None)
    kept = {name: value for name, value in given.items() if name in JobsPageQuery.__struct_fields__}
    return kept if query.finished else kept | {"finished": "false"}


async def _search(request: AuthenticatedRequest, query: JobsPageQuery, sort: JobSort) -> Page[Job]:
    """A page of what fits. One that has looked at many jobs without finding any looks on for a while."""
    filters, cursor = filters_of(query), query.cursor
    found: Page[Job] = Page((), None)
    began = time.monotonic()
    for _ in range(MAX_LOOKS):
        if filters is None:
            break
        found = await reading.list_jobs(request.tenant, sort=sort, limit=query.limit, cursor=cursor, **filters)
        cursor = found.next
        if found.items or cursor is None or time.monotonic() >= began + LOOK_SECONDS:
            break
    return found
