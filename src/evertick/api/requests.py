"""Requests as handlers see them: before and after their caller is authenticated.

Also who sends a request, and whether the role of the key allows what it asks for.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from evertick.api.bodies.memory_limits import Reservation
from evertick.api.bodies.request_body import RequestBody
from evertick.api.problems import ClientDisconnected, Kind, Problem, key_ended, over_quota, unauthenticated
from evertick.api.responses import expected_versions
from evertick.api.services import Services
from evertick.domain.access import KeyRole, allows
from evertick.domain.admission import AdmissionRequest, Admitted
from evertick.usecases.context import Tenant
from evertick.usecases.idempotency import KeyedRequest
from evertick.usecases.tenants.keys import Caller

_T = TypeVar("_T")
_SCHEME = "bearer "


@dataclass(slots=True)
class HttpRequest:
    """Any request. `is_authenticated`: it came with a valid key."""

    services: Services
    request_id: str
    path: str
    raw_path: bytes
    path_parameters: Mapping[str, str]
    query_string: bytes
    headers: Mapping[str, str]
    body: RequestBody
    is_authenticated: bool = field(default=False, kw_only=True)

    async def cancel_on_disconnect(self, work: Awaitable[_T]) -> _T:
        """Do work that only matters to the client: it is cancelled when the client disconnects."""
        working, disconnected = asyncio.ensure_future(work), asyncio.ensure_future(self.body.disconnected())
        try:
            await asyncio.wait({working, disconnected}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise ClientDisconnected
            return working.result()
        finally:
            working.cancel()
            disconnected.cancel()


@dataclass(slots=True)
class AuthenticatedRequest(HttpRequest):
    """A request with a valid key. `tenant` acts for the caller; in a change, everything in one transaction.

    `reservation` is the memory that its body takes. `idempotency` identifies the request when it is repeated; None: it
    has no Idempotency-Key. `after_commit` is called when the request has succeeded, `on_rollback` after each try of its
    transaction that was undone.
    """

    caller: Caller
    tenant: Tenant
    reservation: Reservation
    idempotency: KeyedRequest | None = None
    after_commit: list[Callable[[], None]] = field(default_factory=list)
    on_rollback: list[Callable[[], None]] = field(default_factory=list)

    async def admit(self, cost: AdmissionRequest) -> None:
        """Draw from the tenant's quotas. What they do not admit is raised."""
        verdict = await self.services.quotas.admit(self.caller.tenant, cost)
        if not isinstance(verdict, Admitted):
            raise over_quota(verdict)

    @property
    def expected_versions(self) -> frozenset[int] | None:
        return expected_versions(self.headers.get("if-match"))

    @property
    def visible_tenant(self) -> int | None:
        """The one tenant that the caller may look at; None: all of them."""
        return None if self.caller.tenant.is_host else self.caller.tenant.tenant_id


def parse_bearer(header: str) -> str | None:
    """The key in an `Authorization` header."""
    is_bearer = header[: len(_SCHEME)].lower() == _SCHEME
    return header[len(_SCHEME) :].strip() if is_bearer else None


def bearer_key(request: HttpRequest) -> str:
    key = parse_bearer(request.headers.get("authorization", ""))
    if key is None:
        raise unauthenticated("send `Authorization: Bearer evt_…`")
    return key


async def authenticate(request: HttpRequest) -> Caller:
    """The owner of the request's key."""
    caller = await request.services.keys.caller(bearer_key(request))
    if caller is None:
        raise key_ended()
    request.is_authenticated = True
    return caller


def authorise(caller: Caller, role: KeyRole) -> None:
    """Refuse a caller whose role does not allow what needs this one."""
    if not allows(caller.role, role):
        raise Problem(Kind.FORBIDDEN, f"this needs the role {role}, and the key's is {caller.role}")
