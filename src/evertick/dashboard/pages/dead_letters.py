"""Dead letters: by job and error, one by one, and the replays of many with their progress."""

from typing import Annotated, Any

from msgspec import Meta

from evertick.api.decoding import read_pairs
from evertick.api.messages import AuthenticatedRequest, Response
from evertick.api.operations import HandlerMode, ResponseSpec
from evertick.contract.jobs import Nothing
from evertick.contract.runs import LetterFilter, LettersQuery, Replay
from evertick.dashboard.forms import Fields, form
from evertick.dashboard.live import live
from evertick.dashboard.rendering import draw, page_routes, redirect, redisplayed, render
from evertick.domain.access import KeyRole
from evertick.domain.states import ReplayStatus
from evertick.usecases.jobs import costs
from evertick.usecases.runs import dead_letters, replays, requests
from evertick.usecases.runs.dead_letters import LetterFilters

routes = page_routes("Dead letters")
MAX_REPLAYS_SHOWN = 5
DEFAULT_RATE = 10.0
_PAGE = ResponseSpec(None, "A page.")
_PATH = "/dead-letters"


class ReplayForm(LetterFilter, forbid_unknown_fields=True):
    """Which dead letters are replayed, and how fast."""

    rate_per_second: Annotated[float, Meta(ge=0.01, le=1000)] = DEFAULT_RATE


@routes.operation("GET", _PATH, KeyRole.VIEWER, _PAGE, mode=HandlerMode.LATE_READ)
async def dead_letters_page(request: AuthenticatedRequest, query: LettersQuery) -> Response:
    """The dead letters."""
    return render(request, "dead_letters.html", **await _shown(request, query))


@routes.operation("GET", f"{_PATH}/live", KeyRole.VIEWER, _PAGE)
async def replays_live(request: AuthenticatedRequest) -> Response:
    """The replays as they go on."""

    async def draw_replays(asked: AuthenticatedRequest) -> str:
        return draw(asked, "replays.html", replays=await _replays(asked))

    return live(request, draw_replays)


@routes.operation("POST", f"{_PATH}/replay", KeyRole.OPERATOR, _PAGE, body=form(), cost=costs.OF_REPLAYS)
async def replay_dead_letters(request: AuthenticatedRequest, body: Fields) -> Response:
    """Replay the dead letters that match, at a rate."""
    shown = await _shown(request, LettersQuery())
    with redisplayed(request, "dead_letters.html", fields=body, **shown):
        wanted = read_pairs(body.pairs, ReplayForm)
        chosen = LetterFilter(**{name: getattr(wanted, name) for name in LetterFilter.__struct_fields__})
        new = await replays.start(request.tenant, chosen, wanted.rate_per_second, request.caller.key_id)
    return redirect(request, _PATH, toast="The replay has started.", subject=new)


@routes.operation("POST", _PATH + "/{run_id}/replay", KeyRole.OPERATOR, _PAGE, body=form(Nothing), cost=costs.OF_RUN)
async def replay_dead_letter(request: AuthenticatedRequest, run_id: str, body: Nothing) -> Response:  # noqa: ARG001 - only its token counts
    """Run a dead letter's run again, and remove the letter."""
    new = await requests.replay_letter(request.tenant, run_id, request.trace)
    return redirect(request, f"/runs/{new}", toast="It runs again: this is the new run.", subject=new)


@routes.operation("POST", _PATH + "/{run_id}/dismiss", KeyRole.OPERATOR, _PAGE, body=form(Nothing))
async def dismiss_dead_letter(request: AuthenticatedRequest, run_id: str, body: Nothing) -> Response:  # noqa: ARG001 - only its token counts
    """Dismiss a dead letter."""
    await dead_letters.dismiss(request.tenant, run_id)
    return redirect(request, _PATH, toast="Dismissed. The run stays in the history.", subject=run_id)


@routes.operation("POST", "/replays/{replay_id}/cancel", KeyRole.OPERATOR, _PAGE, body=form(Nothing))
async def cancel_replay(request: AuthenticatedRequest, replay_id: str, body: Nothing) -> Response:  # noqa: ARG001 - only its token counts
    """Cancel a replay."""
    await replays.cancel(request.tenant, replay_id)
    return redirect(request, _PATH, toast="Cancelled. Runs that it has made stay.", subject=replay_id)


async def _shown(request: AuthenticatedRequest, query: LettersQuery) -> dict[str, Any]:
    filters: LetterFilters = {
        "job_id": query.job_id,
        "queue": query.queue,
        "error": query.error,
        "label": query.label,
    }
    found = await dead_letters.list_letters(request.tenant, limit=query.limit, cursor=query.cursor, **filters)
    given = {name: value for name, value in filters.items() if value is not None}
    return {
        "found": found,
        "groups": [] if given else await dead_letters.group_letters(request.tenant),
        "max_grouped": dead_letters.MAX_GROUPED,
        "replays": await _replays(request),
        "query": given,
        "job_name": next((letter.name for letter in found.items), None) if query.job_id else None,
        "is_first": query.cursor is None,
    }


async def _replays(request: AuthenticatedRequest) -> list[Replay]:
    """The newest replays; of those that are under way, also how much is left."""
    newest = (await replays.list_replays(request.tenant, limit=MAX_REPLAYS_SHOWN)).items
    return [
        await replays.get(request.tenant, each.replay_id) if each.status == ReplayStatus.RUNNING else each
        for each in newest
    ]
