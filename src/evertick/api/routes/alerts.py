"""Alerts, and the target of their notices."""

from evertick.api.messages import AuthenticatedRequest, Response, no_content, ok, page
from evertick.api.operations import ResponseSpec, Routes
from evertick.api.problems import Kind
from evertick.api.routes.runs import RUN_ACCEPTED, accepted
from evertick.contract.alerts import Alert, AlertsQuery, AlertTarget, AlertTargetRequest
from evertick.contract.jobs import Nothing
from evertick.domain.access import KeyRole
from evertick.usecases.jobs import costs
from evertick.usecases.tenants import alerts

routes = Routes("Alerts")


@routes.operation("GET", "/alerts", KeyRole.VIEWER, ResponseSpec(list[Alert], "The alerts, newest first."))
async def list_alerts(request: AuthenticatedRequest, query: AlertsQuery) -> Response:
    """List alerts.

    An alert that closed stays in the list for as long as history is kept, and is the same when it opens again.
    """
    found = await alerts.list_alerts(
        request.tenant, status=query.status, condition=query.condition, limit=query.limit, cursor=query.cursor
    )
    return page(found, request.path, query)


@routes.operation(
    "GET",
    "/alerts/target",
    KeyRole.VIEWER,
    ResponseSpec(AlertTarget, "Where notices go."),
    problems=(Kind.NOT_FOUND,),
)
async def get_alert_target(request: AuthenticatedRequest) -> Response:
    """Get the alert target."""
    return ok(await alerts.get_target(request.tenant))


@routes.operation(
    "PUT",
    "/alerts/target",
    KeyRole.EDITOR,
    ResponseSpec(AlertTarget, "Where notices go now."),
    problems=(Kind.NAME_TAKEN,),
    cost=costs.OF_CHANGE,
)
async def put_alert_target(request: AuthenticatedRequest, body: AlertTargetRequest) -> Response:
    """Set the alert target.

    A notice is a webhook, signed and retried as those of jobs are: it is a run of the job `alert:notices`, which is
    created here.
    """
    target = await alerts.put_target(request.tenant, body)
    return ok(target, subject=target.job_id)


@routes.operation(
    "DELETE",
    "/alerts/target",
    KeyRole.EDITOR,
    ResponseSpec(None, "It is removed.", status=204),
    problems=(Kind.NOT_FOUND,),
)
async def delete_alert_target(request: AuthenticatedRequest) -> Response:
    """Remove the alert target.

    Its job is deleted. Alerts of jobs are opened and listed as before.
    """
    await alerts.remove_target(request.tenant)
    return no_content()


@routes.operation(
    "POST", "/alerts/target/test", KeyRole.OPERATOR, RUN_ACCEPTED, problems=(Kind.NOT_FOUND,), cost=costs.OF_RUN
)
async def test_alert_target(request: AuthenticatedRequest, body: Nothing) -> Response:  # noqa: ARG001 - it has to be empty
    """Send a test notice."""
    return await accepted(request, await alerts.send_test_notice(request.tenant, f"test:{request.request_id}"))
