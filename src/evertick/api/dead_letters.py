"""Dead letters: listing, replaying and dismissing them."""

from evertick.api.answers import Answer, nothing, ok, page
from evertick.api.documents import RUN_ACCEPTED
from evertick.api.operations import Call, Section, Shown
from evertick.api.problems import Kind, Problem
from evertick.api.runs import accepted
from evertick.api.shapes import LettersQuery, Nothing, ReplayRequest
from evertick.domain.access import KeyRole
from evertick.domain.admission import Request
from evertick.usecases import dead_letters, requests
from evertick.usecases.dead_letters import Chosen
from evertick.usecases.standing import clock

section = Section("Dead letters")


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
    answers={202: Shown("Replaying", "What was replayed so far, and whether more follows.")},
    problems=(Kind.NOT_FOUND, Kind.WRONG_STATE),
    cost=lambda _: Request(),
)
async def replay_dead_letters(call: Call, body: ReplayRequest) -> Answer:
    """Replay dead letters at a rate.

    A second's worth is replayed at once. The rest follows in the background; should the server stop meanwhile, what
    is left stays a dead letter.
    """
    replays = call.services.replays
    if replays.is_busy(call.caller.tenant):
        raise Problem(Kind.WRONG_STATE, "a replay of this tenant's dead letters is under way")
    # Only what is dead already: a run that dies again must not go round and round.
    now_at = await clock(call.tenant.pool)
    chosen = Chosen(body.filter.job_id, body.filter.died_from, min(body.filter.died_before or now_at, now_at))
    first = max(1, int(body.rate_per_second))
    replayed = await dead_letters.replay_letters(call.tenant, chosen, first)
    continues = len(replayed) == first
    if continues:
        call.afterwards.append(lambda: replays.go_on(call.caller.tenant, chosen, body.rate_per_second))
    return ok({"replayed": len(replayed), "run_ids": replayed, "continues": continues}, status=202)


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
