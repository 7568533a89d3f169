"""The exceptions of the client, one class for each kind of problem.

EvertickError
└── ApiError            any problem; `problem` has the details
    ├── Unauthorized    401: no key, or one that is unknown, expired or revoked
    ├── Forbidden       403: the key's role does not allow this
    ├── NotFound        404: no such thing, or another tenant's
    ├── Conflict        409, 412: taken, in the wrong state, or changed since it was read
    ├── Invalid         400, 405, 413, 415, 422: the request cannot be used; `errors` say where
    ├── TooManyRequests 429: over a quota; `retry_after` says for how long, `quota` which
    ├── ServerError     5xx, and responses that cannot be read
    └── Unreachable     no response

An exception contains the method and path of the request, and nothing else of it.
"""

from datetime import UTC, datetime
from http import HTTPStatus

import msgspec

from evertick.client.response import NoResponse, Response
from evertick.contract.derived import lenient
from evertick.contract.problem import Problem
from evertick.domain.errors import EvertickError, Fault


class ApiProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A request that failed, and the RFC 9457 fields of its response. A status of None: there was no response."""

    method: str
    path: str
    status: int | None = None
    type: str = "about:blank"
    title: str = ""
    detail: str = ""
    instance: str | None = None
    request_id: str | None = None
    errors: tuple[Fault, ...] = ()
    retry_after: float | None = None
    quota: str | None = None
    never_arrived: bool = False


class ApiError(EvertickError):
    """A call of the API failed."""

    def __init__(self, problem: ApiProblem) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        problem = self.problem
        if problem.status is None:
            return f"{problem.method} {problem.path}: {problem.detail}"
        number = f", request {problem.request_id}" if problem.request_id else ""
        said = problem.detail or problem.title or "no reason given"
        return f"{problem.method} {problem.path}: {said} ({problem.status}{number})"

    @property
    def status(self) -> int | None:
        return self.problem.status

    @property
    def type(self) -> str:
        """A URN that names the kind of problem, such as `urn:evertick:problem:name-taken`."""
        return self.problem.type

    @property
    def detail(self) -> str:
        return self.problem.detail

    @property
    def request_id(self) -> str | None:
        """The id of the request in the server's log."""
        return self.problem.request_id

    @property
    def errors(self) -> tuple[Fault, ...]:
        """Each fault of the input, and where it is."""
        return self.problem.errors

    @property
    def retry_after(self) -> float | None:
        """How many seconds the server asks to wait."""
        return self.problem.retry_after


class Unauthorized(ApiError):  # noqa: N818 - these say what is wrong, not that it is an error
    """The key is unknown, expired or revoked."""


class Forbidden(ApiError):  # noqa: N818 - as above
    """The key's role does not allow this."""


class NotFound(ApiError):  # noqa: N818 - as above
    """There is no such thing, or it is another tenant's."""


class Conflict(ApiError):  # noqa: N818 - as above
    """A name is taken, a state does not allow it, or it was changed since it was read."""


class Invalid(ApiError):  # noqa: N818 - as above
    """The request is invalid."""


class TooManyRequests(ApiError):  # noqa: N818 - as above
    """Over a quota."""

    @property
    def quota(self) -> str | None:
        return self.problem.quota


class ServerError(ApiError):
    """The server failed, or its response cannot be read."""


class Unreachable(ApiError):  # noqa: N818 - as above
    """There was no response. Whether the request was carried out is unknown, unless it never arrived."""

    @property
    def never_arrived(self) -> bool:
        return self.problem.never_arrived


_KINDS: dict[int, type[ApiError]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    405: Invalid,
    409: Conflict,
    412: Conflict,
    413: Invalid,
    415: Invalid,
    422: Invalid,
    429: TooManyRequests,
}

_decoder = msgspec.json.Decoder(lenient(Problem))


def error_of(method: str, path: str, response: Response) -> ApiError:
    """The exception for a response that is no success. A proxy may have written it."""
    status = response.status_code
    try:
        said = _decoder.decode(response.content)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        said = Problem(title=HTTPStatus(status).phrase if status in set(HTTPStatus) else "")
    kind = _KINDS.get(status, ServerError if status >= 500 else ApiError)
    return kind(
        ApiProblem(
            method=method,
            path=path,
            status=status,
            type=said.type,
            title=said.title,
            detail=said.detail,
            instance=said.instance or None,
            request_id=said.request_id or response.headers.get("x-request-id"),
            errors=tuple(Fault(fault.pointer, fault.detail) for fault in said.errors),
            retry_after=_retry_after(response),
            quota=said.quota or None,
        )
    )


def unreadable(method: str, path: str, response: Response, reason: str) -> ServerError:
    """The exception for a success that cannot be read."""
    number = response.headers.get("x-request-id")
    detail = f"the answer cannot be read: {reason}"
    return ServerError(
        ApiProblem(method=method, path=path, status=response.status_code, detail=detail, request_id=number)
    )


def unreachable(method: str, path: str, url: str, none: NoResponse) -> Unreachable:
    """The exception for a request without a response."""
    detail = f"no answer from {url}: {none.reason}"
    return Unreachable(ApiProblem(method=method, path=path, detail=detail, never_arrived=none.never_arrived))


def _retry_after(response: Response) -> float | None:
    text = response.headers.get("retry-after")
    if text is None:
        return None
    from evertick.domain.retry import parse_retry_after  # noqa: PLC0415 - few answers have one

    wait = parse_retry_after(text, datetime.now(UTC))
    return None if wait is None else wait.total_seconds()
