"""Jobs: making, reading, changing and running them."""

from typing import Any
from urllib.parse import unquote

from msgspec import UNSET

from evertick.api.creating import create_shared
from evertick.api.documents import IF_MATCH, JOB, JOB_LINKS, JOBS, RUN_ACCEPTED
from evertick.api.operations import PREFIX, Call, Section, Shown
from evertick.api.problems import Kind, Problem
from evertick.api.responses import Answer, etag, nothing, ok, page, path_to
from evertick.api.routes import costs
from evertick.api.routes.runs import accepted
from evertick.api.shapes import JobsQuery, PauseRequest, ResumeRequest, TriggerRequest
from evertick.domain.access import KeyRole
from evertick.domain.admission import Request
from evertick.domain.job.spec import JobSpec
from evertick.usecases import edit, jobs, lifecycle, requests
from evertick.usecases.context import Page
from evertick.usecases.errors import JobNotFound
from evertick.usecases.views import Job

section = Section("Jobs")
_FIELDS = JobSpec.__struct_fields__
_BEFORE_NAME = f"{PREFIX}/jobs/by-name/".count("/")


def shape(job: Job) -> dict[str, Any]:
    return {
        "job_id": job.job_id,
        "name": job.name,
        "status": job.status,
        "next_run_at": job.next_run_at,
        "spec_version": job.spec_version,
        "created_at": job.created_at,
        "updated_at": job.updated_at,
        "paused_at": job.paused_at,
        "pause_reason": job.pause_reason,
        # In the order of the contract: the database keeps none.
        **{name: job.fields[name] for name in _FIELDS},
    }


def _answer(job: Job, *, is_new: bool = False) -> Answer:
    headers = {"ETag": etag(job.spec_version)}
    if not is_new:
        return ok(shape(job), headers=headers, subject=job.job_id)
    headers["Location"] = path_to("jobs", job.job_id)
    return ok(shape(job), status=201, headers=headers, subject=job.job_id, created=1)


@section.operation(
    "POST",
    "/jobs",
    KeyRole.EDITOR,
    answers={201: Shown(JOB, "The new job.", ("Location", "ETag"), JOB_LINKS)},
    problems=(Kind.NAME_TAKEN,),
    body="JobRequest",
    cost=costs.of_new_job,
    is_shared=True,
)
async def create_job(call: Call, body: object) -> Answer:
    """Create a job."""
    return await create_shared(call, body, create_job.__name__, lambda job: _answer(job, is_new=True))


@section.operation("GET", "/jobs", KeyRole.VIEWER, answers={200: Shown(JOBS, "The jobs, oldest first.", ("Link",))})
async def list_jobs(call: Call, query: JobsQuery) -> Answer:
    """List jobs."""
    labels = _labels(query.label)
    if labels is None:
        return page(Page((), None), call.path, query, shape)
    found = await jobs.list_jobs(
        call.tenant,
        status=query.status,
        labels=labels,
        name_prefix=query.name_prefix,
        queue=query.queue,
        limit=query.limit,
        cursor=query.cursor,
    )
    return page(found, call.path, query, shape)


def _labels(texts: list[str]) -> dict[str, str] | None:
    """None: no job has them all, for a key has one value."""
    pairs = {(key, value) for key, _, value in (text.partition(":") for text in texts)}
    labels = dict(pairs)
    return labels if len(labels) == len(pairs) else None


@section.operation(
    "GET",
    "/jobs/{job_id}",
    KeyRole.VIEWER,
    answers={200: Shown(JOB, "The job.", ("ETag",), JOB_LINKS)},
    problems=(Kind.NOT_FOUND,),
)
async def get_job(call: Call, job_id: str) -> Answer:
    """Get a job."""
    return _answer(await jobs.get(call.tenant, job_id))


@section.operation(
    "PATCH",
    "/jobs/{job_id}",
    KeyRole.EDITOR,
    answers={200: Shown(JOB, "The job as it is now.", ("ETag",), JOB_LINKS)},
    problems=(Kind.NOT_FOUND, Kind.NAME_TAKEN, Kind.VERSION_CONFLICT),
    headers=(IF_MATCH,),
    body="JobPatch",
    cost=costs.of_edit,
)
async def edit_job(call: Call, job_id: str, body: object) -> Answer:
    """Change fields of a job.

    Fields that are left out stay; null resets one to its default. Runs that stand already keep their version.
    """
    return _answer(await edit.edit(call.tenant, job_id, body, expected_version=call.expected_versions))


