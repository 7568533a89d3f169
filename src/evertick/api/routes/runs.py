"""Runs: a job's, a tenant's, one with its attempts; cancelling and replaying them. Dead letters."""

from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from evertick.api.messages import AuthenticatedRequest, Response, created, no_content, ok, page
from evertick.api.operations import HandlerMode, ResponseSpec, Routes
from evertick.api.problems import Kind
from evertick.contract.jobs import Nothing
from evertick.contract.runs import (
    DeadLetter,
    Gap,
    JobRunsQuery,
    LettersQuery,
    Replay,
    Replaying,
    ReplayRequest,
    ReplaysQuery,
    Run,
    RunDetail,
    RunQuery,
    RunsQuery,
)
from evertick.domain.access import KeyRole
from evertick.domain.tracing import TRACEPARENT
from evertick.usecases.context import TenantContext
from evertick.usecases.jobs import costs
from evertick.usecases.runs import dead_letters, reading, replays, requests
from evertick.usecases.runs.pull_workers import worker_name

routes = Routes("Runs")
letter_routes = Routes("Dead letters")
_R = TypeVar("_R", bound=Run | Gap)

_RUN_ID = {"run_id": "$response.body#/run_id"}
_LINKS = {"get": ("get_run", _RUN_ID), "cancel": ("cancel_run", _RUN_ID), "replay": ("replay_run", _RUN_ID)}
RUN_ACCEPTED = ResponseSpec(Run, "The run, which waits for a worker.", ("Location",), _LINKS, status=202)


def with_worker_name(tenant: TenantContext, entry: _R) -> _R:
    """The run with its worker's name as the tenant knows it."""
    return replace(entry, worker_id=worker_name(tenant, entry.worker_id)) if isinstance(entry, Run) else entry


async def run_detail(request: AuthenticatedRequest, run_id: str, *, archive: bool = False) -> RunDetail:
    tenant = request.tenant
    detail = await reading.get_run(tenant, run_id, archive=archive)
    attempts = [replace(each, worker_id=worker_name(tenant, each.worker_id)) for each in detail.attempts]
    return replace(with_worker_name(tenant, detail), attempts=tuple(attempts))


async def accepted(request: AuthenticatedRequest, run_id: str) -> Response:
    """202: a run was asked for."""
    run = (await run_detail(request, run_id)).run
    return created(run, "runs", run_id, status=202, subject=run_id)


@routes.operation(
    "GET",
    "/jobs/{job_id}/runs",
    KeyRole.VIEWER,
    ResponseSpec("RunsAndGaps", "The runs and gaps, newest first."),
    problems=(Kind.WRONG_STATE,),
    mode=HandlerMode.LATE_READ,
)
async def list_job_runs(request: AuthenticatedRequest, job_id: str, query: JobRunsQuery) -> Response:
    """List a job's runs.

    Gaps stand in the list where their ticks would, without a run id.
    """
    found = await reading.job_runs(
        request.tenant,
        job_id,
        limit=query.limit,
        cursor=query.cursor,
        status=None if query.status is None else query.status.meant,
        from_at=query.from_at,
        to_at=query.to_at,
        archive=query.archive,
    )
    return page(found, request.path, query, lambda entry: with_worker_name(request.tenant, entry))


@routes.operation(
    "GET",
    "/runs",
    KeyRole.VIEWER,
    ResponseSpec(list[Run], "The runs, latest attempted first."),
    problems=(Kind.WRONG_STATE,),
    mode=HandlerMode.LATE_READ,
)
async def list_runs(request: AuthenticatedRequest, query: RunsQuery) -> Response:
    """List the runs of all jobs."""
    found = await reading.tenant_runs(
        request.tenant,
        limit=query.limit,
        cursor=query.cursor,
        status=query.status,
        from_at=query.from_at,
        to_at=query.to_at,
        archive=query.archive,
    )
    return page(found, request.path, query, lambda entry: with_worker_name(request.tenant, entry))


@routes.operation(
    "GET",
    "/runs/{run_id}",
    KeyRole.VIEWER,
    ResponseSpec(RunDetail, "The run with its attempts.", links=_LINKS),
    problems=(Kind.WRONG_STATE,),
)
async def get_run(request: AuthenticatedRequest, run_id: str, query: RunQuery) -> Response:
    """Get a run."""
    return ok(await run_detail(request, run_id, archive=query.archive))


@routes.operation(
    "POST",
    "/runs/{run_id}/cancel",
    KeyRole.OPERATOR,
    ResponseSpec(RunDetail, "The cancelled run.", links=_LINKS),
    problems=(Kind.WRONG_STATE,),
)
async def cancel_run(request: AuthenticatedRequest, run_id: str, body: Nothing) -> Response:  # noqa: ARG001 - it has to be empty
    """Cancel a run.

    An attempt that a worker has ends as cancelled, whatever the worker comes to.
    """
    await requests.cancel(request.tenant, run_id)
    return ok(await run_detail(request, run_id), subject=run_id)


