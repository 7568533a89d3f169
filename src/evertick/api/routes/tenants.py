"""Tenants: for admins of the host all of them, for others their own."""

from functools import partial
from typing import Any

import msgspec

from evertick.api.operations import ResponseSpec, Routes
from evertick.api.problems import Kind, Problem
from evertick.api.requests import AuthenticatedRequest
from evertick.api.responses import Response, ok, page, path_to
from evertick.contract.access import NewTenant, Tenant, TenantPatch, TenantRequest, TenantsQuery
from evertick.domain.access import KeyRole
from evertick.usecases.tenants import keys, tenants

routes = Routes("Tenants")

_LINKS = {"get": ("get_tenant", {"tenant_id": "$response.body#/tenant_id"})}


def _changes(body: TenantRequest | TenantPatch) -> dict[str, Any]:
    given = msgspec.to_builtins(body)
    return {name: value for name, value in given.items() if name in TenantPatch.__struct_fields__ and value is not None}


def _require_host(request: AuthenticatedRequest) -> None:
    if not request.caller.tenant.is_host:
        raise Problem(Kind.FORBIDDEN, "only admins of the hosting tenant may do this")


@routes.operation(
    "POST",
    "/tenants",
    KeyRole.ADMIN,
    responses={
        201: ResponseSpec(
            NewTenant, "The tenant, and its first key, shown this once.", ("Location",), _LINKS, holds_secret=True
        )
    },
    problems=(Kind.NAME_TAKEN,),
)
async def create_tenant(request: AuthenticatedRequest, body: TenantRequest) -> Response:
    """Create a tenant."""
    _require_host(request)
    made = await tenants.create(request.tenant.pool, body.name, _changes(body))
    key = tenants.tenant_key(None, made.tenant_id)
    first = await keys.create(request.tenant.pool, key, KeyRole.ADMIN, "first")
    shown = NewTenant(**msgspec.structs.asdict(made), api_key=first.secret)
    location = {"Location": path_to("tenants", made.tenant_id)}
    return ok(shown, status=201, headers=location, subject=made.tenant_id, affected_tenant=key)


@routes.operation(
    "GET",
    "/tenants",
    KeyRole.ADMIN,
    responses={200: ResponseSpec(list[Tenant], "The tenants, oldest first.", ("Link",))},
)
async def list_tenants(request: AuthenticatedRequest, query: TenantsQuery) -> Response:
    """List the tenants that one may see."""
    found = await tenants.list_tenants(
        request.tenant.pool, request.visible_tenant, limit=query.limit, cursor=query.cursor
    )
    return page(found, request.path, query)


@routes.operation(
    "GET",
    "/tenants/{tenant_id}",
    KeyRole.ADMIN,
    responses={200: ResponseSpec(Tenant, "The tenant.")},
    problems=(Kind.NOT_FOUND,),
)
async def get_tenant(request: AuthenticatedRequest, tenant_id: str) -> Response:
    """Get a tenant."""
    return ok(await tenants.get(request.tenant.pool, request.visible_tenant, tenant_id))


@routes.operation(
    "PATCH",
    "/tenants/{tenant_id}",
    KeyRole.ADMIN,
    responses={200: ResponseSpec(Tenant, "The tenant as it is now.")},
    problems=(Kind.NOT_FOUND, Kind.WRONG_STATE),
)
async def edit_tenant(request: AuthenticatedRequest, tenant_id: str, body: TenantPatch) -> Response:
    """Change a tenant's quota or share."""
    key = tenants.tenant_key(request.visible_tenant, tenant_id)
    _require_host(request)
    if key == request.caller.tenant.tenant_id and body.shortest_interval_seconds is not None:
        # It would make the caller's own jobs unfit to be edited, at one stroke.
        raise Problem(Kind.WRONG_STATE, "the shortest interval of one's own tenant is set from the command line")
    edited = await tenants.edit(request.tenant.pool, tenant_id, _changes(body))
    request.after_commit.append(partial(request.services.keys.forget, key))
    return ok(edited, subject=tenant_id, affected_tenant=key)
