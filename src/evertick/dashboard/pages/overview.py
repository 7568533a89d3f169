"""The overview: the last and the next hour, figures, and what needs attention; live."""

from typing import Any, NamedTuple

from evertick.api.messages import AuthenticatedRequest, Response
from evertick.api.operations import ResponseSpec
from evertick.contract.server import Need, NeedKind
from evertick.dashboard.charts import Bar, Part
from evertick.dashboard.formatting import number
from evertick.dashboard.live import live
from evertick.dashboard.rendering import draw, page_routes, render
from evertick.domain.access import KeyRole
from evertick.usecases.attention import MAX_COUNTED
from evertick.usecases.jobs import reading
from evertick.usecases.overview import Overview, Past, Planned

routes = page_routes("Overview")
_PAGE = ResponseSpec(None, "A page.")
_LISTS: dict[str, tuple[str, dict[str, str]]] = {
    NeedKind.DEAD_LETTERS: ("/dead-letters", {}),
    NeedKind.OPEN_BREAKERS: ("/cluster", {}),
    NeedKind.PAUSED_BY_ITSELF: ("/jobs", {"status": "paused"}),
    NeedKind.OVERDUE: ("/jobs", {"sort": "next_run"}),
    NeedKind.REPLAYS: ("/dead-letters", {}),
}


class LinkedNeed(NamedTuple):
    """Something that needs attention, and the list behind it."""

    level: str
    number: str
    text: str
    path: str
    query: dict[str, str]


@routes.operation("GET", "/", KeyRole.VIEWER, _PAGE)
async def overview_page(request: AuthenticatedRequest) -> Response:
    """The overview."""
    return render(request, "overview.html", **await _figures(request))


@routes.operation("GET", "/overview/live", KeyRole.VIEWER, _PAGE)
async def overview_live(request: AuthenticatedRequest) -> Response:
    """The overview's figures as they change."""

    async def draw_figures(asked: AuthenticatedRequest) -> str:
        return draw(asked, "overview_figures.html", **await _figures(asked))

    return live(request, draw_figures)


async def _figures(request: AuthenticatedRequest) -> dict[str, Any]:
    overview = await request.services.overviews.get(request.tenant)
    stats = await request.services.stats(request.tenant.tenant_id)
    totals = _totals(overview)
    return {
        "overview": overview,
        "has_jobs": any(totals.values()) or bool((await reading.list_jobs(request.tenant, limit=1)).items),
        "stats": stats,
        "bars": [*map(_past_bar, overview.past), *map(_planned_bar, overview.planned)],
        "rates": [past.succeeded + past.failed + past.other for past in overview.past[:-1] if past is not None],
        "ratio": _success_ratio(overview),
        "totals": totals,
        "is_partial": any(each is not None and each.is_partial for each in (*overview.past, *overview.planned)),
        "needs": [_linked(need) for need in overview.needs],
    }


def _past_bar(past: Past | None) -> Bar:
    if past is None:
        return Bar("not counted yet", (Part("unknown", 0),))
    when = past.at.strftime("%H:%M UTC")
    counts = f"{number(past.succeeded)} succeeded, {number(past.failed)} failed, {number(past.other)} other"
    title = f"{when}: {_at_least(past.is_partial)}{counts}"
    return Bar(title, (Part("ok", past.succeeded), Part("other", past.other), Part("bad", past.failed)))


def _planned_bar(planned: Planned) -> Bar:
    title = f"{planned.at:%H:%M} UTC: {_at_least(planned.is_partial)}{number(planned.runs)} planned"
    return Bar(title, (Part("planned", planned.runs),))


def _at_least(is_partial: bool) -> str:  # noqa: FBT001 - the one thing it takes
    return "at least " if is_partial else ""


def _totals(overview: Overview) -> dict[str, int]:
    counted = [past for past in overview.past if past is not None]
    return {
        "succeeded": sum(past.succeeded for past in counted),
        "failed": sum(past.failed for past in counted),
        "other": sum(past.other for past in counted),
        "planned": sum(planned.runs for planned in overview.planned),
    }


def _success_ratio(overview: Overview) -> float | None:
    """Of the runs of the last hour that ended, in percent."""
    totals = _totals(overview)
    ended = totals["succeeded"] + totals["failed"]
    return 100 * totals["succeeded"] / ended if ended else None


def _linked(need: Need) -> LinkedNeed:
    counted = f"{number(need.count)}+" if need.count >= MAX_COUNTED else number(need.count)
    # Kinds without a list of their own are conditions of alerts.
    alerts: tuple[str, dict[str, str]] = ("/alerts", {"status": "open", "condition": need.kind})
    return LinkedNeed(need.level, counted, need.text, *_LISTS.get(need.kind, alerts))
