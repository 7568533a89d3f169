"""API keys: making, listing, rotating and revoking them."""

from datetime import timedelta
from functools import partial
from typing import Any

import msgspec

from evertick.api.operations import Call, Section, Shown
from evertick.api.problems import Kind, Problem
from evertick.api.responses import Answer, nothing, ok, page, path_to
from evertick.api.shapes import KeyRequest, KeysQuery, RotateRequest
from evertick.domain.access import KeyRole
from evertick.usecases import keys, tenants
from evertick.usecases.keys import Key, NewSecret

section = Section("API keys")

OWN_GRACE_SECONDS = 3600
"""Of the key in use: should the answer with its successor be lost, nobody is locked out."""
OWN_GRACE = timedelta(seconds=OWN_GRACE_SECONDS)

_KEY_ID = {"key_id": "$response.body#/key_id"}
_LINKS = {"get": ("get_key", _KEY_ID), "rotate": ("rotate_key", _KEY_ID), "revoke": ("revoke_key", _KEY_ID)}


def _shape(new: NewSecret) -> dict[str, Any]:
    return {**msgspec.to_builtins(new.key), "api_key": new.secret}


def _owner(key: Key) -> int:
    return tenants.tenant_key(None, key.tenant_id)


async def _tenant_key(call: Call, tenant_id: str | None) -> int:
    """The tenant that is meant: the caller's own, unless another one is named that the caller may see."""
    if tenant_id is None:
        return call.caller.tenant.tenant_id
    await tenants.get(call.tenant.pool, call.sees_only, tenant_id)
    return tenants.tenant_key(call.sees_only, tenant_id)


@section.operation(
    "POST",
    "/api-keys",
    KeyRole.ADMIN,
    answers={201: Shown("NewKey", "The key, shown this once.", ("Location",), _LINKS)},
    problems=(Kind.NOT_FOUND,),
    body="KeyRequest",
    holds_secret=True,
)
async def create_key(call: Call, body: KeyRequest) -> Answer:
    """Create an API key."""
    tenant_key = await _tenant_key(call, body.tenant_id)
    new = await keys.create(call.tenant.pool, tenant_key, body.role, body.name, body.expires_at)
    location = {"Location": path_to("api-keys", new.key.key_id)}
    return ok(_shape(new), status=201, headers=location, subject=new.key.key_id, concerns=tenant_key)


@section.operation(
    "GET",
    "/api-keys",
    KeyRole.ADMIN,
    answers={200: Shown(list[Key], "The keys, oldest first.", ("Link",))},
    problems=(Kind.NOT_FOUND,),
)
async def list_keys(call: Call, query: KeysQuery) -> Answer:
    """List API keys."""
    tenant_key = await _tenant_key(call, query.tenant_id)
    found = await keys.list_keys(call.tenant.pool, tenant_key, limit=query.limit, cursor=query.cursor)
    return page(found, call.path, query)


@section.operation(
    "GET",
    "/api-keys/{key_id}",
    KeyRole.ADMIN,
    answers={200: Shown(Key, "The key, without its secret.")},
    problems=(Kind.NOT_FOUND,),
)
async def get_key(call: Call, key_id: str) -> Answer:
    """Get an API key."""
    return ok(await keys.get(call.tenant.pool, call.sees_only, key_id))


@section.operation(
    "POST",
    "/api-keys/{key_id}/rotate",
    KeyRole.ADMIN,
    answers={201: Shown("NewKey", "The key that takes its place, shown this once.", ("Location",), _LINKS)},
    problems=(Kind.NOT_FOUND, Kind.WRONG_STATE),
    holds_secret=True,
)
async def rotate_key(call: Call, key_id: str, body: RotateRequest) -> Answer:
    """Replace an API key.

    The old one stays valid for the grace, so that its holders can change over.
    """
    grace = timedelta(seconds=body.grace_seconds)
    if key_id == call.caller.key_id and grace < OWN_GRACE:
        raise Problem(
            Kind.WRONG_STATE, f"this is the key in use: give it a grace of {OWN_GRACE_SECONDS} seconds or more"
        )
    new = await keys.rotate(call.tenant.pool, call.sees_only, key_id, grace)
    call.afterwards.append(partial(call.services.keys.forget, _owner(new.key)))
    location = {"Location": path_to("api-keys", new.key.key_id)}
    return ok(_shape(new), status=201, headers=location, subject=key_id, concerns=_owner(new.key))


@section.operation(
    "DELETE",
    "/api-keys/{key_id}",
    KeyRole.ADMIN,
    answers={204: Shown(None, "It lets nobody in any more.")},
    problems=(Kind.NOT_FOUND, Kind.WRONG_STATE),
)
async def revoke_key(call: Call, key_id: str) -> Answer:
    """Revoke an API key."""
    if key_id == call.caller.key_id:
        raise Problem(Kind.WRONG_STATE, "this is the key in use: revoke it with another one, or rotate it")
    revoked = await keys.revoke(call.tenant.pool, call.sees_only, key_id)
    call.afterwards.append(partial(call.services.keys.forget, _owner(revoked)))
    return nothing(subject=key_id, concerns=_owner(revoked))
