"""The cluster: nodes and their partitions, workers, queues, hosts of targets."""

from collections.abc import Sequence
from typing import Any

from evertick.api.messages import AuthenticatedRequest, Response
from evertick.api.operations import ResponseSpec
from evertick.contract.jobs import Nothing
from evertick.contract.server import Node
from evertick.dashboard.charts import Holding
from evertick.dashboard.forms import form
from evertick.dashboard.live import live
from evertick.dashboard.rendering import draw, page_routes, redirect, render
from evertick.domain.access import KeyRole
from evertick.usecases import engine_status, workers
from evertick.usecases.tenants import queues, target_hosts

routes = page_routes("Cluster")
COLOURS = 8
"""So many nodes have a colour of their own; with more, some share one."""
MAX_SHOWN = 200
_PAGE = ResponseSpec(None, "A page.")


@routes.operation("GET", "/cluster", KeyRole.VIEWER, _PAGE)
async def cluster_page(request: AuthenticatedRequest) -> Response:
    """The cluster."""
    return render(request, "cluster.html", **await _shown(request))


@routes.operation("GET", "/cluster/live", KeyRole.VIEWER, _PAGE)
async def cluster_live(request: AuthenticatedRequest) -> Response:
    """The cluster as it changes."""

    async def draw_cluster(asked: AuthenticatedRequest) -> str:
        return draw(asked, "cluster_detail.html", **await _shown(asked))

    return live(request, draw_cluster)


@routes.operation("POST", "/targets/{host}/reset", KeyRole.OPERATOR, _PAGE, body=form(Nothing))
async def reset_target(request: AuthenticatedRequest, host: str, body: Nothing) -> Response:  # noqa: ARG001 - only its token counts
    """Close the circuit of a host."""
    await target_hosts.reset_host(request.tenant, host)
    return redirect(request, "/cluster", toast=f"The circuit of {host} is closed.", subject=host)


async def _shown(request: AuthenticatedRequest) -> dict[str, Any]:
    status = await request.services.engine_status.get()
    is_operator_of_all = request.caller.tenant.is_host and request.caller.role is KeyRole.ADMIN
    shown = {node.node: node if is_operator_of_all else engine_status.opaque(node) for node in status.cluster.nodes}
    names, nodes = {name: node.node for name, node in shown.items()}, list(shown.values())
    holders = await engine_status.partition_holders(request.services.reserved)
    return {
        "cluster": status.cluster,
        "nodes": nodes,
        "colours": {node.node: _colour(nodes, node.node) for node in nodes},
        "holdings": [
            Holding(
                _colour(nodes, names.get(each.holder or "")),
                f"partition {each.partition}: {names.get(each.holder or '', 'nobody')}, epoch {each.epoch}",
            )
            for each in holders
        ],
        "engine": status if is_operator_of_all else None,
        "skew_ms": 1000 * status.clock_skew_seconds,
        "workers": (await workers.list_workers(request.tenant, limit=MAX_SHOWN)).items,
        "queues": (await queues.list_queues(request.tenant, limit=MAX_SHOWN)).items,
        "hosts": (await target_hosts.list_hosts(request.tenant, limit=MAX_SHOWN)).items,
    }


def _colour(nodes: Sequence[Node], name: str | None) -> int | None:
    """The number of a node's colour; None: it is not among them."""
    return next((place % COLOURS + 1 for place, node in enumerate(nodes) if node.node == name), None)
