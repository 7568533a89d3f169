"""Requests as handlers see them, before and after their caller is authenticated; and their responses.

Also who sends a request, and whether the role of the key allows what it asks for.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from evertick.api.bodies.memory_limits import Reservation
from evertick.api.bodies.request_body import JSON, RequestBody
from evertick.api.problems import MEDIA_TYPE, ClientDisconnected, HttpProblem, Kind, key_ended, unauthenticated
from evertick.api.services import Services
from evertick.contract import patterns
from evertick.domain.access import KeyRole, allows
from evertick.domain.admission import AdmissionRequest, Admitted
from evertick.domain.tracing import TRACEPARENT, TraceContext, parse_traceparent
from evertick.usecases.context import Page, TenantContext
from evertick.usecases.errors import QuotaReached
from evertick.usecases.idempotency import KeyedRequest
from evertick.usecases.tenants.keys import Caller

PREFIX = "/api/v1"
IF_MATCH = "If-Match"
EVENT_CURSOR = "Evertick-Cursor"
LAST_EVENT_ID = "Last-Event-ID"
SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}
"""Headers that browsers heed, unless the response has its own."""

_T = TypeVar("_T")
_IF_MATCH = re.compile(patterns.IF_MATCH)
_encoder = msgspec.json.Encoder()
_SCHEME = "bearer "


class Parts(Protocol):
    """A body that is sent while it is made, without an end that is known."""

    def parts(self) -> AsyncIterator[bytes]:
        """What is sent, one part after the other."""

    def close(self) -> None:
        """Called when the response is sent, or cannot be."""


@dataclass(slots=True)
class Response:
    """A response, and what the audit log and the quotas need: the subject, how many jobs are new.

    `affected_tenant` is the tenant that was changed, if that is not the caller's own. `on_sent` is called when the
    response is sent, or cannot be. `stream` takes the place of the body.
    """

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    media_type: str = JSON
    subject: str | None = None
    created_jobs: int = 0
    affected_tenant: int | None = None
    on_sent: Callable[[], None] | None = None
    stream: Parts | None = None


def encode(value: Any) -> bytes:
    try:
        return _encoder.encode(value)
    except OverflowError:
        # Only payloads can hold integers beyond 64 bits, which msgspec reads but does not write.
        return json.dumps(value, default=_plain, ensure_ascii=False, allow_nan=False).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"
    return msgspec.to_builtins(value)


def ok(value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None, **details: Any) -> Response:
    return Response(status, encode(value), dict(headers or {}), **details)


def created(
    value: Any, *path: str, status: int = 201, headers: Mapping[str, str] | None = None, **details: Any
) -> Response:
    """What a request has created, and where it is."""
    location = "/".join((PREFIX, *(quote(part, safe=":") for part in path)))
    return ok(value, status=status, headers={**(headers or {}), "Location": location}, **details)


def no_content(**details: Any) -> Response:
    """204."""
    return Response(204, **details)


def page(found: Page[_T], path: str, query: Any, shape: Callable[[_T], Any] = lambda item: item) -> Response:
    """A page; a Link leads to the next one, with the same filters."""
    response = ok([shape(item) for item in found.items])
    if found.next is not None:
        given = msgspec.to_builtins(query).items()
        filters = {
            name: "true" if value is True else value
            for name, value in given
            if value not in (None, []) and value is not False
        }
        target = urlencode({**filters, "cursor": found.next}, doseq=True)
        response.headers["Link"] = f'<{path}?{target}>; rel="next"'
    return response


def etag(version: int) -> str:
    return f'"{version}"'


def expected_versions(if_match: str | None) -> frozenset[int] | None:
    """Which versions an If-Match allows; None is any."""
    if if_match is not None and not _IF_MATCH.fullmatch(if_match):
        raise HttpProblem(Kind.MALFORMED, 'If-Match is * or a list of entity tags, as in "3"')
    if if_match is None or if_match == "*":
        return None
    tags = [tag.strip() for tag in if_match.split(",")]
    return frozenset(
        int(tag[1:-1]) for tag in tags if len(tag) <= 20 and tag[:1] == tag[-1:] == '"' and tag[1:-1].isdecimal()
    )


class Client(NamedTuple):
    """Where a request comes from, as far as a trusted proxy or the connection tells.

    `prefix` is the path below which the client sees this server. `is_secure`: the client uses TLS.
    """

    address: str = ""
    prefix: str = ""
    is_secure: bool = False


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
    method: str = field(default="GET", kw_only=True)
    client: Client = field(default=Client(), kw_only=True)

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
    has no Idempotency-Key. `admitted` is what the quotas admit of it, `runs` its runs due at once. `after_commit` is
    called when the request has succeeded, `on_rollback` after each try of its transaction that was undone.
    """

    caller: Caller
    tenant: TenantContext
    reservation: Reservation
    idempotency: KeyedRequest | None = None
    admitted: Admitted | None = None
    runs: int = 0
    after_commit: list[Callable[[], None]] = field(default_factory=list)
    on_rollback: list[Callable[[], None]] = field(default_factory=list)

    async def admit(self, cost: AdmissionRequest) -> Admitted:
        """Draw from the tenant's quotas. What they do not admit is raised; of a batch they may admit a part."""
        verdict = await self.services.quotas.admit(self.caller.tenant, cost)
        if not isinstance(verdict, Admitted):
            raise QuotaReached(verdict)
        self.runs += cost.runs
        return verdict

    @property
    def expected_versions(self) -> frozenset[int] | None:
        return expected_versions(self.headers.get("if-match"))

    @property
    def trace(self) -> TraceContext | None:
        """The trace that the request belongs to; None: its header is missing or not valid."""
        return parse_traceparent(self.headers.get(TRACEPARENT, ""))

    @property
    def traced_tenant(self) -> TenantContext:
        """The tenant, for what keeps the trace of the request with the versions of jobs that it writes."""
        return self.tenant if self.trace is None else replace(self.tenant, trace_parent=str(self.trace))

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


def problem_response(problem: HttpProblem, request: HttpRequest) -> Response:
    body = problem.body(request.path, request.request_id)
    return Response(problem.kind.status, body, problem.headers, media_type=MEDIA_TYPE)


def authorise(caller: Caller, role: KeyRole) -> None:
    """Refuse a caller whose role does not allow what needs this one."""
    if not allows(caller.role, role):
        raise HttpProblem(Kind.FORBIDDEN, f"this needs the role {role}, and the key's is {caller.role}")
