"""Requests as values: what is asked, and how the answer is read. Who sends them is not said here."""

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Generic, TypeVar
from urllib.parse import parse_qsl, quote, urlsplit

import httpx
import msgspec

from evertick.contract.derived import lenient
from evertick.domain.errors import InvalidInput

PREFIX = "/api/v1"
JSON = "application/json"

T = TypeVar("T")
_encoder = msgspec.json.Encoder()
_DOTS = {".": "%2E", "..": "%2E%2E"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Generic[T]):
    """One call of the API.

    `is_repeatable`: to ask twice comes to the same as to ask once. `may_take` is how many seconds the server may think
    about it, beyond what any answer may take.
    """

    method: str
    path: str
    read: Callable[[bytes], T]
    query: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    is_repeatable: bool = False
    may_take: float = 0.0

    def following(self, response: httpx.Response) -> "Request[T] | None":
        """The request for the next page, if the answer names one.

        Only the link's query counts: the key stays with the server that it was given for, under whatever path a proxy
        puts it.
        """
        link = response.links.get("next", {}).get("url")
        if link is None:
            return None
        return replace(self, query=tuple(parse_qsl(urlsplit(link).query, keep_blank_values=True)))


def path_of(*parts: str) -> str:
    """A path below the prefix. A part may hold anything, slashes and dots too, but not nothing."""
    if not all(parts):
        raise InvalidInput("id", "must not be empty")
    return PREFIX + "".join(f"/{_DOTS.get(part) or quote(part, safe='')}" for part in parts)


def shaped(shape: type[T]) -> Callable[[bytes], T]:
    """Reads JSON of one shape, also from a newer server, which may know more fields and words."""
    return msgspec.json.Decoder(lenient(shape)).decode


def nothing(_: bytes) -> None:
    """Reads an answer that says nothing."""


def look(path: str, read: Callable[[bytes], T], **query: Any) -> Request[T]:
    """A look at something. A parameter of None is left out."""
    return Request(method="GET", path=path, read=read, query=query_of(query), is_repeatable=True)


def post(
    path: str, read: Callable[[bytes], T], body: Any = None, *, key: str | None = None, is_change: bool = True
) -> Request[T]:
    """A change that the server carries out once, for its key; or a question that needs a body."""
    headers = {"Idempotency-Key": key or secrets.token_urlsafe(24)} if is_change else {}
    sent = None if body is None else encode(body)
    return Request(method="POST", path=path, read=read, body=sent, headers=headers, is_repeatable=True)


def change(
    method: str, path: str, read: Callable[[bytes], T], body: Any = None, *, if_match: int | None = None
) -> Request[T]:
    """A change that is not repeated. `if_match`: only of this version."""
    headers = {} if if_match is None else {"If-Match": f'"{if_match}"'}
    return Request(method=method, path=path, read=read, body=None if body is None else encode(body), headers=headers)


def query_of(parameters: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Parameters as texts. Names that are Python's own words end in `_`; a mapping becomes `key:value` for each."""
    found: list[tuple[str, str]] = []
    for name, value in parameters.items():
        if isinstance(value, Mapping):
            found += [(name, f"{key}:{each}") for key, each in value.items()]
        elif value is not None:
            found.append((name.rstrip("_"), _text(value)))
    return tuple(found)


def encode(value: Any) -> bytes:
    try:
        return _encoder.encode(value)
    except OverflowError:
        # Integers beyond 64 bits, which msgspec reads but does not write.
        return json.dumps(value, default=msgspec.to_builtins, allow_nan=False).encode()


def _text(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
