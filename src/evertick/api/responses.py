"""Responses: JSON, pages with their links, versions as ETags."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from evertick.api.bodies.request_body import JSON
from evertick.api.problems import Kind, Problem
from evertick.contract import patterns
from evertick.usecases.context import Page

PREFIX = "/api/v1"
IF_MATCH = "If-Match"
SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)
"""Headers that browsers heed."""

_T = TypeVar("_T")
_IF_MATCH = re.compile(patterns.IF_MATCH)
_encoder = msgspec.json.Encoder()


@dataclass(slots=True)
class Response:
    """A response, and what the audit log and the quotas need: the subject, how many jobs are new.

    `affected_tenant` is the tenant that was changed, if that is not the caller's own. `on_sent` is called when the
    response is sent, or cannot be.
    """

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    media_type: str = JSON
    subject: str | None = None
    created: int = 0
    affected_tenant: int | None = None
    on_sent: Callable[[], None] | None = None


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


def no_content(**details: Any) -> Response:
    """204."""
    return Response(204, **details)


def page(found: Page[_T], path: str, query: Any, shape: Callable[[_T], Any] = lambda item: item) -> Response:
    """A page; a Link leads to the next one, with the same filters."""
    response = ok([shape(item) for item in found.items])
    if found.next is not None:
        filters = {name: value for name, value in msgspec.to_builtins(query).items() if value not in (None, [])}
        target = urlencode({**filters, "cursor": found.next}, doseq=True)
        response.headers["Link"] = f'<{path}?{target}>; rel="next"'
    return response


def etag(version: int) -> str:
    return f'"{version}"'


def expected_versions(if_match: str | None) -> frozenset[int] | None:
    """Which versions an If-Match allows; None is any."""
    if if_match is not None and not _IF_MATCH.fullmatch(if_match):
        raise Problem(Kind.MALFORMED, 'If-Match is * or a list of entity tags, as in "3"')
    if if_match is None or if_match == "*":
        return None
    tags = [tag.strip() for tag in if_match.split(",")]
    return frozenset(
        int(tag[1:-1]) for tag in tags if len(tag) <= 20 and tag[:1] == tag[-1:] == '"' and tag[1:-1].isdecimal()
    )


def path_to(*parts: str) -> str:
    return "/".join((PREFIX, *(quote(part, safe=":") for part in parts)))
