"""How the engine stands: nodes and partitions, figures of a tenant."""

from evertick.api.operations import Call, Section, Shown
from evertick.api.responses import Answer, ok
from evertick.domain.access import KeyRole
from evertick.usecases import engine_status
from evertick.usecases.engine_status import Stats
from evertick.version import __version__

section = Section("Operations")


@section.operation("GET", "/cluster", KeyRole.VIEWER, answers={200: Shown("Cluster", "Nodes, partitions and lag.")})
async def get_cluster(call: Call) -> Answer:
    """Look at the cluster.

    A node's name tells its machine and process, which is for admins of the hosting tenant alone. Others see a name that
    stands for it.
    """
    found = await call.services.standing.get()
    sees_names = call.caller.tenant.is_host and call.caller.role is KeyRole.ADMIN
    return ok(
        {
            "version": __version__,
            "tzdb": found.tzdb,
            "nodes": [
                node._asdict() | ({} if sees_names else {"node": engine_status.opaque_name(node.node)})
                for node in found.nodes
            ],
            "partitions": {"total": found.partitions, "unheld": found.unheld},
            "lag_seconds": found.lag_seconds,
        }
    )


@section.operation("GET", "/stats", KeyRole.VIEWER, answers={200: Shown(Stats, "Rates, lag and depth.")})
async def get_stats(call: Call) -> Answer:
    """Look at figures of the last minute."""
    return ok(await call.services.stats(call.caller.tenant.tenant_id))
