"""Runs: a job's, a tenant's, one with its attempts; cancelling and replaying them."""

import dataclasses
from typing import Any

from evertick.api.documents import RUN_ACCEPTED, RUN_DETAIL, RUN_LINKS
from evertick.api.operations import Call, Section, Shown
from evertick.api.problems import Kind
from evertick.api.responses import Answer, ok, page, path_to
from evertick.api.shapes import JobRunsQuery, Nothing, RunsQuery
from evertick.domain.access import KeyRole
from evertick.domain.admission import Request
from evertick.usecases import requests, runs
from evertick.usecases.context import Tenant
from evertick.usecases.history import Attempt, Entry, Run, RunDetail
from evertick.usecases.pulling import shown_worker

section = Section("Runs")


def _shape(tenant: Tenant, entry: Entry) -> Entry:
    if not isinstance(entry, Run):
        return entry
    return dataclasses.replace(entry, worker_id=shown_worker(tenant, entry.worker_id))


def _detail(tenant: Tenant, detail: RunDetail) -> dict[str, Any]:
    attempts = [_attempt(tenant, attempt) for attempt in detail.attempts]
    return {**dataclasses.asdict(_shape(tenant, detail.run)), "attempts": attempts}


def _attempt(tenant: Tenant, attempt: Attempt) -> dict[str, Any]:
    shown = dataclasses.asdict(attempt)
    return {**shown, "result": attempt.result, "worker_id": shown_worker(tenant, attempt.worker_id)}


async def accepted(call: Call, run_id: str) -> Answer:
    """202: a run was asked for."""
    detail = await runs.get_run(call.tenant, run_id)
    location = {"Location": path_to("runs", run_id)}
    return ok(_shape(call.tenant, detail.run), status=202, headers=location, subject=run_id)


@section.operation(
    "GET",
    "/jobs/{job_id}/runs",
    KeyRole.VIEWER,
    answers={200: Shown("RunsAndGaps", "The runs and gaps, newest first.", ("Link",))},
    problems=(Kind.NOT_FOUND,),
)
async def list_job_runs(call: Call, job_id: str, query: JobRunsQuery) -> Answer:
    """List a job's runs.

    Gaps stand in the list where their ticks would, without a run id.
    """
    found = await runs.job_runs(
        call.tenant,
        job_id,
        limit=query.limit,
        cursor=query.cursor,
        status=None if query.status is None else query.status.meant,
        from_at=query.from_at,
        to_at=query.to_at,
    )
    return page(found, call.path, query, lambda entry: _shape(call.tenant, entry))


@section.operation(
    "GET", "/runs", KeyRole.VIEWER, answers={200: Shown("Runs", "The runs, latest attempted first.", ("Link",))}
)
async def list_runs(call: Call, query: RunsQuery) -> Answer:
    """List the runs of all jobs."""
    found = await runs.tenant_runs(
        call.tenant,
        limit=query.limit,
        cursor=query.cursor,
        status=query.status,
        from_at=query.from_at,
        to_at=query.to_at,
    )
    return page(found, call.path, query, lambda entry: _shape(call.tenant, entry))


@section.operation(
    "GET",
    "/runs/{run_id}",
    KeyRole.VIEWER,
    answers={200: Shown(RUN_DETAIL, "The run with its attempts.", links=RUN_LINKS)},
    problems=(Kind.NOT_FOUND,),
)
async def get_run(call: Call, run_id: str) -> Answer:
    """Get a run."""
    return ok(_detail(call.tenant, await runs.get_run(call.tenant, run_id)))


@section.operation(
    "POST",
    "/runs/{run_id}/cancel",
    KeyRole.OPERATOR,
    answers={200: Shown(RUN_DETAIL, "The cancelled run.", links=RUN_LINKS)},
    problems=(Kind.NOT_FOUND, Kind.WRONG_STATE),
)
async def cancel_run(call: Call, run_id: str, body: Nothing) -> Answer:  # noqa: ARG001 - it has to be empty
    """Cancel a run.

    An attempt that a worker has ends as cancelled, whatever the worker comes to.
    """
    await requests.cancel(call.tenant, run_id)
    return ok(_detail(call.tenant, await runs.get_run(call.tenant, run_id)), subject=run_id)


@section.operation(
    "POST",
    "/runs/{run_id}/replay",
    KeyRole.OPERATOR,
    answers={202: RUN_ACCEPTED},
    problems=(Kind.NOT_FOUND, Kind.WRONG_STATE),
    cost=lambda _: Request(runs=1),
)
async def replay_run(call: Call, run_id: str, body: Nothing) -> Answer:  # noqa: ARG001 - it has to be empty
    """Run a finished run again.

    A new run with the same payload; the old one stays as it is.
    """
    return await accepted(call, await requests.replay(call.tenant, run_id))
