"""The alerts: what the overview says needs attention, one by one."""

import msgspec

from evertick.api.messages import AuthenticatedRequest, Response
from evertick.api.operations import ResponseSpec
from evertick.contract.alerts import AlertsQuery, AlertStatus
from evertick.dashboard.rendering import page_routes, render
from evertick.domain.access import KeyRole
from evertick.domain.alerts import Condition
from evertick.usecases.tenants import alerts

routes = page_routes("Alerts")
CONDITIONS = {
    Condition.NO_SUCCESS: "No success for too long",
    Condition.FAILURES: "Failing again and again",
    Condition.LATE: "Late",
    Condition.RUNNING_LONG: "Running too long",
    Condition.DEAD_LETTERS: "Dead letters",
    Condition.CATCH_UP: "Many timers overdue",
    Condition.BREAKER_OPEN: "Open circuit breaker",
    Condition.FUSE: "Paused: fired too often",
    Condition.QUOTA: "Quota nearly used up",
}
_PAGE = ResponseSpec(None, "A page.")


@routes.operation("GET", "/alerts", KeyRole.VIEWER, _PAGE)
async def alerts_page(request: AuthenticatedRequest, query: AlertsQuery) -> Response:
    """The alerts, the newest first."""
    found = await alerts.list_alerts(
        request.tenant, status=query.status, condition=query.condition, limit=query.limit, cursor=query.cursor
    )
    given = {name: value for name, value in msgspec.to_builtins(query).items() if value}
    return render(
        request,
        "alerts.html",
        found=found,
        query={name: given[name] for name in ("status", "condition") if name in given},
        conditions=CONDITIONS,
        statuses=[("", "Open and closed"), *((each.value, each.value.capitalize()) for each in AlertStatus)],
        is_first=query.cursor is None,
    )
