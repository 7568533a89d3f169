"""Who uses a browser: the session's cookie, and whether a form was sent by one of our own pages.

A form carries a token that is made from the session's. Beside it, the browser must say that the form is of the same
origin, by `Sec-Fetch-Site` or, where it does not send that, by `Origin`.
"""

import hashlib
import hmac
from collections.abc import Mapping

from evertick.api.messages import HttpRequest
from evertick.api.problems import HttpProblem, Kind
from evertick.usecases.tenants.keys import Caller

SESSION_COOKIE = "evertick_session"
CSRF_FIELD = "csrf_token"
_CSRF_CONTEXT = b"evertick form"


def cookies_of(headers: Mapping[str, str]) -> dict[str, str]:
    """Ours among those of other servers on this host, whatever form those have. The first of a name is the nearest."""
    found: dict[str, str] = {}
    for pair in headers.get("cookie", "").split(";"):
        name, equals, value = pair.strip().partition("=")
        if equals:
            found.setdefault(name, value.strip('"'))
    return found


def session_token(headers: Mapping[str, str]) -> str:
    """The session's token; empty if the browser has none."""
    return cookies_of(headers).get(SESSION_COOKIE, "")


async def authenticate(request: HttpRequest) -> Caller:
    """The holder of the key that the session was opened with."""
    caller = await request.services.sessions.caller(session_token(request.headers))
    if caller is None:
        raise HttpProblem(Kind.UNAUTHENTICATED, "log in with an API key")
    request.is_authenticated = True
    return caller


def csrf_token(headers: Mapping[str, str]) -> str:
    """What the forms of a session carry."""
    return hmac.new(session_token(headers).encode(), _CSRF_CONTEXT, hashlib.sha256).hexdigest()


def check_form(headers: Mapping[str, str], given: str) -> None:
    """Refuse a form that does not come from one of our own pages, in this session."""
    check_origin(headers)
    if not hmac.compare_digest(given.encode(), csrf_token(headers).encode()):
        raise _foreign("its token belongs to another session: load the page again")


def check_origin(headers: Mapping[str, str]) -> None:
    """Refuse a form that another site has sent."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None:
        if site not in {"same-origin", "none"}:
            raise _foreign(f"it comes from another site ({site})")
    elif origin is None or origin.partition("://")[2] != headers.get("host"):
        raise _foreign(f"it comes from {origin or 'nowhere'}")


def _foreign(why: str) -> HttpProblem:
    return HttpProblem(Kind.FORBIDDEN, f"the form was refused: {why}")


def cookie(request: HttpRequest, name: str, value: str, *, max_age: float) -> str:
    """A `Set-Cookie` header that scripts cannot read, for this server alone."""
    secure = "; Secure" if request.client.is_secure else ""
    return f"{name}={value}; Path={request.client.prefix or '/'}; Max-Age={max_age:.0f}; HttpOnly; SameSite=Lax{secure}"
