"""The form of a new job and of an edit: it shows what its schedule means as one types, and the same job as code."""

from collections.abc import Mapping
from typing import Any

from evertick import tzdb
from evertick.api.messages import AuthenticatedRequest, Response
from evertick.api.operations import HandlerMode, ResponseSpec
from evertick.contract.connections import MAX_CONNECTIONS
from evertick.contract.job import Job
from evertick.contract.jobs import PreviewRequest
from evertick.contract.reading import read_settings
from evertick.dashboard.forms import Fields, form
from evertick.dashboard.jobs import fields
from evertick.dashboard.jobs.code import code_of
from evertick.dashboard.rendering import page_routes, redirect, redisplayed, render
from evertick.domain.access import KeyRole
from evertick.domain.admission import AdmissionRequest
from evertick.domain.errors import InvalidFields, InvalidInput
from evertick.domain.schedule.preview import SchedulePreview
from evertick.store.engine import lanes
from evertick.usecases.jobs import costs, create, edit, previews, reading
from evertick.usecases.jobs.rows import as_spec
from evertick.usecases.tenants import connections

routes = page_routes("New and edited jobs")
_PAGE = ResponseSpec(None, "A page.")
_VERSION = "spec_version"
_REPLACES = "replaces"
_NEW = {"schedule": "*/15 * * * *", fields.TARGET_TYPE: fields.DEFAULT_TYPE}
_NO_PREVIEW = {"preview": None, "preview_problem": "", "unreadable": (), "cost": "", "code": ()}
"""Of a form that is shown again: the script asks for it, outside of the transaction."""
_TARGETS = {
    "http": "Webhook",
    "worker": "Worker",
    "kafka": "Kafka",
    "rabbitmq": "RabbitMQ",
    "redis_stream": "Redis",
    "nats": "NATS",
    "sqs": "SQS",
}


@routes.operation("GET", "/jobs/new", KeyRole.EDITOR, _PAGE, mode=HandlerMode.COMPUTATION)
async def new_job_page(request: AuthenticatedRequest) -> Response:
    """The form of a new job."""
    async with request.services.slot_for(KeyRole.EDITOR, request.tenant.tenant_id):
        context = await _context(request, None, _NEW)
    return render(request, "job_form.html", **context, **await _preview(request, _NEW))


@routes.operation("GET", "/jobs/{job_id}/edit", KeyRole.EDITOR, _PAGE, mode=HandlerMode.COMPUTATION)
async def edit_job_page(request: AuthenticatedRequest, job_id: str) -> Response:
    """The form of a job that exists."""
    async with request.services.slot_for(KeyRole.EDITOR, request.tenant.tenant_id):
        job = await reading.get(request.tenant, job_id)
        texts = await _texts_of(request, job)
        context = await _context(request, job, texts)
    return render(request, "job_form.html", **context, **await _preview(request, texts))


@routes.operation(
    "POST", "/jobs/preview", KeyRole.VIEWER, _PAGE, body=form(), mode=HandlerMode.COMPUTATION, cost=AdmissionRequest()
)
async def preview_job(request: AuthenticatedRequest, body: Fields) -> Response:
    """What a form means so far."""
    return render(request, "job_preview.html", **await _preview(request, body))


async def _cost_of_creation(_: AuthenticatedRequest, body: Any) -> AdmissionRequest:
    return costs.of_creation(fields.job_of(body)[0])


async def _cost_of_edit(_: AuthenticatedRequest, body: Any) -> AdmissionRequest:
    return costs.of_edit(fields.job_of(body)[0])


@routes.operation("POST", "/jobs/new", KeyRole.EDITOR, _PAGE, body=form(), cost=_cost_of_creation)
async def create_job(request: AuthenticatedRequest, body: Fields) -> Response:
    """Create a job."""
    context = {**await _context(request, None, body), **_NO_PREVIEW}
    with redisplayed(request, "job_form.html", name_of=lambda pointer: fields.name_of(pointer, body), **context):
        job = await create.create(request.tenant, _read(body))
    response = redirect(request, f"/jobs/{job.job_id}", toast=f"Created {job.name}.", subject=job.job_id)
    response.created_jobs = 1
    return response


