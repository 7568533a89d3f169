"""Jobs: making, reading, changing and running them."""

from dataclasses import replace
from urllib.parse import unquote

from msgspec import UNSET

from evertick.api.idempotency import in_flight, kept, replayed
from evertick.api.operations import HandlerMode, ResponseSpec, Routes
from evertick.api.problems import Kind, Problem
from evertick.api.requests import AuthenticatedRequest
from evertick.api.responses import IF_MATCH, PREFIX, Response, etag, no_content, ok, page, path_to
from evertick.api.routes import costs
from evertick.api.routes.runs import RUN_ACCEPTED, accepted
from evertick.contract.job import Job
from evertick.contract.jobs import JobsQuery, PauseRequest, ResumeRequest, TriggerRequest
from evertick.domain.access import KeyRole
from evertick.domain.admission import AdmissionRequest
from evertick.usecases import idempotency
from evertick.usecases.context import Page
from evertick.usecases.errors import JobNotFound
from evertick.usecases.jobs import edit, lifecycle, reading
from evertick.usecases.jobs.create_together import NewJobRequest
from evertick.usecases.jobs.rows import as_spec
from evertick.usecases.runs import requests

routes = Routes("Jobs")
_JOB_ID = {"job_id": "$response.body#/job_id"}
_LINKS = {
    "get": ("get_job", _JOB_ID),
    "edit": ("edit_job", _JOB_ID),
    "pause": ("pause_job", _JOB_ID),
    "resume": ("resume_job", _JOB_ID),
    "trigger": ("trigger_job", _JOB_ID),
    "upcoming": ("list_upcoming", _JOB_ID),
    "runs": ("list_job_runs", _JOB_ID),
    "delete": ("delete_job", _JOB_ID),
}
_BEFORE_NAME = f"{PREFIX}/jobs/by-name/".count("/")


def _response(job: Job, *, is_new: bool = False) -> Response:
    headers = {"ETag": etag(job.spec_version)}
    if not is_new:
        return ok(job, headers=headers, subject=job.job_id)
    headers["Location"] = path_to("jobs", job.job_id)
    return ok(job, status=201, headers=headers, subject=job.job_id, created=1)


@routes.operation(
    "POST",
    "/jobs",
    KeyRole.EDITOR,
    responses={201: ResponseSpec(Job, "The new job.", ("Location", "ETag"), _LINKS)},
    problems=(Kind.NAME_TAKEN,),
    body="JobRequest",
    cost=costs.of_new_job,
    mode=HandlerMode.SHARED_CHANGE,
)
async def create_job(request: AuthenticatedRequest, body: object) -> Response:
    """Create a job."""
    made: list[Response] = []

    def respond(job: Job) -> idempotency.Answer:
        made.append(_response(job, is_new=True))
        return kept(made[-1])

    wanted = NewJobRequest(
        as_spec(body), request.caller.key_id, create_job.__name__, request.request_id, request.idempotency, respond
    )
    result = await request.services.creations.ask(request.tenant, wanted)
    if isinstance(result, Job):
        return made[-1] if made else _response(result, is_new=True)  # the last: what was undone before has another id
    response = replayed(result)
    if response is None:
        raise in_flight()
    return response


@routes.operation(
    "GET", "/jobs", KeyRole.VIEWER, responses={200: ResponseSpec(list[Job], "The jobs, oldest first.", ("Link",))}
)
async def list_jobs(request: AuthenticatedRequest, query: JobsQuery) -> Response:
    """List jobs."""
    labels = _labels(query.label)
    if labels is None:
        return page(Page((), None), request.path, query)
    found = await reading.list_jobs(
        request.tenant,
        status=query.status,
        labels=labels,
        name_prefix=query.name_prefix,
        queue=query.queue,
        limit=query.limit,
        cursor=query.cursor,
    )
    return page(found, request.path, query)


def _labels(texts: list[str]) -> dict[str, str] | None:
    """None: no job has them all, for a key has one value."""
    pairs = {(key, value) for key, _, value in (text.partition(":") for text in texts)}
    labels = dict(pairs)
    return labels if len(labels) == len(pairs) else None


@routes.operation(
    "GET",
    "/jobs/{job_id}",
    KeyRole.VIEWER,
    responses={200: ResponseSpec(Job, "The job.", ("ETag",), _LINKS)},
    problems=(Kind.NOT_FOUND,),
)
async def get_job(request: AuthenticatedRequest, job_id: str) -> Response:
    """Get a job."""
    return _response(await reading.get(request.tenant, job_id))


@routes.operation(
    "PATCH",
    "/jobs/{job_id}",
    KeyRole.EDITOR,
    responses={200: ResponseSpec(Job, "The job as it is now.", ("ETag",), _LINKS)},
    problems=(Kind.NOT_FOUND, Kind.NAME_TAKEN, Kind.VERSION_CONFLICT),
    headers=(IF_MATCH,),
    body="JobPatch",
    cost=costs.of_edit,
)
async def edit_job(request: AuthenticatedRequest, job_id: str, body: object) -> Response:
    """Change fields of a job.

    Fields that are left out stay; null resets one to its default. Runs that stand already keep their version.
    """
    return _response(await edit.edit(request.tenant, job_id, body, expected_version=request.expected_versions))


