"""Dead letters: listing, replaying and dismissing them."""

from functools import partial

from evertick.api.operations import ResponseSpec, Routes
from evertick.api.problems import Kind
from evertick.api.requests import AuthenticatedRequest
from evertick.api.responses import Response, no_content, ok, page
from evertick.api.routes.runs import RUN_ACCEPTED, accepted
from evertick.contract.jobs import Nothing
from evertick.contract.runs import DeadLetter, LettersQuery, Replaying, ReplayRequest
from evertick.domain.access import KeyRole
from evertick.domain.admission import AdmissionRequest
from evertick.usecases.runs import dead_letters, requests

routes = Routes("Dead letters")


@routes.operation(
    "GET",
    "/dead-letters",
    KeyRole.VIEWER,
    ResponseSpec(list[DeadLetter], "The dead letters, those that died last first."),
)
async def list_dead_letters(request: AuthenticatedRequest, query: LettersQuery) -> Response:
    """List dead letters.

    Runs whose attempts are used up, until they are replayed or dismissed.
    """
    found = await dead_letters.list_letters(request.tenant, job_id=query.job_id, limit=query.limit, cursor=query.cursor)
    return page(found, request.path, query)


@routes.operation(
    "POST",
    "/dead-letters/{run_id}/replay",
    KeyRole.OPERATOR,
    RUN_ACCEPTED,
    problems=(Kind.NOT_FOUND,),
    cost=AdmissionRequest(runs=1),
)
async def replay_dead_letter(request: AuthenticatedRequest, run_id: str, body: Nothing) -> Response:  # noqa: ARG001 - it has to be empty
    """Run a dead letter's run again, and remove the letter."""
    return await accepted(request, await requests.replay_letter(request.tenant, run_id))


@routes.operation(
    "POST",
    "/dead-letters:replay",
    KeyRole.OPERATOR,
    ResponseSpec(Replaying, "What is replayed, at once or in its turn.", status=202),
    problems=(Kind.NOT_FOUND,),
    cost=AdmissionRequest(),
)
async def replay_dead_letters(request: AuthenticatedRequest, body: ReplayRequest) -> Response:
    """Replay dead letters at a rate.

    Each becomes a run right away, due at its turn, whatever becomes of the server meanwhile; until then it can be
    cancelled like any other. Each counts as a submission: where the tenant's rate admits no more, `has_more` is true.
    """
    admitted = partial(request.services.quotas.draw_up_to, request.caller.tenant)
    give_back = partial(request.services.quotas.give_back, request.caller.tenant)
    replayed = await dead_letters.replay_letters(request.tenant, body.filter, body.rate_per_second, admitted, give_back)
    request.on_rollback.append(partial(give_back, replayed.admitted))
    return ok(replayed.replaying(), status=202)


@routes.operation(
    "DELETE",
    "/dead-letters/{run_id}",
    KeyRole.OPERATOR,
    ResponseSpec(None, "It is dismissed; its run stays in the history.", status=204),
    problems=(Kind.NOT_FOUND,),
)
async def dismiss_dead_letter(request: AuthenticatedRequest, run_id: str) -> Response:
    """Dismiss a dead letter."""
    await dead_letters.dismiss(request.tenant, run_id)
    return no_content(subject=run_id)
