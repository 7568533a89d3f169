"""Jobs: making, reading, changing and running them."""

from urllib.parse import unquote

from evertick.api.idempotency import in_flight, kept, replayed
from evertick.api.messages import IF_MATCH, PREFIX, AuthenticatedRequest, Response, created, etag, no_content, ok, page
from evertick.api.operations import HandlerMode, ResponseSpec, Routes
from evertick.api.problems import HttpProblem, Kind
from evertick.api.routes.runs import RUN_ACCEPTED, accepted
from evertick.contract.job import Job
from evertick.contract.jobs import JobsQuery, PauseRequest, ResumeRequest, TriggerRequest
from evertick.domain.access import KeyRole
from evertick.domain.admission import AdmissionRequest
from evertick.domain.tracing import TRACEPARENT
from evertick.usecases import idempotency
from evertick.usecases.context import Page
from evertick.usecases.errors import JobNotFound
from evertick.usecases.jobs import costs, edit, lifecycle, reading
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
_SEGMENTS_BEFORE_NAME = f"{PREFIX}/jobs/by-name".count("/")


async def _cost_of_creation(_: AuthenticatedRequest, body: object) -> AdmissionRequest:
    return costs.of_creation(body)


async def _cost_of_edit(_: AuthenticatedRequest, body: object) -> AdmissionRequest:
    return costs.of_edit(body)


def _job(text: str, *headers: str, status: int = 200) -> ResponseSpec:
    return ResponseSpec(Job, text, (*headers, "ETag"), _LINKS, status=status)


def _response(job: Job, *, is_new: bool = False) -> Response:
    headers = {"ETag": etag(job.spec_version)}
    if is_new:
        return created(job, "jobs", job.job_id, headers=headers, subject=job.job_id, created_jobs=1)
    return ok(job, headers=headers, subject=job.job_id)


@routes.operation(
    "POST",
    "/jobs",
    KeyRole.EDITOR,
    _job("The new job.", "Location", status=201),
    problems=(Kind.NAME_TAKEN,),
    body="JobRequest",
    cost=_cost_of_creation,
    mode=HandlerMode.SHARED_CHANGE,
)
async def create_job(request: AuthenticatedRequest, body: object) -> Response:
    """Create a job."""
    responses: list[Response] = []

    def respond(job: Job) -> idempotency.Answer:
        responses.append(_response(job, is_new=True))
        return kept(responses[-1])

    wanted = NewJobRequest(
        as_spec(body, request.tenant.default_jitter_seconds),
        request.caller.key_id,
        create_job.__name__,
        request.request_id,
        request.idempotency,
        respond,
        None if request.trace is None else str(request.trace),
    )
    result = await request.services.creations.ask(request.tenant, wanted)
    if isinstance(result, Job):
        # The last: what was undone before has another id.
        return responses[-1] if responses else _response(result, is_new=True)
    response = replayed(result)
    if response is None:
        raise in_flight()
    return response


@routes.operation("GET", "/jobs", KeyRole.VIEWER, ResponseSpec(list[Job], "The jobs, in the order of `sort`."))
async def list_jobs(request: AuthenticatedRequest, query: JobsQuery) -> Response:
    """List jobs."""
    labels = reading.labels_of(query.label)
    if labels is None:
        return page(Page((), None), request.path, query)
    found = await reading.list_jobs(
        request.tenant,
        status=query.status,
        labels=labels,
        name_prefix=query.name_prefix,
        queue=query.queue,
        handler=query.handler,
        target_host=query.target_host,
        sort=query.sort,
        finished=query.finished,
        limit=query.limit,
        cursor=query.cursor,
    )
    return page(found, request.path, query)


@routes.operation("GET", "/jobs/{job_id}", KeyRole.VIEWER, _job("The job."))
async def get_job(request: AuthenticatedRequest, job_id: str) -> Response:
    """Get a job."""
    return _response(await reading.get(request.tenant, job_id))


@routes.operation(
    "PATCH",
    "/jobs/{job_id}",
    KeyRole.EDITOR,
    _job("The job as it is now."),
    problems=(Kind.NAME_TAKEN, Kind.VERSION_CONFLICT),
    headers=(IF_MATCH,),
    body="JobPatch",
    cost=_cost_of_edit,
)
async def edit_job(request: AuthenticatedRequest, job_id: str, body: object) -> Response:
    """Change fields of a job.

    Fields that are left out stay; null resets one to its default. Runs that stand already keep their version.
    """
    return _response(await edit.edit(request.traced_tenant, job_id, body, expected_version=request.expected_versions))


