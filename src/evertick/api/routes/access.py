"""Who may use the API: tenants, their keys, and the audit log of what they changed.

Admins of the hosting tenant see all tenants, others their own.
"""

from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec

from evertick.api.messages import AuthenticatedRequest, Response, created, no_content, ok, page
from evertick.api.operations import HandlerMode, ResponseSpec, Routes
from evertick.api.problems import HttpProblem, Kind
from evertick.contract.access import (
    ApiKey,
    AuditEntry,
    ChangesQuery,
    KeyRequest,
    KeysQuery,
    NewApiKey,
    NewTenant,
    RotateRequest,
    Tenant,
    TenantPatch,
    TenantRequest,
    TenantsQuery,
)
from evertick.domain.access import KeyRole
from evertick.usecases import audit
from evertick.usecases.tenants import keys, tenants

tenant_routes = Routes("Tenants")
key_routes = Routes("API keys")
audit_routes = Routes("Audit")

OWN_GRACE_SECONDS = 3600
"""Of the key in use: should the answer with its successor be lost, nobody is locked out."""
OWN_GRACE = timedelta(seconds=OWN_GRACE_SECONDS)

_TENANT_LINKS = {"get": ("get_tenant", {"tenant_id": "$response.body#/tenant_id"})}
_KEY_ID = {"key_id": "$response.body#/key_id"}
_KEY_LINKS = {"get": ("get_key", _KEY_ID), "rotate": ("rotate_key", _KEY_ID), "revoke": ("revoke_key", _KEY_ID)}


def _new(shape: type[Tenant | ApiKey], text: str, links: Mapping[str, Any]) -> ResponseSpec:
    return ResponseSpec(shape, text, ("Location",), links, holds_secret=True, status=201)


def _changes(body: TenantRequest | TenantPatch) -> dict[str, Any]:
    given = msgspec.to_builtins(body)
    return {name: value for name, value in given.items() if name in TenantPatch.__struct_fields__ and value is not None}


def _require_host(request: AuthenticatedRequest) -> None:
    if not request.caller.tenant.is_host:
        raise HttpProblem(Kind.FORBIDDEN, "only admins of the hosting tenant may do this")


@tenant_routes.operation(
    "POST",
    "/tenants",
    KeyRole.ADMIN,
    _new(NewTenant, "The tenant, and its first key, shown this once.", _TENANT_LINKS),
    problems=(Kind.NAME_TAKEN,),
)
async def create_tenant(request: AuthenticatedRequest, body: TenantRequest) -> Response:
    """Create a tenant."""
    new = await add_tenant(request, body)
    key = tenants.tenant_key(None, new.tenant_id)
    return created(new, "tenants", new.tenant_id, subject=new.tenant_id, affected_tenant=key)


async def add_tenant(request: AuthenticatedRequest, body: TenantRequest) -> NewTenant:
    """A new tenant with its first key."""
    _require_host(request)
    tenant = await tenants.create(request.tenant.pool, body.name, _changes(body))
    key = tenants.tenant_key(None, tenant.tenant_id)
    first = await keys.create(request.tenant.pool, key, KeyRole.ADMIN, "first")
    return NewTenant(**msgspec.structs.asdict(tenant), api_key=first.api_key)


@tenant_routes.operation("GET", "/tenants", KeyRole.ADMIN, ResponseSpec(list[Tenant], "The tenants, oldest first."))
async def list_tenants(request: AuthenticatedRequest, query: TenantsQuery) -> Response:
    """List the tenants that one may see."""
    found = await tenants.list_tenants(
        request.tenant.pool, request.visible_tenant, limit=query.limit, cursor=query.cursor
    )
    return page(found, request.path, query)


@tenant_routes.operation("GET", "/tenants/{tenant_id}", KeyRole.ADMIN, ResponseSpec(Tenant, "The tenant."))
async def get_tenant(request: AuthenticatedRequest, tenant_id: str) -> Response:
    """Get a tenant."""
    return ok(await tenants.get(request.tenant.pool, request.visible_tenant, tenant_id))


@tenant_routes.operation(
    "PATCH",
    "/tenants/{tenant_id}",
    KeyRole.ADMIN,
    ResponseSpec(Tenant, "The tenant as it is now."),
    problems=(Kind.WRONG_STATE,),
)
async def edit_tenant(request: AuthenticatedRequest, tenant_id: str, body: TenantPatch) -> Response:
    """Change a tenant's quota or share."""
    edited, key = await change_tenant(request, tenant_id, body)
    return ok(edited, subject=tenant_id, affected_tenant=key)


async def change_tenant(request: AuthenticatedRequest, tenant_id: str, body: TenantPatch) -> tuple[Tenant, int]:
    """The tenant as it is now, and its key in the database."""
    key = tenants.tenant_key(request.visible_tenant, tenant_id)
    _require_host(request)
    if key == request.caller.tenant.tenant_id and body.shortest_interval_seconds is not None:
        # It would make the caller's own jobs unfit to be edited, at one stroke.
        raise HttpProblem(Kind.WRONG_STATE, "the shortest interval of one's own tenant is set from the command line")
    edited = await tenants.edit(request.tenant.pool, tenant_id, _changes(body))
    request.after_commit.append(partial(request.services.forget_keys, key))
    return edited, key


