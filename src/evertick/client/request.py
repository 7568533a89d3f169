"""Requests as values: what is sent, how the response is read, and whether and when it is sent again. `transport` sends
them.
"""

import json
import math
import random
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache
from typing import Any, Generic, TypeVar
from urllib.parse import parse_qsl, quote, urlsplit

import msgspec

from evertick.client.errors import ApiError, Conflict, TooManyRequests, Unreachable
from evertick.client.response import Response
from evertick.contract.derived import lenient
from evertick.domain.errors import Fault, InvalidFields, InvalidInput
from evertick.domain.job.faults import below

PREFIX = "/api/v1"
JSON = "application/json"
RETRIES = 4
FIRST_PAUSE = 0.2
LONGEST_PAUSE = 30.0
"""If the server asks for a longer pause, the call fails: the caller decides."""

_TEMPORARY = frozenset({502, 503, 504})
_IN_FLIGHT = "urn:evertick:problem:in-flight"

T = TypeVar("T")
_encoder = msgspec.json.Encoder()
_DOTS = {".": "%2E", "..": "%2E%2E"}
_NEXT = re.compile(r'<([^<>]*)>\s*;[^,<>]*\brel="?next\b')


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Generic[T]):
    """One call of the API.

    `is_repeatable`: to send it twice has the same effect as to send it once. `may_take` is how many seconds the server
    may wait before it answers, beyond the timeout of any response.
    """

    method: str
    path: str
    read: Callable[[bytes], T]
    query: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    is_repeatable: bool = False
    may_take: float = 0.0

    def following(self, response: Response) -> "Request[T] | None":
        """The request for the next page, if the response has a link to one.

        Only the link's query is used: the key is sent only to its own server, below whatever path a proxy adds.
        """
        link = _NEXT.search(response.headers.get("link", ""))
        if link is None:
            return None
        return replace(self, query=tuple(parse_qsl(urlsplit(link[1]).query, keep_blank_values=True)))


def path_of(*parts: str) -> str:
    """A path below the prefix. A part may contain slashes and dots, but must not be empty."""
    if not all(parts):
        raise InvalidInput("id", "must not be empty")
    return PREFIX + "".join(f"/{_DOTS.get(part) or quote(part, safe='')}" for part in parts)


def struct_of(kind: type[T]) -> Callable[[bytes], T]:
    """Reads JSON as a type, also from a newer server, which may have more fields and words."""
    return _decoder(kind).decode  # type: ignore[arg-type] # mypy takes no type for hashable


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(lenient(kind))


def no_content(_: bytes) -> None:
    """Reads a response without content."""


def fetch(path: str, read: Callable[[bytes], T], **query: Any) -> Request[T]:
    """A GET. Parameters of None are left out."""
    return Request(method="GET", path=path, read=read, query=_query_of(query), is_repeatable=True)


def post(
    path: str, read: Callable[[bytes], T], body: Any = None, *, key: str | None = None, is_change: bool = True
) -> Request[T]:
    """A change that the server makes once for each key, or a query that needs a body."""
    headers = {"Idempotency-Key": key or secrets.token_urlsafe(24)} if is_change else {}
    sent = None if body is None else encode(body)
    return Request(method="POST", path=path, read=read, body=sent, headers=headers, is_repeatable=True)


def change(
    method: str, path: str, read: Callable[[bytes], T], body: Any = None, *, if_match: int | None = None
) -> Request[T]:
    """A change that is not repeated. `if_match`: only of this version."""
    headers = {} if if_match is None else {"If-Match": f'"{if_match}"'}
    return Request(method=method, path=path, read=read, body=None if body is None else encode(body), headers=headers)


def _query_of(parameters: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Parameters as texts; a mapping becomes `key:value` for each, a list as many parameters."""
    found: list[tuple[str, str]] = []
    for name, value in parameters.items():
        if isinstance(value, Mapping):
            found += [(name, f"{key}:{each}") for key, each in value.items()]
        elif isinstance(value, list | tuple):
            found += [(name, str(each)) for each in value]
        elif value is not None:
            found.append((name, value.isoformat() if isinstance(value, datetime) else str(value)))
    return tuple(found)


def encode(value: Any) -> bytes:
    """The value as JSON. InvalidFields: it has a number that JSON cannot say."""
    try:
        written = _encoder.encode(value)
    except OverflowError:
        # Integers beyond 64 bits, which msgspec reads but does not write.
        written = json.dumps(value, default=msgspec.to_builtins).encode()
        _refuse_nan(value)
    if b"null" in written:  # msgspec writes it instead of NaN
        _refuse_nan(value)
    return written


def _refuse_nan(value: Any) -> None:
    plain = msgspec.to_builtins(value, builtin_types=(msgspec.Raw,))
    if faults := [Fault(at, "is NaN or infinite: JSON has no such number") for at in _not_finite(plain, "")]:
        raise InvalidFields(faults)


def _not_finite(value: object, at: str) -> Iterator[str]:
    """The pointers to numbers that are not finite."""
    if isinstance(value, float) and not math.isfinite(value):
        yield at
    elif isinstance(value, dict | list | tuple):
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _not_finite(item, below(at, name))


def pause_before_retry(request: Request[object], failure: ApiError, tries: int, retries: int) -> float | None:
    """How many seconds to wait before the next try. None: a retry is useless, or might change something twice."""
    if tries > retries or not _may_repeat(request, failure):
        return None
    asked = failure.retry_after or 0.0
    if asked > LONGEST_PAUSE:
        return None
    pause = min(FIRST_PAUSE * 2.0 ** (tries - 1), LONGEST_PAUSE)
    # Random, so that clients that failed together do not retry together.
    return asked + pause * random.uniform(0.5, 1.0)  # noqa: S311 - not a secret


def _may_repeat(request: Request[object], failure: ApiError) -> bool:
    match failure:
        case TooManyRequests():
            return True  # rejected before anything was done
        case Unreachable():
            return request.is_repeatable or failure.never_arrived
        case Conflict():
            return failure.type == _IN_FLIGHT
        case _:
            return request.is_repeatable and failure.status in _TEMPORARY
