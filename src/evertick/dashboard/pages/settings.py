"""Settings, for admins: API keys, tenants with their quotas, and the audit log."""

from datetime import timedelta
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from evertick.api.decoding import read_pairs
from evertick.api.messages import AuthenticatedRequest, Response
from evertick.api.operations import HandlerMode, ResponseSpec
from evertick.api.routes.access import add_tenant, change_tenant, end_key, owner_of, replace_key, tenant_of
from evertick.contract.access import (
    ChangesQuery,
    KeysQuery,
    NewApiKey,
    NewTenant,
    TenantPatch,
    TenantRequest,
    TenantsQuery,
)
from evertick.contract.annotations import Name
from evertick.contract.jobs import Nothing
from evertick.dashboard.forms import Fields, form
from evertick.dashboard.rendering import page_routes, redirect, redisplayed, render
from evertick.domain.access import KeyRole
from evertick.store.engine import lanes
from evertick.usecases import audit
from evertick.usecases.tenants import keys, tenants

routes = page_routes("Settings")
ROTATION_GRACE = timedelta(hours=24)
_PAGE = ResponseSpec(None, "A page.")
_QUOTAS = (
    ("weight", "Weight", "Its share where tenants compete."),
    ("jobs_quota", "Jobs", "So many at most."),
    ("submits_per_second", "Submissions per second", "On average."),
    ("submit_burst", "Burst of submissions", "At once, after a pause."),
    ("running_quota", "Runs in flight", "At once, in all workers."),
    ("ready_quota", "Runs that wait", "With so many, timers wait."),
    ("shortest_interval_seconds", "Shortest interval, seconds", "Of schedules."),
    ("http_timeout_max_seconds", "Longest webhook, seconds", "Whatever a job says."),
    ("storage_quota_bytes", "Storage, bytes", "Of jobs, payloads and errors."),
    ("default_jitter_seconds", "Default jitter, seconds", "Of jobs that choose none."),
    ("history_days", "History, days", "Older runs are not listed."),
    ("archive_days", "Archive, days", "Older files are removed."),
)


class KeyForm(Struct, forbid_unknown_fields=True):
    """A new key."""

    role: KeyRole
    name: Name = ""
    days: Annotated[int, Meta(ge=1, le=3650)] | None = None


@routes.operation("GET", "/settings", KeyRole.ADMIN, _PAGE)
async def keys_page(request: AuthenticatedRequest, query: KeysQuery) -> Response:
    """The API keys of the tenant."""
    return render(request, "keys.html", **await _keys(request, query))


@routes.operation("POST", "/settings/keys", KeyRole.ADMIN, _PAGE, body=form())
async def create_key(request: AuthenticatedRequest, body: Fields) -> Response:
    """Create an API key, and show it once."""
    with redisplayed(request, "keys.html", fields=body, **await _keys(request, KeysQuery())):
        wanted = read_pairs(body.pairs, KeyForm)
        expires_at = None
        if wanted.days is not None:
            expires_at = await lanes.clock(request.tenant.pool) + timedelta(days=wanted.days)
        tenant_key = request.caller.tenant.tenant_id
        new = await keys.create(request.tenant.pool, tenant_key, wanted.role, wanted.name, expires_at)
    return await _with_secret(request, new, new.key_id)


@routes.operation("POST", "/settings/keys/{key_id}/rotate", KeyRole.ADMIN, _PAGE, body=form(Nothing))
async def rotate_key(request: AuthenticatedRequest, key_id: str, body: Nothing) -> Response:  # noqa: ARG001 - only its token counts
    """Replace an API key; the old one stays valid for a day."""
    return await _with_secret(request, await replace_key(request, key_id, ROTATION_GRACE), key_id)


@routes.operation("POST", "/settings/keys/{key_id}/revoke", KeyRole.ADMIN, _PAGE, body=form(Nothing))
async def revoke_key(request: AuthenticatedRequest, key_id: str, body: Nothing) -> Response:  # noqa: ARG001 - only its token counts
    """Revoke an API key."""
    revoked = await end_key(request, key_id)
    response = redirect(request, "/settings", toast="Revoked: it lets nobody in any more.", subject=key_id)
    response.affected_tenant = owner_of(revoked)
    return response


