"""One job: when it fires next, what it did, what it is and was; and what can be done with it. Live."""

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct

from evertick.api.messages import AuthenticatedRequest, Response
from evertick.api.operations import HandlerMode, ResponseSpec
from evertick.contract.job import Job
from evertick.contract.jobs import PauseRequest, ResumeRequest
from evertick.dashboard.forms import form
from evertick.dashboard.jobs import activity
from evertick.dashboard.jobs.fields import Kind, read_json, text_of
from evertick.dashboard.live import live
from evertick.dashboard.rendering import draw, page_routes, redirect, redisplayed, render
from evertick.domain.access import KeyRole, allows
from evertick.domain.errors import Fault, InvalidFields
from evertick.domain.policies import Missed
from evertick.domain.states import JobStatus
from evertick.usecases import job_history
from evertick.usecases.jobs import costs, lifecycle, previews, reading
from evertick.usecases.jobs.previews import JobPreview
from evertick.usecases.runs import requests

routes = page_routes("One job")
UPCOMING = 10
_PAGE = ResponseSpec(None, "A page.")
_MISSED_TEXTS = {
    Missed.SKIP: "Skip what was missed",
    Missed.RUN_ONCE: "Run the newest once",
    Missed.RUN_ALL: "Run what was missed, oldest first",
}


class Nothing(Struct, forbid_unknown_fields=True):
    pass


class TriggerForm(Struct, forbid_unknown_fields=True):
    """`payload` is JSON; if it is empty, the run gets the job's. `force`: whatever its policy says of open runs."""

    payload: Annotated[str, Meta(max_length=70_000)] | None = None
    force: bool = False


@routes.operation("GET", "/jobs/{job_id}", KeyRole.VIEWER, _PAGE, mode=HandlerMode.COMPUTATION)
async def job_page(request: AuthenticatedRequest, job_id: str) -> Response:
    """One job."""
    async with request.services.slot_for(KeyRole.VIEWER, request.tenant.tenant_id):
        job = await reading.get(request.tenant, job_id)
        context = await _context(request, job)
        context |= await _details(request, job)
    return render(request, "job.html", **context, preview=await _preview(request, job))


@routes.operation("GET", "/jobs/{job_id}/live", KeyRole.VIEWER, _PAGE)
async def job_live(request: AuthenticatedRequest, job_id: str) -> Response:
    """A job's page as it changes."""
    await reading.get(request.tenant, job_id)
    kept: dict[tuple[object, ...], dict[str, Any]] = {}

    async def draw_job(asked: AuthenticatedRequest) -> str:
        job = await reading.get(asked.tenant, job_id)
        key = job.next_run_at, job.spec_version, job.status
        if key not in kept:
            kept.clear()
            kept[key] = {**await _details(asked, job), "preview": await _preview(asked, job)}
        context = await _context(asked, job) | kept[key]
        # Without the time: the script keeps times current, and a page on which nothing happens is not sent again.
        return draw(asked, "job_parts.html", **context, now_at=job.updated_at)

    return live(request, draw_job)


@routes.operation("GET", "/jobs/{job_id}/resume-choices", KeyRole.OPERATOR, _PAGE)
async def resume_choices(request: AuthenticatedRequest, job_id: str) -> Response:
    """What each choice for the missed ticks would do now: asked for when somebody is about to choose."""
    choices = await lifecycle.resume_choices(request.tenant, job_id)
    return render(request, "resume_choices.html", choices=choices, missed_texts=_MISSED_TEXTS)


@routes.operation("POST", "/jobs/{job_id}/pause", KeyRole.OPERATOR, _PAGE, body=form(PauseRequest))
async def pause_job(request: AuthenticatedRequest, job_id: str, body: PauseRequest) -> Response:
    """Pause a job."""
    await lifecycle.pause(request.tenant, job_id, body.reason)
    return redirect(request, f"/jobs/{job_id}", toast="Paused.", subject=job_id)


@routes.operation("POST", "/jobs/{job_id}/resume", KeyRole.OPERATOR, _PAGE, body=form(ResumeRequest))
async def resume_job(request: AuthenticatedRequest, job_id: str, body: ResumeRequest) -> Response:
    """Resume a paused job."""
    await lifecycle.resume(request.tenant, job_id, body.missed)
    return redirect(request, f"/jobs/{job_id}", toast="Resumed.", subject=job_id)


@routes.operation("POST", "/jobs/{job_id}/trigger", KeyRole.OPERATOR, _PAGE, body=form(TriggerForm), cost=costs.OF_RUN)
async def trigger_job(request: AuthenticatedRequest, job_id: str, body: TriggerForm) -> Response:
    """Run a job now."""
    job = await reading.get(request.tenant, job_id)
    fields = {"payload": body.payload or ""}
    with redisplayed(request, "trigger.html", fields=fields, name_of=lambda _: "payload", job=job):
        run_id = await requests.trigger(request.tenant, job_id, _payload(body.payload), request.trace, force=body.force)
    return redirect(request, f"/jobs/{job_id}", toast="Triggered: the run is on its way.", subject=run_id)


@routes.operation("POST", "/jobs/{job_id}/delete", KeyRole.EDITOR, _PAGE, body=form(Nothing))
async def delete_job(request: AuthenticatedRequest, job_id: str, body: Nothing) -> Response:  # noqa: ARG001 - its token
    """Delete a job."""
    job = await reading.get(request.tenant, job_id)
    await lifecycle.delete(request.tenant, job_id)
    return redirect(request, "/jobs", toast=f"Deleted {job.name}.", subject=job_id)


def _payload(text: str | None) -> Any:
    if text is None or not text.strip():
        return UNSET
    try:
        return read_json(text)
    except ValueError as error:
        raise InvalidFields([Fault("/payload", str(error))]) from None


async def _preview(request: AuthenticatedRequest, job: Job) -> JobPreview:
    return await request.cancel_on_disconnect(previews.of_job(request.tenant, job, UPCOMING))


async def _details(request: AuthenticatedRequest, job: Job) -> dict[str, Any]:
    """What changes only when the job does: its versions, and what a resume would do."""
    may_resume = job.status == JobStatus.PAUSED and allows(request.caller.role, KeyRole.OPERATOR)
    return {
        "versions": await job_history.versions(request.tenant, job.job_id),
        "choices": await lifecycle.resume_choices(request.tenant, job.job_id) if may_resume else (),
    }


async def _context(request: AuthenticatedRequest, job: Job) -> dict[str, Any]:
    found = await request.services.histories.get(request.tenant, job)
    return {
        "job": job,
        "history": found,
        "calendar": activity.calendar(found.days),
        "months": activity.months(found.days),
        "most_runs": max((day.runs for day in found.days), default=0),
        "ticks": activity.ticks(found.latest),
        "durations": activity.durations(found.latest),
        "kind_of": activity.kind_of,
        "gap_text": activity.gap_text,
        "may_be_lost": job_history.may_be_lost,
        "missed_texts": _MISSED_TEXTS,
        "payload_text": text_of(Kind.JSON, job.payload),
    }
