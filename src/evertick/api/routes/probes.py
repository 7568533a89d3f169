"""Probes, metrics and the OpenAPI description. They need no key, except the metrics of a server that other machines can
reach.
"""

from evertick.api.authentication import authenticate, authorise
from evertick.api.metrics import MEDIA_TYPE
from evertick.api.operations import ResponseSpec, Routes
from evertick.api.problems import Kind, Problem
from evertick.api.requests import HttpRequest
from evertick.api.responses import Response, ok
from evertick.contract.engine import Alive, Ready
from evertick.domain.access import KeyRole

routes = Routes("Probes", prefix="")


@routes.operation("GET", "/livez", None, responses={200: ResponseSpec(Alive, "The process answers.")})
async def livez(request: HttpRequest) -> Response:  # noqa: ARG001 - it needs nothing
    """Is it alive?"""
    return ok(Alive("alive"))


@routes.operation(
    "GET",
    "/readyz",
    None,
    responses={
        200: ResponseSpec(Ready, "The schema fits and the clock is sane."),
        503: ResponseSpec(Ready, "Not ready, and why."),
    },
)
async def readyz(request: HttpRequest) -> Response:
    """Is it ready?"""
    faults = await request.services.readiness.faults()
    return ok(Ready(ready=not faults, faults=faults), status=503 if faults else 200)


@routes.operation(
    "GET",
    "/metrics",
    None,
    responses={200: ResponseSpec("Metrics", "As Prometheus reads them.", media_types=("text/plain",))},
    problems=(Kind.UNAUTHENTICATED, Kind.FORBIDDEN, Kind.UNAVAILABLE),
)
async def metrics(request: HttpRequest) -> Response:
    """Figures for Prometheus.

    Where the server can be reached from other machines, they are for keys of the hosting tenant alone, unless
    EVERTICK_METRICS_OPEN says otherwise.
    """
    services = request.services
    if not services.is_metrics_open:
        caller = await authenticate(request)
        authorise(caller, KeyRole.VIEWER)
        if not caller.tenant.is_host:
            raise Problem(Kind.FORBIDDEN, "the figures are about all tenants: this needs a key of the hosting tenant")
    return Response(200, await services.metrics_page.get(), media_type=MEDIA_TYPE)


@routes.operation("GET", "/api/v1/openapi.json", None, responses={200: ResponseSpec("OpenApi", "This description.")})
async def get_openapi(request: HttpRequest) -> Response:
    """What the API can do."""
    return Response(200, request.services.openapi)