@routes.operation("POST", "/jobs/{job_id}/edit", KeyRole.EDITOR, _PAGE, body=form(), cost=_cost_of_edit)
async def edit_job(request: AuthenticatedRequest, job_id: str, body: Fields) -> Response:
    """Change the fields of a job that differ from what the form showed."""
    before = await reading.get(request.tenant, job_id)
    context = {**await _context(request, before, body), **_NO_PREVIEW}
    with redisplayed(request, "job_form.html", name_of=lambda pointer: fields.name_of(pointer, body), **context):
        patch = _patch(await _texts_of(request, before), body)
        version = body.get(_VERSION, "")
        job = await edit.edit(
            request.tenant, job_id, patch, expected_version=int(version) if version.isdecimal() else 0
        )
    toast = "Saved." if job.spec_version != before.spec_version else "Nothing has changed."
    return redirect(request, f"/jobs/{job_id}", toast=toast, subject=job_id)


async def _texts_of(request: AuthenticatedRequest, job: Job) -> dict[str, str]:
    written = await reading.get_written(request.tenant, job)
    return {**fields.texts_of(written), _VERSION: str(job.spec_version), _REPLACES: job.name}


def _read(texts: Mapping[str, str]) -> dict[str, Any]:
    job, faults = fields.job_of(texts)
    if not faults:
        return job
    # All that is wrong is said at once, also in the fields that can be read.
    unread = {fault.pointer for fault in faults}
    try:
        as_spec(job, default_jitter_seconds=0)
    except InvalidFields as refused:
        faults += [fault for fault in refused.faults if fault.pointer not in unread]
    raise InvalidFields(faults)


def _patch(before: Mapping[str, str], texts: Mapping[str, str]) -> dict[str, Any]:
    """The fields that differ; null where one is empty now."""
    old, new = fields.job_of(before)[0], _read(texts)
    names = {*old, *new}
    return {name: new.get(name) for name in names if old.get(name) != new.get(name)}


async def _context(request: AuthenticatedRequest, job: Job | None, texts: Mapping[str, str]) -> dict[str, Any]:
    found = await connections.list_connections(request.tenant, limit=MAX_CONNECTIONS)
    by_type: dict[str, list[str]] = {}
    for each in found.items:
        by_type.setdefault(str(each.type), []).append(each.name)
    return {
        "job": job,
        "fields": texts,
        "name_field": fields.NAME,
        "basic": fields.basic_fields(),
        "groups": fields.groups(),
        "targets": fields.targets(),
        "target_names": _TARGETS,
        "target_type": texts.get(fields.TARGET_TYPE, fields.DEFAULT_TYPE),
        "connections": by_type,
        "zones": sorted(tzdb.names()),
    }


async def _preview(request: AuthenticatedRequest, texts: Mapping[str, str]) -> dict[str, Any]:
    job, faults = fields.job_of(texts)
    shown: SchedulePreview | None = None
    problem = ""
    try:
        shown = await _schedule_preview(request, job)
    except (InvalidFields, InvalidInput) as refused:
        problem = _reason(refused)
    return {
        "preview": shown,
        "preview_problem": problem,
        "unreadable": [f"{fields.name_of(fault.pointer, texts)} {fault.reason}" for fault in faults],
        "cost": cost_text(None if shown is None else shown.runs_a_year),
        "code": code_of(job, replaces=texts.get(_REPLACES)),
    }


def _reason(refused: InvalidFields | InvalidInput) -> str:
    if isinstance(refused, InvalidInput):
        return f"{refused.field.replace('_', ' ')} {refused.reason}"
    return "; ".join(f"{fault.pointer.removeprefix('/').replace('_', ' ')} {fault.reason}" for fault in refused.faults)


async def _schedule_preview(request: AuthenticatedRequest, job: Mapping[str, Any]) -> SchedulePreview | None:
    if "schedule" not in job:
        return None
    names = (name for name in PreviewRequest.__struct_fields__ if name in job)
    wanted = read_settings({name: job[name] for name in names}, PreviewRequest)
    async with request.services.slot_for(KeyRole.VIEWER, request.tenant.tenant_id):
        after = await lanes.clock(request.tenant.pool)
    return await request.cancel_on_disconnect(previews.preview(request.tenant, wanted, after))


def cost_text(runs_a_year: int | None) -> str:
    """How often it runs, in the unit that makes it a small number of at least one."""
    if not runs_a_year:
        return ""
    for days, unit in ((1, "a day"), (7, "a week"), (30, "a month")):
        count = runs_a_year * days / 365
        if count >= 0.95:
            rounded = round(count)
            about = "" if abs(count - rounded) < 0.02 else "about "
            return f"{about}{rounded:,} run{'s' if rounded != 1 else ''} {unit}"
    return f"{runs_a_year} run{'s' if runs_a_year != 1 else ''} in the next year"