@routes.operation(
    "DELETE",
    "/jobs/{job_id}",
    KeyRole.EDITOR,
    responses={204: ResponseSpec(None, "It is deleted.")},
    problems=(Kind.NOT_FOUND, Kind.VERSION_CONFLICT, Kind.OVER_QUOTA),
    headers=(IF_MATCH,),
)
async def delete_job(request: AuthenticatedRequest, job_id: str) -> Response:
    """Delete a job.

    Attempts in flight finish, nothing new fires, the history stays.
    """
    await lifecycle.delete(request.tenant, job_id, expected_version=request.expected_versions)
    return no_content(subject=job_id)


def _name_of(request: AuthenticatedRequest, otherwise: Kind = Kind.MALFORMED) -> str:
    """The name in the path, as it was sent: decoded, a slash in a name looks like one between parts."""
    try:
        return unquote(request.raw_path.split(b"/", _BEFORE_NAME)[-1].decode("ascii"), errors="strict")
    except UnicodeDecodeError:
        raise Problem(otherwise, "the name in the path is not UTF-8") from None


@routes.operation(
    "GET",
    "/jobs/by-name/{name}",
    KeyRole.VIEWER,
    responses={200: ResponseSpec(Job, "The job.", ("ETag",), _LINKS)},
    problems=(Kind.NOT_FOUND,),
)
async def get_job_by_name(request: AuthenticatedRequest, name: str) -> Response:  # noqa: ARG001 - see `_name_of`
    """Get a job by its name."""
    return _response(await reading.get_by_name(request.tenant, _name_of(request, Kind.NOT_FOUND)))


async def _cost_of_put(request: AuthenticatedRequest, body: object) -> AdmissionRequest:
    cost = await costs.of_new_job(request, body)
    return replace(cost, jobs=0) if await reading.has_name(request.tenant, _name_of(request)) else cost


@routes.operation(
    "PUT",
    "/jobs/by-name/{name}",
    KeyRole.EDITOR,
    responses={
        200: ResponseSpec(Job, "The job of this name, replaced or unchanged.", ("ETag",), _LINKS),
        201: ResponseSpec(Job, "The new job.", ("Location", "ETag"), _LINKS),
    },
    problems=(Kind.VERSION_CONFLICT,),
    headers=(IF_MATCH,),
    body="JobReplacement",
    cost=_cost_of_put,
)
async def put_job(request: AuthenticatedRequest, name: str, body: object) -> Response:  # noqa: ARG001 - see `_name_of`
    """Create a job, or replace it by its name.

    An equal specification changes nothing. A name in the body must be the one in the path.
    """
    try:
        put = await edit.put(
            request.tenant,
            _name_of(request),
            body,
            expected_version=request.expected_versions,
            must_exist=request.headers.get("if-match") == "*",
        )
    except JobNotFound as missing:
        raise Problem(Kind.VERSION_CONFLICT, f"{missing}, so no version of it can match") from None
    return _response(put.job, is_new=put.is_new)


@routes.operation(
    "POST",
    "/jobs/{job_id}/pause",
    KeyRole.OPERATOR,
    responses={200: ResponseSpec(Job, "The paused job.", ("ETag",), _LINKS)},
    problems=(Kind.NOT_FOUND,),
)
async def pause_job(request: AuthenticatedRequest, job_id: str, body: PauseRequest) -> Response:
    """Pause a job.

    No tick of it fires until it is resumed; what runs already goes on.
    """
    return _response(await lifecycle.pause(request.tenant, job_id, body.reason))


@routes.operation(
    "POST",
    "/jobs/{job_id}/resume",
    KeyRole.OPERATOR,
    responses={200: ResponseSpec(Job, "The active job.", ("ETag",), _LINKS)},
    problems=(Kind.NOT_FOUND,),
)
async def resume_job(request: AuthenticatedRequest, job_id: str, body: ResumeRequest) -> Response:
    """Resume a paused job."""
    return _response(await lifecycle.resume(request.tenant, job_id, body.missed))


@routes.operation(
    "POST",
    "/jobs/{job_id}/trigger",
    KeyRole.OPERATOR,
    responses={202: RUN_ACCEPTED},
    problems=(Kind.NOT_FOUND,),
    cost=costs.of_run,
)
async def trigger_job(request: AuthenticatedRequest, job_id: str, body: TriggerRequest) -> Response:
    """Run a job now.

    The run has a fire time of its own and never consumes a scheduled tick.
    """
    payload = body.payload if body.payload is not UNSET else requests.JOBS_OWN
    return await accepted(request, await requests.trigger(request.tenant, job_id, payload))
