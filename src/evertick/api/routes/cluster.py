"""The status of the engine, and a tenant's statistics."""

from evertick.api.operations import ResponseSpec, Routes
from evertick.api.requests import AuthenticatedRequest
from evertick.api.responses import Response, ok
from evertick.contract.engine import Cluster, Node, Partitions, Stats
from evertick.domain.access import KeyRole
from evertick.usecases import engine_status
from evertick.version import __version__

routes = Routes("Operations")


@routes.operation(
    "GET", "/cluster", KeyRole.VIEWER, responses={200: ResponseSpec(Cluster, "Nodes, partitions and lag.")}
)
async def get_cluster(request: AuthenticatedRequest) -> Response:
    """Look at the cluster.

    A node's name tells its machine and process, which is for admins of the hosting tenant alone. Others see a name that
    stands for it.
    """
    found = await request.services.engine_status.get()
    sees_names = request.caller.tenant.is_host and request.caller.role is KeyRole.ADMIN
    return ok(
        Cluster(
            version=__version__,
            tzdb=found.tzdb,
            nodes=tuple(
                Node(**node._asdict() | ({} if sees_names else {"node": engine_status.opaque_name(node.node)}))
                for node in found.nodes
            ),
            partitions=Partitions(found.partitions, found.unheld),
            lag_seconds=found.lag_seconds,
        )
    )


@routes.operation("GET", "/stats", KeyRole.VIEWER, responses={200: ResponseSpec(Stats, "Rates, lag and depth.")})
async def get_stats(request: AuthenticatedRequest) -> Response:
    """Look at figures of the last minute."""
    return ok(await request.services.stats(request.caller.tenant.tenant_id))
