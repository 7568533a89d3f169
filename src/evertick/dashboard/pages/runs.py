"""Runs: the list of all jobs' runs, and one run with the way of each attempt."""

import json
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from evertick.api.messages import AuthenticatedRequest, Response
from evertick.api.operations import HandlerMode, ResponseSpec
from evertick.api.routes.runs import run_detail, with_worker_name
from evertick.contract.jobs import Nothing
from evertick.contract.runs import Attempt, RunDetail, RunsQuery
from evertick.dashboard.charts import Span
from evertick.dashboard.formatting import milliseconds, seconds
from evertick.dashboard.forms import form
from evertick.dashboard.live import live
from evertick.dashboard.rendering import draw, page_routes, redirect, render
from evertick.dashboard.sent_request import RequestShown, request_shown
from evertick.domain.access import KeyRole
from evertick.domain.ids import parse_token
from evertick.domain.lateness import Way, explain
from evertick.domain.schedule.instants import from_us
from evertick.domain.states import FINAL_RUNS, RunReason, RunStatus
from evertick.store.engine import lanes
from evertick.usecases import job_history
from evertick.usecases.context import Page
from evertick.usecases.jobs import costs
from evertick.usecases.runs import reading, requests

routes = page_routes("Runs")
LOOK_SECONDS = 0.05
"""After which a page with a filter looks no further back, and asks whether to go on."""
_PAGE = ResponseSpec(None, "A page.")
_STATUSES = [("", "Any status"), *((each.value, each.value.capitalize()) for each in RunStatus)]


class Step(NamedTuple):
    """An attempt, the legs of its way, and why it is late."""

    attempt: Attempt
    fired_at: datetime
    spans: list[Span]
    why: str


@routes.operation("GET", "/runs", KeyRole.VIEWER, _PAGE, mode=HandlerMode.LATE_READ)
async def runs_page(request: AuthenticatedRequest, query: RunsQuery) -> Response:
    """The runs of all jobs, the latest attempted first."""
    found = await reading.tenant_runs(
        request.tenant,
        limit=query.limit,
        cursor=query.cursor,
        status=query.status,
        from_at=query.from_at,
        to_at=query.to_at,
        archive=query.archive,
        within_seconds=LOOK_SECONDS,
    )
    shown = Page(tuple(with_worker_name(request.tenant, run) for run in found.items), found.next)
    given = {name: value for name, value in msgspec.to_builtins(query).items() if value and name != "cursor"}
    given.pop("limit", None)
    return render(request, "runs.html", found=shown, query=given, statuses=_STATUSES, is_first=query.cursor is None)


@routes.operation("GET", "/runs/{run_id}", KeyRole.VIEWER, _PAGE)
async def run_page(request: AuthenticatedRequest, run_id: str) -> Response:
    """One run."""
    return render(request, "run.html", **await _shown(request, run_id))


@routes.operation("GET", "/runs/{run_id}/live", KeyRole.VIEWER, _PAGE)
async def run_live(request: AuthenticatedRequest, run_id: str) -> Response:
    """One run as it changes."""

    async def draw_run(asked: AuthenticatedRequest) -> str:
        return draw(asked, "run_detail.html", **await _shown(asked, run_id))

    return live(request, draw_run)


@routes.operation("POST", "/runs/{run_id}/cancel", KeyRole.OPERATOR, _PAGE, body=form(Nothing))
async def cancel_run(request: AuthenticatedRequest, run_id: str, body: Nothing) -> Response:  # noqa: ARG001 - only its token counts
    """Cancel a run."""
    await requests.cancel(request.tenant, run_id)
    return redirect(request, f"/runs/{run_id}", toast="Cancelled.", subject=run_id)


@routes.operation("POST", "/runs/{run_id}/replay", KeyRole.OPERATOR, _PAGE, body=form(Nothing), cost=costs.OF_RUN)
async def replay_run(request: AuthenticatedRequest, run_id: str, body: Nothing) -> Response:  # noqa: ARG001 - only its token counts
    """Run a finished run again."""
    new = await requests.replay(request.tenant, run_id, request.trace)
    return redirect(request, f"/runs/{new}", toast="It runs again: this is the new run.", subject=new)


async def _shown(request: AuthenticatedRequest, run_id: str) -> dict[str, Any]:
    run = await run_detail(request, run_id, archive=request.tenant.archive is not None)
    now_at = await lanes.clock(request.services.pool)
    return {
        "run": run,
        "output": None if run.output is None else json.dumps(run.output, ensure_ascii=False, indent=2),
        "sent": await _sent(request, run),
        "steps": [_step(run, attempt, now_at) for attempt in run.attempts],
        "is_open": run.status not in FINAL_RUNS,
        "is_live": run.status not in FINAL_RUNS,
    }


async def _sent(request: AuthenticatedRequest, run: RunDetail) -> RequestShown | None:
    """What a dispatcher sent for the latest attempt, if it sends this run at all."""
    if not run.attempts or run.handler is not None:
        return None
    target = await job_history.target_of(request.tenant, run.job_id, run.spec_version)
    return request_shown(run, run.attempts[-1], target)


def _step(run: RunDetail, attempt: Attempt, now_at: datetime) -> Step:
    """The seq of an attempt is the time when it was fired, in microseconds."""
    fired_at = max(from_us(parse_token(attempt.token).seq), attempt.due_at)
    way = Way(
        run.scheduled_at,
        attempt.due_at,
        fired_at,
        attempt.started_at,
        RunReason(run.reason),
        attempt.attempt,
        run.waiting if attempt.result is None else None,
        attempt.leased_at,
    )
    return Step(attempt, fired_at, _spans(way, attempt.finished_at, now_at), explain(way, now_at))


def _spans(way: Way, finished_at: datetime | None, now_at: datetime) -> list[Span]:
    """The legs of the way, from the nominal time to the end. Where no lease is known, two of them are one."""
    begins_at = way.started_at or finished_at or now_at
    ends = [
        ("wait", "nominal to due", way.scheduled_at, way.due_at),
        ("late", "due to fired", way.due_at, way.fired_at),
    ]
    if way.leased_at is None:
        ends.append(("queue", "fired to started", way.fired_at, begins_at))
    else:
        ends.append(("queue", "fired to leased", way.fired_at, way.leased_at))
        ends.append(("held", "leased to started", way.leased_at, begins_at))
    if way.started_at is not None:
        ends.append(("work", "started to finished", way.started_at, finished_at or now_at))
    return [_span(name, text, max((until - since).total_seconds(), 0.0)) for name, text, since, until in ends]


def _span(name: str, text: str, took: float) -> Span:
    return Span(name, text, took, milliseconds(1000 * took) if took < 1 else seconds(took))
