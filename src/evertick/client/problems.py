"""From what came back, or did not, to an exception. Nothing of the request goes along but its method and path."""

from datetime import UTC, datetime
from http import HTTPStatus

import httpx
import msgspec

from evertick.client.errors import (
    ApiError,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    Problem,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from evertick.contract import problem
from evertick.contract.derived import lenient
from evertick.domain.errors import Fault
from evertick.domain.retry import parse_retry_after

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


_decoder = msgspec.json.Decoder(lenient(problem.Problem))


def error_of(method: str, path: str, response: httpx.Response) -> ApiError:
    """The exception for an answer that is no success; whatever stands between us and the server may have written it."""
    status = response.status_code
    try:
        said = _decoder.decode(response.content)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        said = problem.Problem(title=HTTPStatus(status).phrase if status in set(HTTPStatus) else "")
    kind = _KINDS.get(status, ServerError if status >= 500 else ApiError)
    return kind(
        Problem(
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


def unreadable(method: str, path: str, response: httpx.Response, reason: str) -> ServerError:
    """The answer is a success that cannot be read."""
    number = response.headers.get("x-request-id")
    detail = f"the answer cannot be read: {reason}"
    return ServerError(Problem(method=method, path=path, status=response.status_code, detail=detail, request_id=number))


def unreachable(method: str, path: str, place: str, error: httpx.RequestError) -> Unreachable:
    """No answer came; the words are ours, for what httpx raises holds the request with its key."""
    never_arrived = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
    reason = f"no answer from {place}: {type(error).__name__}" + (f": {error}" if str(error) else "")
    return Unreachable(Problem(method=method, path=path, detail=reason, never_arrived=never_arrived))


def _retry_after(response: httpx.Response) -> float | None:
    text = response.headers.get("retry-after")
    wait = None if text is None else parse_retry_after(text, datetime.now(UTC))
    return None if wait is None else wait.total_seconds()
