"""Dead letters: listing, replaying and dismissing them."""

from functools import partial

from evertick.api.answers import Answer, nothing, ok, page
from evertick.api.documents import RUN_ACCEPTED
from evertick.api.operations import Call, Section, Shown
from evertick.api.problems import Kind
from evertick.api.runs import accepted
from evertick.api.shapes import LettersQuery, Nothing, ReplayRequest
from evertick.domain.access import KeyRole
from evertick.domain.admission import Request
from evertick.usecases import dead_letters, requests
from evertick.usecases.dead_letters import Chosen

section = Section("Dead letters")

MOST_SHOWN = 1000


@section.operation(
    "GET",
    "/dead-letters",
    KeyRole.VIEWER,
    answers={200: Shown("DeadLetters", "The dead letters, those that died last first.", ("Link",))},
)
async def list_dead_letters(call: Call, query: LettersQuery) -> Answer:
    """List dead letters.

    Runs whose attempts are used up, until they are replayed or dismissed.
    """
    found = await dead_letters.list_letters(call.tenant, job_id=query.job_id, limit=query.limit, cursor=query.cursor)
    return page(found, call.path, query)


@section.operation(
    "POST",
    "/dead-letters/{run_id}/replay",
    KeyRole.OPERATOR,
    answers={202: RUN_ACCEPTED},
    problems=(Kind.NOT_FOUND,),
    cost=lambda _: Request(runs=1),
)
async def replay_dead_letter(call: Call, run_id: str, body: Nothing) -> Answer:  # noqa: ARG001 - it has to be empty
    """Run a dead letter's run again, and remove the letter."""
    return await accepted(call, await requests.replay_letter(call.tenant, run_id))


@section.operation(
    "POST",
    "/dead-letters:replay",
    KeyRole.OPERATOR,
    answers={202: Shown("Replaying", "What is replayed, at once or in its turn.")},
    problems=(Kind.NOT_FOUND,),
    cost=lambda _: Request(),
)
async def replay_dead_letters(call: Call, body: ReplayRequest) -> Answer:
    """Replay dead letters at a rate.

    Each becomes a run right away, due at its turn, whatever becomes of the server meanwhile; until then it can be
    cancelled like any other. Each counts as a submission: where the tenant's rate admits no more, `has_more` is true.
    """
    chosen = Chosen(body.filter.job_id, body.filter.died_from, body.filter.died_before)
    admitted = partial(call.services.quotas.draw_up_to, call.caller.tenant)
    given_back = partial(call.services.quotas.give_back, call.caller.tenant)
    replayed = await dead_letters.replay_letters(call.tenant, chosen, body.rate_per_second, admitted, given_back)
    call.when_undone.append(partial(given_back, replayed.admitted))
    shown = {
        "replayed": len(replayed.runs),
        "run_ids": replayed.run_ids[:MOST_SHOWN],
        "last_due_at": replayed.last_due_at,
        "has_more": replayed.has_more,
    }
    return ok(shown, status=202)


@section.operation(
    "DELETE",
    "/dead-letters/{run_id}",
    KeyRole.OPERATOR,
    answers={204: Shown(None, "It is dismissed; its run stays in the history.")},
    problems=(Kind.NOT_FOUND,),
)
async def dismiss_dead_letter(call: Call, run_id: str) -> Answer:
    """Dismiss a dead letter."""
    await dead_letters.dismiss(call.tenant, run_id)
    return nothing(subject=run_id)