@routes.operation(
    "POST",
    "/runs/{run_id}/replay",
    KeyRole.OPERATOR,
    RUN_ACCEPTED,
    problems=(Kind.WRONG_STATE,),
    headers=(TRACEPARENT,),
    cost=costs.OF_RUN,
)
async def replay_run(request: AuthenticatedRequest, run_id: str, body: Nothing) -> Response:  # noqa: ARG001 - it has to be empty
    """Run a finished run again.

    A new run with the same payload; the old one stays as it is.
    """
    return await accepted(request, await requests.replay(request.tenant, run_id, request.trace))


@letter_routes.operation(
    "GET",
    "/dead-letters",
    KeyRole.VIEWER,
    ResponseSpec(list[DeadLetter], "The dead letters, those that died last first."),
    mode=HandlerMode.LATE_READ,
)
async def list_dead_letters(request: AuthenticatedRequest, query: LettersQuery) -> Response:
    """List dead letters.

    Runs whose attempts are used up, until they are replayed or dismissed.
    """
    found = await dead_letters.list_letters(
        request.tenant,
        job_id=query.job_id,
        queue=query.queue,
        error=query.error,
        label=query.label,
        limit=query.limit,
        cursor=query.cursor,
    )
    return page(found, request.path, query)


@letter_routes.operation(
    "POST", "/dead-letters/{run_id}/replay", KeyRole.OPERATOR, RUN_ACCEPTED, headers=(TRACEPARENT,), cost=costs.OF_RUN
)
async def replay_dead_letter(request: AuthenticatedRequest, run_id: str, body: Nothing) -> Response:  # noqa: ARG001 - it has to be empty
    """Run a dead letter's run again, and remove the letter."""
    return await accepted(request, await requests.replay_letter(request.tenant, run_id, request.trace))


@letter_routes.operation(
    "POST",
    "/dead-letters:replay",
    KeyRole.OPERATOR,
    ResponseSpec(Replaying, "What is replayed, at once or in its turn.", status=202),
    problems=(Kind.NOT_FOUND, Kind.WRONG_STATE),
    cost=costs.OF_REPLAYS,
)
async def replay_dead_letters(request: AuthenticatedRequest, body: ReplayRequest) -> Response:
    """Replay dead letters at a rate.

    Each becomes a run right away, due at its turn, whatever becomes of the server meanwhile; until then it can be
    cancelled like any other. Each counts as a submission. Where more match than one request takes, or than the tenant's
    rate admits, `has_more` is true, and the replay `replay_id` goes on with the others. With `background` all are left
    to the replay.
    """
    if body.background:
        new = await replays.start(request.tenant, body.filter, body.rate_per_second, request.caller.key_id)
        return ok(replays.in_background(new), status=202, subject=new)
    admitted = partial(request.services.quotas.draw_up_to, request.caller.tenant)
    give_back = partial(request.services.quotas.give_back, request.caller.tenant.tenant_id)
    replayed = await dead_letters.replay_letters(request.tenant, body.filter, body.rate_per_second, admitted, give_back)
    request.on_rollback.append(partial(give_back, replayed.admitted))
    replay_id = await replays.start_rest(
        request.tenant, replayed, body.filter, body.rate_per_second, request.caller.key_id
    )
    return ok(replayed.replaying(replay_id), status=202, subject=replay_id)


@letter_routes.operation(
    "DELETE",
    "/dead-letters/{run_id}",
    KeyRole.OPERATOR,
    ResponseSpec(None, "It is dismissed; its run stays in the history.", status=204),
)
async def dismiss_dead_letter(request: AuthenticatedRequest, run_id: str) -> Response:
    """Dismiss a dead letter."""
    await dead_letters.dismiss(request.tenant, run_id)
    return no_content(subject=run_id)


@letter_routes.operation(
    "GET", "/replays", KeyRole.VIEWER, ResponseSpec(list[Replay], "The replays, newest first, without `remaining`.")
)
async def list_replays(request: AuthenticatedRequest, query: ReplaysQuery) -> Response:
    """List replays of many dead letters.

    A replay that is over stays in the list for as long as history is kept.
    """
    found = await replays.list_replays(request.tenant, limit=query.limit, cursor=query.cursor)
    return page(found, request.path, query)


@letter_routes.operation(
    "GET", "/replays/{replay_id}", KeyRole.VIEWER, ResponseSpec(Replay, "The replay with its progress.")
)
async def get_replay(request: AuthenticatedRequest, replay_id: str) -> Response:
    """Get a replay of many dead letters."""
    return ok(await replays.get(request.tenant, replay_id))


@letter_routes.operation(
    "POST",
    "/replays/{replay_id}/cancel",
    KeyRole.OPERATOR,
    ResponseSpec(Replay, "The cancelled replay."),
    problems=(Kind.WRONG_STATE,),
)
async def cancel_replay(request: AuthenticatedRequest, replay_id: str, body: Nothing) -> Response:  # noqa: ARG001 - it has to be empty
    """Cancel a replay.

    Runs that it has made stay, and can be cancelled one by one. The other dead letters stay as they are.
    """
    return ok(await replays.cancel(request.tenant, replay_id), subject=replay_id)
