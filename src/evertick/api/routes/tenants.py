"""Tenants: for admins of the host all of them, for others their own."""

from functools import partial
from typing import Any

import msgspec

from evertick.api.operations import Call, Section, Shown
from evertick.api.problems import Kind, Problem
from evertick.api.responses import Answer, ok, page, path_to
from evertick.api.shapes import TenantPatch, TenantRequest, TenantsQuery
from evertick.domain.access import KeyRole
from evertick.usecases import keys, tenants
from evertick.usecases.tenants import TenantView

section = Section("Tenants")

_LINKS = {"get": ("get_tenant", {"tenant_id": "$response.body#/tenant_id"})}


def _changes(body: TenantRequest | TenantPatch) -> dict[str, Any]:
    given = msgspec.to_builtins(body)
    return {name: value for name, value in given.items() if name in tenants.LIMITS and value is not None}


def _require_host(call: Call) -> None:
    if not call.caller.tenant.is_host:
        raise Problem(Kind.FORBIDDEN, "only admins of the hosting tenant may do this")


@section.operation(
    "POST",
    "/tenants",
    KeyRole.ADMIN,
    answers={201: Shown("NewTenant", "The tenant, and its first key, shown this once.", ("Location",), _LINKS)},
    problems=(Kind.NAME_TAKEN,),
    holds_secret=True,
)
async def create_tenant(call: Call, body: TenantRequest) -> Answer:
    """Create a tenant."""
    _require_host(call)
    made = await tenants.create(call.tenant.pool, body.name, _changes(body))
    key = tenants.tenant_key(None, made.tenant_id)
    first = await keys.create(call.tenant.pool, key, KeyRole.ADMIN, "first")
    shown = {**msgspec.to_builtins(made), "api_key": first.secret}
    location = {"Location": path_to("tenants", made.tenant_id)}
    return ok(shown, status=201, headers=location, subject=made.tenant_id, concerns=key)


@section.operation(
    "GET", "/tenants", KeyRole.ADMIN, answers={200: Shown(list[TenantView], "The tenants, oldest first.", ("Link",))}
)
async def list_tenants(call: Call, query: TenantsQuery) -> Answer:
    """List the tenants that one may see."""
    found = await tenants.list_tenants(call.tenant.pool, call.sees_only, limit=query.limit, cursor=query.cursor)
    return page(found, call.path, query)


@section.operation(
    "GET",
    "/tenants/{tenant_id}",
    KeyRole.ADMIN,
    answers={200: Shown(TenantView, "The tenant.")},
    problems=(Kind.NOT_FOUND,),
)
async def get_tenant(call: Call, tenant_id: str) -> Answer:
    """Get a tenant."""
    return ok(await tenants.get(call.tenant.pool, call.sees_only, tenant_id))


@section.operation(
    "PATCH",
    "/tenants/{tenant_id}",
    KeyRole.ADMIN,
    answers={200: Shown(TenantView, "The tenant as it is now.")},
    problems=(Kind.NOT_FOUND, Kind.WRONG_STATE),
)
async def edit_tenant(call: Call, tenant_id: str, body: TenantPatch) -> Answer:
    """Change a tenant's quota or share."""
    key = tenants.tenant_key(call.sees_only, tenant_id)
    _require_host(call)
    if key == call.caller.tenant.tenant_id and body.shortest_interval_seconds is not None:
        # It would make the caller's own jobs unfit to be edited, at one stroke.
        raise Problem(Kind.WRONG_STATE, "the shortest interval of one's own tenant is set from the command line")
    edited = await tenants.edit(call.tenant.pool, tenant_id, _changes(body))
    call.afterwards.append(partial(call.services.keys.forget, key))
    return ok(edited, subject=tenant_id, concerns=key)
