"""The engine itself: its status, a tenant's statistics, probes, metrics, and the OpenAPI description.

All but the first two need no key, except the metrics of a server that other machines can reach.
"""

from msgspec.structs import replace

from evertick.api.messages import AuthenticatedRequest, HttpRequest, Response, authenticate, authorise, ok, parse_bearer
from evertick.api.operations import HandlerMode, ResponseSpec, Routes
from evertick.api.problems import HttpProblem, Kind
from evertick.contract.server import Alive, Attention, Cluster, Ready, Stats
from evertick.domain.access import KeyRole
from evertick.metrics.exposition import MEDIA_TYPE
from evertick.runtime.metrics_server import is_metrics_key
from evertick.usecases import attention, engine_status

status_routes = Routes("Operations")
probe_routes = Routes("Probes", prefix="")


@status_routes.operation("GET", "/cluster", KeyRole.VIEWER, ResponseSpec(Cluster, "Nodes, partitions and lag."))
async def get_cluster(request: AuthenticatedRequest) -> Response:
    """Look at the cluster.

    A node's name tells its machine and process, which is for admins of the hosting tenant alone. Others see a name that
    stands for it.
    """
    cluster = (await request.services.engine_status.get()).cluster
    if request.caller.tenant.is_host and request.caller.role is KeyRole.ADMIN:
        return ok(cluster)
    return ok(replace(cluster, nodes=tuple(map(engine_status.opaque, cluster.nodes))))


@status_routes.operation("GET", "/stats", KeyRole.VIEWER, ResponseSpec(Stats, "Rates, lag and depth."))
async def get_stats(request: AuthenticatedRequest) -> Response:
    """Look at figures of the last minute."""
    return ok(await request.services.stats(request.caller.tenant.tenant_id))


@status_routes.operation(
    "GET",
    "/attention",
    KeyRole.VIEWER,
    ResponseSpec(Attention, "What needs attention, and the next timers."),
    mode=HandlerMode.LATE_READ,
)
async def get_attention(request: AuthenticatedRequest) -> Response:
    """Look at what needs attention.

    Dead letters, open breakers, jobs that Evertick paused, failing and late jobs, catch-up; and what comes next.
    """
    return ok(await attention.attention(request.tenant))


@probe_routes.operation("GET", "/livez", None, ResponseSpec(Alive, "The process answers."))
async def livez(request: HttpRequest) -> Response:  # noqa: ARG001 - it needs nothing
    """Is it alive?"""
    return ok(Alive("alive"))


@probe_routes.operation(
    "GET",
    "/readyz",
    None,
    ResponseSpec(Ready, "The schema fits and the clock is sane."),
    ResponseSpec(Ready, "Not ready, and why.", status=503),
)
async def readyz(request: HttpRequest) -> Response:
    """Is it ready?"""
    readiness = await request.services.readiness.get()
    return ok(readiness, status=200 if readiness.ready else 503)


@probe_routes.operation(
    "GET",
    "/metrics",
    None,
    ResponseSpec("Metrics", "As Prometheus reads them.", media_type="text/plain"),
    problems=(Kind.UNAUTHENTICATED, Kind.FORBIDDEN, Kind.UNAVAILABLE),
)
async def metrics(request: HttpRequest) -> Response:
    """Figures for Prometheus.

    Where the server can be reached from other machines, they are for EVERTICK_METRICS_KEY and for keys of the hosting
    tenant alone, unless EVERTICK_METRICS_OPEN says otherwise.
    """
    services = request.services
    given = parse_bearer(request.headers.get("authorization", "")) or ""
    if not (services.is_metrics_open or is_metrics_key(given, services.metrics_key)):
        caller = await authenticate(request)
        authorise(caller, KeyRole.VIEWER)
        if not caller.tenant.is_host:
            raise HttpProblem(
                Kind.FORBIDDEN, "the figures are about all tenants: this needs a key of the hosting tenant"
            )
    return Response(200, await services.metrics_page.get(), media_type=MEDIA_TYPE)


@probe_routes.operation("GET", "/api/v1/openapi.json", None, ResponseSpec("OpenApi", "This description."))
async def get_openapi(request: HttpRequest) -> Response:
    """What the API can do."""
    return Response(200, request.services.openapi)
