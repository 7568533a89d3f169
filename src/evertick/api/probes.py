"""What machines ask: is it alive, is it ready, how is it doing, what can it do. Nobody needs a key for that."""

from evertick.api.answers import Answer, ok
from evertick.api.metrics import MEDIA_TYPE
from evertick.api.operations import Section, Shown, Visit
from evertick.usecases import standing

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
    "GET", "/metrics", None, answers={200: Shown("Metrics", "As Prometheus reads them.", media_types=("text/plain",))}
)
async def metrics(visit: Visit) -> Answer:
    """Figures for Prometheus."""
    services = visit.services
    found = await standing.standing(services.pool, services.lifetime)
    return Answer(200, services.metrics.show(found, services.polls.count), media_type=MEDIA_TYPE)


@section.operation("GET", "/api/v1/openapi.json", None, answers={200: Shown("OpenApi", "This description.")})
async def get_openapi(visit: Visit) -> Answer:
    """What the API can do."""
    return Answer(200, visit.services.openapi)