def owner_of(key: ApiKey) -> int:
    return tenants.tenant_key(None, key.tenant_id)


async def tenant_of(request: AuthenticatedRequest, tenant_id: str | None) -> int:
    """The tenant that is meant: the caller's own, unless another one is named that the caller may see."""
    if tenant_id is None:
        return request.caller.tenant.tenant_id
    await tenants.get(request.tenant.pool, request.visible_tenant, tenant_id)
    return tenants.tenant_key(request.visible_tenant, tenant_id)


@key_routes.operation(
    "POST",
    "/api-keys",
    KeyRole.ADMIN,
    _new(NewApiKey, "The key, shown this once.", _KEY_LINKS),
    problems=(Kind.NOT_FOUND,),
)
async def create_key(request: AuthenticatedRequest, body: KeyRequest) -> Response:
    """Create an API key."""
    tenant_key = await tenant_of(request, body.tenant_id)
    new = await keys.create(request.tenant.pool, tenant_key, body.role, body.name, body.expires_at)
    return created(new, "api-keys", new.key_id, subject=new.key_id, affected_tenant=tenant_key)


@key_routes.operation(
    "GET", "/api-keys", KeyRole.ADMIN, ResponseSpec(list[ApiKey], "The keys, oldest first."), problems=(Kind.NOT_FOUND,)
)
async def list_keys(request: AuthenticatedRequest, query: KeysQuery) -> Response:
    """List API keys."""
    tenant_key = await tenant_of(request, query.tenant_id)
    found = await keys.list_keys(request.tenant.pool, tenant_key, limit=query.limit, cursor=query.cursor)
    return page(found, request.path, query)


@key_routes.operation("GET", "/api-keys/{key_id}", KeyRole.ADMIN, ResponseSpec(ApiKey, "The key, without its secret."))
async def get_key(request: AuthenticatedRequest, key_id: str) -> Response:
    """Get an API key."""
    return ok(await keys.get(request.tenant.pool, request.visible_tenant, key_id))


@key_routes.operation(
    "POST",
    "/api-keys/{key_id}/rotate",
    KeyRole.ADMIN,
    _new(NewApiKey, "The key that takes its place, shown this once.", _KEY_LINKS),
    problems=(Kind.WRONG_STATE,),
)
async def rotate_key(request: AuthenticatedRequest, key_id: str, body: RotateRequest) -> Response:
    """Replace an API key.

    The old one stays valid for the grace, so that its holders can change over.
    """
    new = await replace_key(request, key_id, timedelta(seconds=body.grace_seconds))
    return created(new, "api-keys", new.key_id, subject=key_id, affected_tenant=owner_of(new))


async def replace_key(request: AuthenticatedRequest, key_id: str, grace: timedelta) -> NewApiKey:
    """A key in the place of another one. The key in use has a least grace."""
    if key_id == request.caller.key_id and grace < OWN_GRACE:
        raise HttpProblem(
            Kind.WRONG_STATE, f"this is the key in use: give it a grace of {OWN_GRACE_SECONDS} seconds or more"
        )
    new = await keys.rotate(request.tenant.pool, request.visible_tenant, key_id, grace)
    request.after_commit.append(partial(request.services.forget_keys, owner_of(new)))
    return new


@key_routes.operation(
    "DELETE",
    "/api-keys/{key_id}",
    KeyRole.ADMIN,
    ResponseSpec(None, "It lets nobody in any more.", status=204),
    problems=(Kind.WRONG_STATE,),
)
async def revoke_key(request: AuthenticatedRequest, key_id: str) -> Response:
    """Revoke an API key."""
    revoked = await end_key(request, key_id)
    return no_content(subject=key_id, affected_tenant=owner_of(revoked))


async def end_key(request: AuthenticatedRequest, key_id: str) -> ApiKey:
    """The key, which lets nobody in any more. The key in use cannot end itself."""
    if key_id == request.caller.key_id:
        raise HttpProblem(Kind.WRONG_STATE, "this is the key in use: revoke it with another one, or rotate it")
    revoked = await keys.revoke(request.tenant.pool, request.visible_tenant, key_id)
    request.after_commit.append(partial(request.services.forget_keys, owner_of(revoked)))
    return revoked


@audit_routes.operation(
    "GET",
    "/audit-log",
    KeyRole.ADMIN,
    ResponseSpec(list[AuditEntry], "The changes, newest first."),
    mode=HandlerMode.LATE_READ,
)
async def list_changes(request: AuthenticatedRequest, query: ChangesQuery) -> Response:
    """List changes: who did what to which, and when."""
    found = await audit.list_changes(request.tenant, limit=query.limit, cursor=query.cursor)
    return page(found, request.path, query)
