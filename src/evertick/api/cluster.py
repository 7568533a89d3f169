"""How the engine stands: nodes and partitions, figures of a tenant."""

from evertick.api.answers import Answer, ok
from evertick.api.operations import Call, Section, Shown
from evertick.domain.access import KeyRole
from evertick.usecases import standing
from evertick.usecases.standing import Stats
from evertick.version import __version__

section = Section("Operations")


@section.operation("GET", "/cluster", KeyRole.VIEWER, answers={200: Shown("Cluster", "Nodes, partitions and lag.")})
async def get_cluster(call: Call) -> Answer:
    """Look at the cluster."""
    found = await standing.standing(call.services.pool, call.services.lifetime)
    return ok(
        {
            "version": __version__,
            "tzdb": found.tzdb,
            "nodes": [node._asdict() for node in found.nodes],
            "partitions": {"total": found.partitions, "unheld": found.unheld},
            "lag_seconds": found.lag_seconds,
        }
    )


@section.operation("GET", "/stats", KeyRole.VIEWER, answers={200: Shown(Stats, "Rates, lag and depth.")})
async def get_stats(call: Call) -> Answer:
    """Look at figures of the last minute."""
    return ok(await standing.tenant_stats(call.services.pool, call.caller.tenant.tenant_id))
