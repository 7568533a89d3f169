"""The forecast: firings to come as a heat map, what makes the hottest, and the smear advisor."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from evertick.api.messages import AuthenticatedRequest, Response
from evertick.api.operations import HandlerMode, ResponseSpec
from evertick.api.routes.forecast import wish_of
from evertick.contract.forecast import (
    ApplyAdviceRequest,
    Forecast,
    ForecastAdvice,
    ForecastHorizon,
    ForecastQuery,
    Smear,
)
from evertick.contract.jobs import Nothing
from evertick.dashboard.charts import Cell
from evertick.dashboard.formatting import number
from evertick.dashboard.forms import form
from evertick.dashboard.live import live
from evertick.dashboard.rendering import draw, page_routes, redirect, render
from evertick.domain.access import KeyRole
from evertick.usecases.forecast import reading, smears
from evertick.usecases.forecast.keeping import Result

routes = page_routes("Forecast")
MAX_SMEARS_SHOWN = 5
LEVELS = 4
PATIENCE_SECONDS = 0.1
"""How long a page waits for its forecast; after that it comes without, and the forecast follows."""
RECOUNT_SECONDS = 30.0
"""An open page is counted again so often."""
_PAGE = ResponseSpec(None, "A page.")
_PATH = "/forecast"
_MINUTES = [f":{minute:02}" if minute % 5 == 0 else "" for minute in range(60)]
_HOURS = [f"{hour:02}:00" for hour in range(24)]
_HORIZONS = [(ForecastHorizon.DAY, "24 hours"), (ForecastHorizon.MONTH, "30 days")]


@routes.operation("GET", _PATH, KeyRole.VIEWER, _PAGE, mode=HandlerMode.COMPUTATION)
async def forecast_page(request: AuthenticatedRequest, query: ForecastQuery) -> Response:
    """The forecast. Of many jobs, it comes as soon as it is counted."""
    async with request.services.slot_for(KeyRole.VIEWER, request.tenant.tenant_id):
        smears_made = await _smears(request)
    counted = await _counted(request, query, smears_made, patience=PATIENCE_SECONDS)
    shown = _shown(query, counted, smears_made)
    return render(request, "forecast.html", horizons=_HORIZONS, live_query=_texts(query), **shown)


@routes.operation("GET", f"{_PATH}/live", KeyRole.VIEWER, _PAGE)
async def forecast_live(request: AuthenticatedRequest, query: ForecastQuery) -> Response:
    """The forecast when it is counted, and smears as they go on."""

    async def draw_forecast(asked: AuthenticatedRequest) -> str:
        smears_made = await _smears(asked)
        counted = await _counted(asked, query, smears_made, patience=0, max_age=RECOUNT_SECONDS)
        return draw(asked, "forecast_detail.html", **_shown(query, counted, smears_made))

    return live(request, draw_forecast)


@routes.operation("POST", f"{_PATH}/apply", KeyRole.EDITOR, _PAGE, body=form(ApplyAdviceRequest))
async def apply_advice(request: AuthenticatedRequest, body: ApplyAdviceRequest) -> Response:
    """Give jobs the jitter that was advised."""
    smear = await smears.apply(request.tenant, body, request.caller.key_id)
    toast = f"{number(smear.jobs)} jobs get jitter_seconds: {smear.jitter_seconds}."
    return redirect(request, _PATH, toast=toast, subject=smear.smear_id)


@routes.operation("POST", "/smears/{smear_id}/undo", KeyRole.EDITOR, _PAGE, body=form(Nothing))
async def undo_smear(request: AuthenticatedRequest, smear_id: str, body: Nothing) -> Response:  # noqa: ARG001 - only its token counts
    """Take the jitter back from the jobs of a smear."""
    await smears.undo(request.tenant, smear_id)
    return redirect(request, _PATH, toast="The jitter is taken back.", subject=smear_id)


async def _counted(
    request: AuthenticatedRequest,
    query: ForecastQuery,
    smears_made: Sequence[Smear],
    *,
    patience: float,
    max_age: float = 0.0,
) -> Result | None:
    """Begin to count, or look at what was counted since a smear ended. None: it takes longer."""
    wish, services, tenant = wish_of(request, query), request.services, request.tenant

    async def count() -> Result:
        return await services.read_late(tenant, lambda on: reading.forecast_and_advice(on, wish))

    asked = tenant.tenant_id, msgspec.json.encode(query), tuple((each.smear_id, each.status) for each in smears_made)
    return await services.forecasts.get(asked, count, patience=patience, max_age=max_age)


def _shown(query: ForecastQuery, counted: Result | None, smears_made: Sequence[Smear]) -> dict[str, Any]:
    forecast, advice = counted or (None, None)
    return {
        "forecast": forecast,
        "advice": advice,
        "query": query,
        "rows": heat_rows(forecast) if forecast else [],
        "columns": _HOURS if forecast and forecast.bucket_seconds >= 3600 else _MINUTES,
        "fall": _fall(advice) if advice else None,
        "smears": smears_made,
        # Without the time: the script keeps times current, and a page on which nothing happens is not sent again.
        **({"now_at": forecast.now} if forecast else {}),
    }


def _texts(query: ForecastQuery) -> dict[str, Any]:
    return {name: value for name, value in msgspec.to_builtins(query).items() if value}


async def _smears(request: AuthenticatedRequest) -> Sequence[Smear]:
    return (await smears.list_smears(request.tenant, limit=MAX_SMEARS_SHOWN)).items


def _fall(advice: ForecastAdvice) -> int | None:
    """By how many percent the highest minute falls; None: there is no advice."""
    if advice.jitter_seconds is None or not advice.peak_before:
        return None
    return round(100 * (advice.peak_before - advice.peak_after) / advice.peak_before)


def heat_rows(forecast: Forecast) -> list[tuple[str, list[Cell]]]:
    """A row for each hour of minutes, or for each day of hours; a cell for each bucket."""
    bucket = timedelta(seconds=forecast.bucket_seconds)
    is_daily = bucket >= timedelta(hours=1)
    size = timedelta(days=1) if is_daily else timedelta(hours=1)
    rows: dict[datetime, list[Cell]] = {}
    for place, count in enumerate(forecast.counts):
        at = forecast.from_at + place * bucket
        begins = at.replace(minute=0, second=0, microsecond=0)
        rows.setdefault(begins.replace(hour=0) if is_daily else begins, []).append(_cell(at, count, forecast.peak))
    first = next(iter(rows))
    missing = (forecast.from_at - first) // bucket if size > bucket else 0
    blank = Cell(0, "before the forecast")
    rows[first] = [blank] * missing + rows[first]
    return [(f"{at:%d %b}" if is_daily else f"{at:%H:%M}", cells) for at, cells in rows.items()]


def _cell(at: datetime, count: int, peak: int) -> Cell:
    level = -(-count * LEVELS // max(peak, 1))
    return Cell(level, f"{at:%d %b %H:%M} UTC: {number(count)} firings")
