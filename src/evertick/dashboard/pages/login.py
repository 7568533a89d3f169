"""Logging in with an API key or a link that works once, and logging out.

Attempts are limited by address, over all processes, before a key is looked at.
"""

from dataclasses import replace

from msgspec import Struct

from evertick.api.messages import AuthenticatedRequest, HttpRequest, Response
from evertick.api.operations import ResponseSpec
from evertick.api.problems import HttpProblem, Kind
from evertick.dashboard.forms import form, parse_form
from evertick.dashboard.rendering import page_routes, redirect, render
from evertick.dashboard.sessions import SESSION_COOKIE, check_origin, cookie, session_token
from evertick.domain.access import KeyRole, allows
from evertick.domain.rate_bucket import Rate
from evertick.store.database import Session
from evertick.usecases import audit
from evertick.usecases.tenants import sessions
from evertick.usecases.tenants.keys import Caller

routes = page_routes("Login")
ATTEMPTS = Rate(per_second=0.2, burst=10)
MAX_FORM_BYTES = 8_192
_PAGE = ResponseSpec(None, "A page.")


class LoginQuery(Struct):
    next: str = "/"


class LinkQuery(Struct, forbid_unknown_fields=True):
    token: str


class Nothing(Struct):
    pass


@routes.operation("GET", "/login", None, _PAGE)
async def login_page(request: HttpRequest, query: LoginQuery) -> Response:
    """Ask for an API key."""
    if await request.services.sessions.caller(session_token(request.headers)) is not None:
        response = redirect(request, "/")
        response.headers["Location"] = request.client.prefix + _local(query.next)
        return response
    is_expired = bool(session_token(request.headers))
    return render(request, "login.html", next=_local(query.next), is_expired=is_expired)


@routes.operation("POST", "/login", None, _PAGE)
async def log_in(request: HttpRequest) -> Response:
    """Open a session with an API key."""
    check_origin(request.headers)
    fields = dict(parse_form(await _read(request)))
    target = _local(fields.get("next", "/"))
    try:
        await _check_rate(request)
        caller = await _caller_of(request, fields.get("api_key", "").strip())
    except HttpProblem as refused:
        context = {"next": target, "is_expired": False, "errors": {"api_key": refused.detail}}
        return render(request, "login.html", status=refused.kind.status, **context)
    async with request.services.pool.acquire() as connection, connection.transaction():
        token = await sessions.open_session(connection, caller, request.services.session_time)
        await _record(request, caller, connection)
    return _logged_in(request, token, target)


@routes.operation("GET", "/login/link", None, _PAGE)
async def use_login_link(request: HttpRequest, query: LinkQuery) -> Response:
    """Open a session with a link that works once."""
    await _check_rate(request)
    async with request.services.pool.acquire() as connection, connection.transaction():
        time, request_id = request.services.session_time, request.request_id
        token = await sessions.use_link(connection, query.token, time, request_id)
    if token is None:
        raise HttpProblem(Kind.NOT_FOUND, "this link was used already, or has expired: log in with an API key")
    return _logged_in(request, token, "/")


@routes.operation("POST", "/logout", KeyRole.VIEWER, _PAGE, body=form(Nothing))
async def log_out(request: AuthenticatedRequest, body: Nothing) -> Response:  # noqa: ARG001 - only its token counts
    """End the session."""
    await sessions.end(request.tenant.pool, session_token(request.headers))
    tenant_id = request.tenant.tenant_id
    request.after_commit.append(lambda: request.services.sessions.forget(tenant_id))
    response = redirect(request, "/login")
    response.headers["Set-Cookie"] = cookie(request, SESSION_COOKIE, "", max_age=0)
    return response


def _logged_in(request: HttpRequest, token: str, target: str) -> Response:
    response = redirect(request, "/")
    response.headers["Location"] = request.client.prefix + target
    max_age = request.services.session_time.total_seconds()
    response.headers["Set-Cookie"] = cookie(request, SESSION_COOKIE, token, max_age=max_age)
    return response


async def _check_rate(request: HttpRequest) -> None:
    address = request.client.address
    drawn = await request.services.login_rates.take(f"login {address}", ATTEMPTS, least=1, most=1)
    if not drawn.granted:
        raise HttpProblem(Kind.OVER_QUOTA, "Too many attempts from this address. Wait a minute, then try again.")


async def _caller_of(request: HttpRequest, key: str) -> Caller:
    caller = await request.services.keys.caller(key)
    if caller is None:
        raise HttpProblem(Kind.UNAUTHENTICATED, "This key is not valid: mistyped, revoked or expired.")
    if not allows(caller.role, KeyRole.VIEWER):
        raise HttpProblem(Kind.FORBIDDEN, f"A key of the role {caller.role} cannot use the dashboard.")
    return caller


async def _record(request: HttpRequest, caller: Caller, connection: Session) -> None:
    tenant = replace(request.services.tenant_on(caller.tenant, request.services.pool), pool=connection)
    await audit.record(tenant, caller.key_id, log_in.__name__, None, request.request_id)


async def _read(request: HttpRequest) -> bytes:
    data = b""
    async for part in request.body.parts():
        data += part
        if len(data) > MAX_FORM_BYTES:
            raise HttpProblem(Kind.TOO_LARGE, "the form is too large")
    return data


def _local(target: str) -> str:
    """A path of this server: anything else would lead elsewhere."""
    is_local = target.startswith("/") and not target.startswith("//")
    return target if is_local and target.isascii() and target.isprintable() and "\\" not in target else "/"
