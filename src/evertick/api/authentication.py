"""Who sends a request, and whether the key's role allows what it asks for."""

from evertick.api.problems import Kind, Problem, key_ended, unauthenticated
from evertick.api.requests import HttpRequest
from evertick.domain.access import KeyRole, allows
from evertick.usecases.tenants.authentication import Caller

_SCHEME = "bearer "


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
