"""API keys: making, listing, rotating and revoking them."""

from datetime import timedelta
from functools import partial

from evertick.api.operations import ResponseSpec, Routes
from evertick.api.problems import Kind, Problem
from evertick.api.requests import AuthenticatedRequest
from evertick.api.responses import Response, no_content, ok, page, path_to
from evertick.contract.access import ApiKey, KeyRequest, KeysQuery, NewApiKey, RotateRequest
from evertick.domain.access import KeyRole
from evertick.usecases.tenants import keys, tenants

routes = Routes("API keys")

OWN_GRACE_SECONDS = 3600
"""Of the key in use: should the answer with its successor be lost, nobody is locked out."""
OWN_GRACE = timedelta(seconds=OWN_GRACE_SECONDS)

_KEY_ID = {"key_id": "$response.body#/key_id"}
_LINKS = {"get": ("get_key", _KEY_ID), "rotate": ("rotate_key", _KEY_ID), "revoke": ("revoke_key", _KEY_ID)}


def _owner(key: ApiKey) -> int:
    return tenants.tenant_key(None, key.tenant_id)


async def _tenant_of(request: AuthenticatedRequest, tenant_id: str | None) -> int:
    """The tenant that is meant: the caller's own, unless another one is named that the caller may see."""
    if tenant_id is None:
        return request.caller.tenant.tenant_id
    await tenants.get(request.tenant.pool, request.visible_tenant, tenant_id)
    return tenants.tenant_key(request.visible_tenant, tenant_id)


@routes.operation(
    "POST",
    "/api-keys",
    KeyRole.ADMIN,
    responses={201: ResponseSpec(NewApiKey, "The key, shown this once.", ("Location",), _LINKS, holds_secret=True)},
    problems=(Kind.NOT_FOUND,),
)
async def create_key(request: AuthenticatedRequest, body: KeyRequest) -> Response:
    """Create an API key."""
    tenant_key = await _tenant_of(request, body.tenant_id)
    new = await keys.create(request.tenant.pool, tenant_key, body.role, body.name, body.expires_at)
    location = {"Location": path_to("api-keys", new.key.key_id)}
    return ok(new.shown(), status=201, headers=location, subject=new.key.key_id, affected_tenant=tenant_key)


@routes.operation(
    "GET",
    "/api-keys",
    KeyRole.ADMIN,
    responses={200: ResponseSpec(list[ApiKey], "The keys, oldest first.", ("Link",))},
    problems=(Kind.NOT_FOUND,),
)
async def list_keys(request: AuthenticatedRequest, query: KeysQuery) -> Response:
    """List API keys."""
    tenant_key = await _tenant_of(request, query.tenant_id)
    found = await keys.list_keys(request.tenant.pool, tenant_key, limit=query.limit, cursor=query.cursor)
    return page(found, request.path, query)


@routes.operation(
    "GET",
    "/api-keys/{key_id}",
    KeyRole.ADMIN,
    responses={200: ResponseSpec(ApiKey, "The key, without its secret.")},
    problems=(Kind.NOT_FOUND,),
)
async def get_key(request: AuthenticatedRequest, key_id: str) -> Response:
    """Get an API key."""
    return ok(await keys.get(request.tenant.pool, request.visible_tenant, key_id))


@routes.operation(
    "POST",
    "/api-keys/{key_id}/rotate",
    KeyRole.ADMIN,
    responses={
        201: ResponseSpec(
            NewApiKey, "The key that takes its place, shown this once.", ("Location",), _LINKS, holds_secret=True
        )
    },
    problems=(Kind.NOT_FOUND, Kind.WRONG_STATE),
)
async def rotate_key(request: AuthenticatedRequest, key_id: str, body: RotateRequest) -> Response:
    """Replace an API key.

    The old one stays valid for the grace, so that its holders can change over.
    """
    grace = timedelta(seconds=body.grace_seconds)
    if key_id == request.caller.key_id and grace < OWN_GRACE:
        raise Problem(
            Kind.WRONG_STATE, f"this is the key in use: give it a grace of {OWN_GRACE_SECONDS} seconds or more"
        )
    new = await keys.rotate(request.tenant.pool, request.visible_tenant, key_id, grace)
    request.after_commit.append(partial(request.services.keys.forget, _owner(new.key)))
    location = {"Location": path_to("api-keys", new.key.key_id)}
    return ok(new.shown(), status=201, headers=location, subject=key_id, affected_tenant=_owner(new.key))


@routes.operation(
    "DELETE",
    "/api-keys/{key_id}",
    KeyRole.ADMIN,
    responses={204: ResponseSpec(None, "It lets nobody in any more.")},
    problems=(Kind.NOT_FOUND, Kind.WRONG_STATE),
)
async def revoke_key(request: AuthenticatedRequest, key_id: str) -> Response:
    """Revoke an API key."""
    if key_id == request.caller.key_id:
        raise Problem(Kind.WRONG_STATE, "this is the key in use: revoke it with another one, or rotate it")
    revoked = await keys.revoke(request.tenant.pool, request.visible_tenant, key_id)
    request.after_commit.append(partial(request.services.keys.forget, _owner(revoked)))
    return no_content(subject=key_id, affected_tenant=_owner(revoked))
