"""Probes, metrics and the OpenAPI description. They need no key, except the metrics of a server that other machines can
reach.
"""

from evertick.api.metrics import MEDIA_TYPE
from evertick.api.operations import Section, Shown, Visit
from evertick.api.pipeline import caller_of
from evertick.api.problems import Kind, Problem
from evertick.api.responses import Answer, ok
from evertick.domain.access import KeyRole

section = Section("Probes", prefix="")


@section.operation("GET", "/livez", None, answers={200: Shown("Alive", "The process answers.")})
async def livez(visit: Visit) -> Answer:  # noqa: ARG001 - it is enough to be here
    """Is it alive?"""
    return ok({"status": "alive"})


@section.operation(
    "GET",
    "/readyz",
    None,
    answers={200: Shown("Ready", "The schema fits and the clock is sane."), 503: Shown("Ready", "Not ready, and why.")},
)
async def readyz(visit: Visit) -> Answer:
    """Is it ready?"""
    faults = await visit.services.readiness.faults()
    return ok({"ready": not faults, "faults": faults}, status=503 if faults else 200)


@section.operation(
    "GET",
    "/metrics",
    None,
    answers={200: Shown("Metrics", "As Prometheus reads them.", media_types=("text/plain",))},
    problems=(Kind.UNAUTHENTICATED, Kind.FORBIDDEN, Kind.UNAVAILABLE),
)
async def metrics(visit: Visit) -> Answer:
    """Figures for Prometheus.

    Where the server can be reached from other machines, they are for keys of the hosting tenant alone, unless
    EVERTICK_METRICS_OPEN says otherwise.
    """
    services = visit.services
    if not services.is_metrics_open:
        caller = await caller_of(visit, KeyRole.VIEWER)
        if not caller.tenant.is_host:
            raise Problem(Kind.FORBIDDEN, "the figures are about all tenants: this needs a key of the hosting tenant")
    return Answer(200, await services.figures.get(), media_type=MEDIA_TYPE)


@section.operation("GET", "/api/v1/openapi.json", None, answers={200: Shown("OpenApi", "This description.")})
async def get_openapi(visit: Visit) -> Answer:
    """What the API can do."""
    return Answer(200, visit.services.openapi)