@section.operation(
    "DELETE",
    "/jobs/{job_id}",
    KeyRole.EDITOR,
    answers={204: Shown(None, "It is deleted.")},
    problems=(Kind.NOT_FOUND, Kind.VERSION_CONFLICT, Kind.OVER_QUOTA),
    headers=(IF_MATCH,),
)
async def delete_job(call: Call, job_id: str) -> Answer:
    """Delete a job.

    Attempts in flight finish, nothing new fires, the history stays.
    """
    await lifecycle.delete(call.tenant, job_id, expected_version=call.expected_versions)
    return nothing(subject=job_id)


def _named(call: Call, otherwise: Kind = Kind.MALFORMED) -> str:
    """The name in the path, as it was sent: decoded, a slash in a name looks like one between parts."""
    try:
        return unquote(call.raw_path.split(b"/", _BEFORE_NAME)[-1].decode("ascii"), errors="strict")
    except UnicodeDecodeError:
        raise Problem(otherwise, "the name in the path is not UTF-8") from None


@section.operation(
    "GET",
    "/jobs/by-name/{name}",
    KeyRole.VIEWER,
    answers={200: Shown(JOB, "The job.", ("ETag",), JOB_LINKS)},
    problems=(Kind.NOT_FOUND,),
)
async def get_job_by_name(call: Call, name: str) -> Answer:  # noqa: ARG001 - see `_named`
    """Get a job by its name."""
    return _answer(await jobs.get_by_name(call.tenant, _named(call, Kind.NOT_FOUND)))


async def _exists(call: Call) -> bool:
    return await jobs.has_name(call.tenant, _named(call))


@section.operation(
    "PUT",
    "/jobs/by-name/{name}",
    KeyRole.EDITOR,
    answers={
        200: Shown(JOB, "The job of this name, replaced or unchanged.", ("ETag",), JOB_LINKS),
        201: Shown(JOB, "The new job.", ("Location", "ETag"), JOB_LINKS),
    },
    problems=(Kind.VERSION_CONFLICT,),
    headers=(IF_MATCH,),
    body="JobReplacement",
    cost=costs.of_new_job,
    replaces=_exists,
)
async def put_job(call: Call, name: str, body: object) -> Answer:  # noqa: ARG001 - see `_named`
    """Create a job, or replace it by its name.

    An equal specification changes nothing. A name in the body must be the one in the path.
    """
    try:
        put = await edit.put(
            call.tenant,
            _named(call),
            body,
            expected_version=call.expected_versions,
            must_exist=call.headers.get("if-match") == "*",
        )
    except JobNotFound as missing:
        raise Problem(Kind.VERSION_CONFLICT, f"{missing}, so no version of it can match") from None
    return _answer(put.job, is_new=put.is_new)


@section.operation(
    "POST",
    "/jobs/{job_id}/pause",
    KeyRole.OPERATOR,
    answers={200: Shown(JOB, "The paused job.", ("ETag",), JOB_LINKS)},
    problems=(Kind.NOT_FOUND,),
)
async def pause_job(call: Call, job_id: str, body: PauseRequest) -> Answer:
    """Pause a job.

    No tick of it fires until it is resumed; what runs already goes on.
    """
    return _answer(await lifecycle.pause(call.tenant, job_id, body.reason))


@section.operation(
    "POST",
    "/jobs/{job_id}/resume",
    KeyRole.OPERATOR,
    answers={200: Shown(JOB, "The active job.", ("ETag",), JOB_LINKS)},
    problems=(Kind.NOT_FOUND,),
)
async def resume_job(call: Call, job_id: str, body: ResumeRequest) -> Answer:
    """Resume a paused job."""
    return _answer(await lifecycle.resume(call.tenant, job_id, body.missed))


@section.operation(
    "POST",
    "/jobs/{job_id}/trigger",
    KeyRole.OPERATOR,
    answers={202: RUN_ACCEPTED},
    problems=(Kind.NOT_FOUND,),
    body="TriggerRequest",
    cost=lambda _: Request(runs=1),
)
async def trigger_job(call: Call, job_id: str, body: TriggerRequest) -> Answer:
    """Run a job now.

    The run has a fire time of its own and never consumes a scheduled tick.
    """
    payload = body.payload if body.payload is not UNSET else requests.JOBS_OWN
    return await accepted(call, await requests.trigger(call.tenant, job_id, payload))
