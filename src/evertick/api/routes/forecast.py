"""The forecast of firings, the smear advisor, and smears: the jitter that it advises, for many jobs."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from msgspec import Struct

from evertick.api.messages import AuthenticatedRequest, Response, created, ok, page
from evertick.api.operations import HandlerMode, ResponseSpec, Routes
from evertick.api.problems import HttpProblem, Kind
from evertick.contract.forecast import (
    AdviceQuery,
    ApplyAdviceRequest,
    Forecast,
    ForecastAdvice,
    ForecastQuery,
    Smear,
    SmearsQuery,
)
from evertick.contract.jobs import Nothing
from evertick.domain.access import KeyRole
from evertick.usecases.context import TenantContext
from evertick.usecases.forecast import reading, smears
from evertick.usecases.forecast.reading import ForecastWish, labels_of

_T = TypeVar("_T")
routes = Routes("Forecast")

_SMEAR_ID = {"smear_id": "$response.body#/smear_id"}
_LINKS = {"get": ("get_smear", _SMEAR_ID), "undo": ("undo_smear", _SMEAR_ID)}


@routes.operation(
    "GET",
    "/forecast",
    KeyRole.VIEWER,
    ResponseSpec(Forecast, "The firings in each bucket, and what makes the fullest."),
    problems=(Kind.FORBIDDEN, Kind.OVER_QUOTA),
    mode=HandlerMode.COMPUTATION,
)
async def get_forecast(request: AuthenticatedRequest, query: ForecastQuery) -> Response:
    """Forecast firings.

    How many firings each minute or hour to come will have, counted by rules; the fullest, and which jobs make them. Of
    more distinct rules than can be counted in seconds, a sample is counted: then `is_estimate` is true. Equal requests
    at the same time are answered with one forecast.
    """
    wish = wish_of(request, query)
    return ok(await _shared(request, query, lambda tenant: reading.forecast(tenant, wish)))


async def _shared(request: AuthenticatedRequest, query: Struct, read: Callable[[TenantContext], Awaitable[_T]]) -> _T:
    """Read it on its own, or together with equal requests of the tenant."""
    services, tenant = request.services, request.tenant
    key = tenant.tenant_id, type(query), msgspec.json.encode(query)
    return await services.in_flight.share(key, lambda: services.read_late(tenant, read))


def wish_of(request: AuthenticatedRequest, query: ForecastQuery) -> ForecastWish:
    """What a query asks for."""
    if query.all_tenants and not (request.caller.tenant.is_host and request.caller.role is KeyRole.ADMIN):
        raise HttpProblem(Kind.FORBIDDEN, "the jobs of all tenants are for admins of the hosting tenant alone")
    return ForecastWish(
        query.horizon,
        query.from_at,
        query.to_at,
        query.bucket_seconds,
        labels_of(query.label),
        query.queue,
        query.hottest,
        query.all_tenants,
    )


@routes.operation(
    "GET",
    "/forecast/advice",
    KeyRole.VIEWER,
    ResponseSpec(ForecastAdvice, "Which jobs should get jitter, and what that does to the highest minute."),
    problems=(Kind.OVER_QUOTA,),
    mode=HandlerMode.COMPUTATION,
)
async def get_advice(request: AuthenticatedRequest, query: AdviceQuery) -> Response:
    """Ask which jobs should get jitter.

    So that the highest minute of the next 24 hours is lower. Jobs that have jitter, that fire once or more often than
    the jitter is long, and those with the label `smear:never` are left alone.
    """
    labels = labels_of(query.label)
    return ok(await _shared(request, query, lambda tenant: reading.advise(tenant, labels, query.queue)))


@routes.operation(
    "POST",
    "/forecast/advice:apply",
    KeyRole.EDITOR,
    ResponseSpec(Smear, "The smear, which gives the jobs their jitter.", ("Location",), _LINKS, status=202),
    problems=(Kind.WRONG_STATE,),
)
async def apply_advice(request: AuthenticatedRequest, body: ApplyAdviceRequest) -> Response:
    """Give jobs the jitter that was advised.

    Each active job of the rules gets a new version, except those that must not have the jitter. They are changed in
    small batches, whatever becomes of the server meanwhile, each with an entry in the audit log.
    """
    smear = await smears.apply(request.tenant, body, request.caller.key_id)
    return created(smear, "smears", smear.smear_id, status=202, subject=smear.smear_id)


@routes.operation("GET", "/smears", KeyRole.VIEWER, ResponseSpec(list[Smear], "The smears, newest first."))
async def list_smears(request: AuthenticatedRequest, query: SmearsQuery) -> Response:
    """List smears.

    A smear that is over stays in the list for as long as history is kept.
    """
    return page(await smears.list_smears(request.tenant, limit=query.limit, cursor=query.cursor), request.path, query)


@routes.operation("GET", "/smears/{smear_id}", KeyRole.VIEWER, ResponseSpec(Smear, "The smear.", links=_LINKS))
async def get_smear(request: AuthenticatedRequest, smear_id: str) -> Response:
    """Get a smear, with its progress."""
    return ok(await smears.get(request.tenant, smear_id))


@routes.operation(
    "POST",
    "/smears/{smear_id}/undo",
    KeyRole.EDITOR,
    ResponseSpec(Smear, "The smear, which takes the jitter back.", links=_LINKS, status=202),
    problems=(Kind.WRONG_STATE,),
)
async def undo_smear(request: AuthenticatedRequest, smear_id: str, body: Nothing) -> Response:  # noqa: ARG001 - it has to be empty
    """Undo a smear.

    Each job that it changed gets a new version without the jitter, unless it was edited since: `kept` says how many.
    """
    return ok(await smears.undo(request.tenant, smear_id), status=202, subject=smear_id)