@routes.operation(
    "DELETE",
    "/jobs/{job_id}",
    KeyRole.EDITOR,
    ResponseSpec(None, "It is deleted.", status=204),
    problems=(Kind.VERSION_CONFLICT, Kind.OVER_QUOTA),
    headers=(IF_MATCH,),
)
async def delete_job(request: AuthenticatedRequest, job_id: str) -> Response:
    """Delete a job.

    Attempts in flight finish, nothing new fires, the history stays.
    """
    await lifecycle.delete(request.tenant, job_id, expected_version=request.expected_versions)
    return no_content(subject=job_id)


def _name_of(request: AuthenticatedRequest, otherwise: Kind = Kind.MALFORMED) -> str:
    """The name in the path, as it was sent: decoded, a slash in a name looks like one between parts.

    Empty segments do not count, as everywhere: a slash at an end of a name is written %2F.
    """
    rest = request.raw_path
    for _ in range(_SEGMENTS_BEFORE_NAME):
        rest = rest.lstrip(b"/").partition(b"/")[2]
    try:
        return unquote(rest.strip(b"/").decode("ascii"), errors="strict")
    except UnicodeDecodeError:
        raise HttpProblem(otherwise, "the name in the path is not UTF-8") from None


@routes.operation("GET", "/jobs/by-name/{name}", KeyRole.VIEWER, _job("The job."), problems=(Kind.NOT_FOUND,))
async def get_job_by_name(request: AuthenticatedRequest, name: str) -> Response:  # noqa: ARG001 - see `_name_of`
    """Get a job by its name."""
    return _response(await reading.get_by_name(request.tenant, _name_of(request, Kind.NOT_FOUND)))


async def _cost_of_put(request: AuthenticatedRequest, body: object) -> AdmissionRequest:
    return await costs.of_put(request.tenant, _name_of(request), body)


@routes.operation(
    "PUT",
    "/jobs/by-name/{name}",
    KeyRole.APP,
    _job("The job of this name, replaced or unchanged."),
    _job("The new job.", "Location", status=201),
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
            request.traced_tenant,
            _name_of(request),
            body,
            expected_version=request.expected_versions,
            must_exist=request.headers.get("if-match") == "*",
        )
    except JobNotFound as missing:
        raise HttpProblem(Kind.VERSION_CONFLICT, f"{missing}, so no version of it can match") from None
    return _response(put.job, is_new=put.is_new)


@routes.operation("POST", "/jobs/{job_id}/pause", KeyRole.OPERATOR, _job("The paused job."))
async def pause_job(request: AuthenticatedRequest, job_id: str, body: PauseRequest) -> Response:
    """Pause a job.

    No tick of it fires until it is resumed; what runs already goes on.
    """
    return _response(await lifecycle.pause(request.tenant, job_id, body.reason))


@routes.operation("POST", "/jobs/{job_id}/resume", KeyRole.OPERATOR, _job("The active job."))
async def resume_job(request: AuthenticatedRequest, job_id: str, body: ResumeRequest) -> Response:
    """Resume a paused job."""
    return _response(await lifecycle.resume(request.tenant, job_id, body.missed))


@routes.operation(
    "POST",
    "/jobs/{job_id}/trigger",
    KeyRole.OPERATOR,
    RUN_ACCEPTED,
    headers=(TRACEPARENT,),
    problems=(Kind.WRONG_STATE,),
    cost=costs.OF_RUN,
)
async def trigger_job(request: AuthenticatedRequest, job_id: str, body: TriggerRequest) -> Response:
    """Run a job now.

    The run has a fire time of its own and never consumes a scheduled tick. It obeys `concurrent_policy` unless it is
    forced: while another run is open, SKIP and a full ALLOW refuse it (409, with the `run_id` of the open one), QUEUE
    lets it wait (`waiting` says behind which run), REPLACE cancels the other. Triggers of a job with the schedule
    `manual`, with `max_running` or with a key are never refused.
    """
    run_id = await requests.trigger(request.tenant, job_id, body.payload, request.trace, force=body.force)
    return await accepted(request, run_id)
