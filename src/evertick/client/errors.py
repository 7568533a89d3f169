"""What the client raises, one class for each kind of problem that the API answers with.

EvertickError
└── ApiError            any problem; `problem` has what the server said
    ├── Unauthorized    401: no key, or one that is unknown, expired or revoked
    ├── Forbidden       403: the key's role does not allow this
    ├── NotFound        404: no such thing, or another tenant's
    ├── Conflict        409, 412: taken, in the wrong state, or changed since it was read
    ├── Invalid         400, 405, 413, 415, 422: the request cannot be used; `errors` say where
    ├── TooManyRequests 429: over a quota; `retry_after` says for how long, `quota` which
    ├── ServerError     5xx, and answers that make no sense
    └── Unreachable     no answer came
"""

import msgspec

from evertick.domain.errors import EvertickError, Fault


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """RFC 9457, as far as the answer had it. A status of None: there was no answer."""

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
    """The API did not do what it was asked to."""

    def __init__(self, problem: Problem) -> None:
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
        """What finds the request in the server's log."""
        return self.problem.request_id

    @property
    def errors(self) -> tuple[Fault, ...]:
        """Each fault of the input, and where it is."""
        return self.problem.errors

    @property
    def retry_after(self) -> float | None:
        """For so many seconds the server asked to be left alone."""
        return self.problem.retry_after


class Unauthorized(ApiError):  # noqa: N818 - these say what is wrong, not that it is an error
    """The server does not know the key, or not any more."""


class Forbidden(ApiError):  # noqa: N818 - as above
    """The key's role does not allow this."""


class NotFound(ApiError):  # noqa: N818 - as above
    """There is no such thing, or it is another tenant's."""


class Conflict(ApiError):  # noqa: N818 - as above
    """A name is taken, a state does not allow it, or it was changed since it was read."""


class Invalid(ApiError):  # noqa: N818 - as above
    """The request cannot be used as it is."""


class TooManyRequests(ApiError):  # noqa: N818 - as above
    """Over a quota."""

    @property
    def quota(self) -> str | None:
        return self.problem.quota


class ServerError(ApiError):
    """The server failed, or answered what cannot be understood."""


class Unreachable(ApiError):  # noqa: N818 - as above
    """No answer came. Whether the request was carried out is unknown, unless it never arrived."""

    @property
    def never_arrived(self) -> bool:
        return self.problem.never_arrived
