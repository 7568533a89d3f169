"""Hosts of targets: those that failed lately, with their circuit breakers, and those with a rate limit."""

from evertick.api.messages import AuthenticatedRequest, Response, ok, page
from evertick.api.operations import ResponseSpec, Routes
from evertick.contract.jobs import Nothing
from evertick.contract.target_hosts import TargetHost, TargetHostsQuery, TargetSettings
from evertick.domain.access import KeyRole
from evertick.usecases.tenants import target_hosts

routes = Routes("Targets")


@routes.operation("GET", "/targets", KeyRole.VIEWER, ResponseSpec(list[TargetHost], "The hosts, by name."))
async def list_targets(request: AuthenticatedRequest, query: TargetHostsQuery) -> Response:
    """List the hosts and connections of targets that failed lately or have a rate limit.

    A host without a limit is forgotten a day after its last failure. One that never fails is not in the list.
    """
    found = await target_hosts.list_hosts(request.tenant, limit=query.limit, cursor=query.cursor)
    return page(found, request.path, query)


@routes.operation("PUT", "/targets/{host}", KeyRole.EDITOR, ResponseSpec(TargetHost, "The host as it is now."))
async def put_target(request: AuthenticatedRequest, host: str, body: TargetSettings) -> Response:
    """Limit how many deliveries a host gets per second.

    From all dispatchers together, within seconds. Deliveries over the limit are deferred and use up no attempt. A limit
    that is left out is removed; what was deferred before comes at the time that it was given.
    """
    limited = await target_hosts.limit_host(request.tenant, host, body)
    return ok(limited, subject=limited.host)


@routes.operation(
    "POST", "/targets/{host}/reset", KeyRole.OPERATOR, ResponseSpec(TargetHost, "The host, with a closed circuit.")
)
async def reset_target(request: AuthenticatedRequest, host: str, body: Nothing) -> Response:  # noqa: ARG001 - it has to be empty
    """Close the circuit of a host.

    Dispatchers deliver to it again within a second. What was deferred before comes at the time that it was given.
    """
    return ok(await target_hosts.reset_host(request.tenant, host), subject=host.lower())