@routes.operation("GET", "/settings/tenants", KeyRole.ADMIN, _PAGE)
async def tenants_page(request: AuthenticatedRequest, query: TenantsQuery) -> Response:
    """The tenants that one may see."""
    return render(request, "tenants.html", **await _tenants(request, query))


@routes.operation("POST", "/settings/tenants", KeyRole.ADMIN, _PAGE, body=form())
async def create_tenant(request: AuthenticatedRequest, body: Fields) -> Response:
    """Create a tenant, and show its first key once."""
    with redisplayed(request, "tenants.html", fields=body, **await _tenants(request, TenantsQuery())):
        new = await add_tenant(request, read_pairs(body.pairs, TenantRequest))
    response = render(request, "tenants.html", **await _tenants(request, TenantsQuery(), new=new))
    response.subject, response.affected_tenant = new.tenant_id, tenants.tenant_key(None, new.tenant_id)
    return response


@routes.operation("GET", "/settings/tenants/{tenant_id}", KeyRole.ADMIN, _PAGE)
async def tenant_page(request: AuthenticatedRequest, tenant_id: str) -> Response:
    """One tenant and its quotas."""
    return render(request, "tenant.html", **await _tenant(request, tenant_id))


@routes.operation("POST", "/settings/tenants/{tenant_id}", KeyRole.ADMIN, _PAGE, body=form())
async def edit_tenant(request: AuthenticatedRequest, tenant_id: str, body: Fields) -> Response:
    """Change a tenant's quotas or share."""
    shown = await _tenant(request, tenant_id)
    with redisplayed(request, "tenant.html", fields=body, **shown):
        patch = msgspec.to_builtins(read_pairs(body.pairs, TenantPatch))
        given = {name: value for name, value in patch.items() if value is not None}
        current = msgspec.to_builtins(shown["tenant"])
        changed = TenantPatch(**{name: value for name, value in given.items() if value != current[name]})
        _, key = await change_tenant(request, tenant_id, changed)
    response = redirect(request, f"/settings/tenants/{tenant_id}", toast="Saved.", subject=tenant_id)
    response.affected_tenant = key
    return response


@routes.operation("GET", "/settings/audit-log", KeyRole.ADMIN, _PAGE, mode=HandlerMode.LATE_READ)
async def audit_page(request: AuthenticatedRequest, query: ChangesQuery) -> Response:
    """Who changed what, and when."""
    found = await audit.list_changes(request.tenant, limit=query.limit, cursor=query.cursor)
    return render(request, "audit.html", found=found, is_first=query.cursor is None)


async def _keys(request: AuthenticatedRequest, query: KeysQuery, new: NewApiKey | None = None) -> dict[str, Any]:
    tenant_key = await tenant_of(request, query.tenant_id)
    found = await keys.list_keys(request.tenant.pool, tenant_key, limit=query.limit, cursor=query.cursor)
    return {
        "found": found,
        "new": new,
        "now": await lanes.clock(request.tenant.pool),
        "own": request.caller.key_id,
        "query": {} if query.tenant_id is None else {"tenant_id": query.tenant_id},
        "roles": [(role.value, role.value.capitalize()) for role in KeyRole],
        "is_first": query.cursor is None,
    }


async def _with_secret(request: AuthenticatedRequest, new: NewApiKey, subject: str) -> Response:
    """The page that shows a secret: not a redirect, because it is shown this once."""
    response = render(request, "keys.html", **await _keys(request, KeysQuery(), new))
    response.headers["Cache-Control"] = "no-store"
    response.subject, response.affected_tenant = subject, owner_of(new)
    return response


async def _tenants(request: AuthenticatedRequest, query: TenantsQuery, new: NewTenant | None = None) -> dict[str, Any]:
    found = await tenants.list_tenants(
        request.tenant.pool, request.visible_tenant, limit=query.limit, cursor=query.cursor
    )
    is_host = request.caller.tenant.is_host
    return {"found": found, "new": new, "is_host": is_host, "is_first": query.cursor is None}


async def _tenant(request: AuthenticatedRequest, tenant_id: str) -> dict[str, Any]:
    tenant = await tenants.get(request.tenant.pool, request.visible_tenant, tenant_id)
    return {"tenant": tenant, "quotas": _QUOTAS, "is_host": request.caller.tenant.is_host}
