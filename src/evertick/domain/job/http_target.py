"""Checks what a job's author says of its requests: the URL by its form alone, for where it leads is judged at delivery;
and the headers, which must be well formed, few, and none that Evertick sets itself.
"""

import functools
import re
from collections.abc import Mapping
from ipaddress import AddressValueError, IPv6Address
from typing import Any

from evertick.domain.job.faults import Faults, accepted_once, below, kind_of

URL_MAX_LENGTH = 2048

# A backslash is a slash to some parsers and none to others, so a host could be read in two ways.
_VISIBLE = re.compile(r"[!-\[\]-~]*")
_ABSOLUTE = re.compile(r"https?://([^/?#]*)(?:[/?#].*)?", re.IGNORECASE)
_AUTHORITY = re.compile(r"(?:\[([0-9a-f:.]+)\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?", re.IGNORECASE)

MAX_HEADERS = 50
MAX_HEADER_BYTES = 8192
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"(?:[!-~](?:[\t -~]*[!-~])?)?")
_OF_CONNECTION = {
    "close",  # reserved: it would be read as an option of Connection
    "connection",
    "http2-settings",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
}
_OF_PROXIES = "proxy-"
_OURS = {"content-length", "host", "idempotency-key", "traceparent", "user-agent"}
_OUR_PREFIXES = ("ce-", "evertick-", "webhook-")


def check_url(url: str, at: str, faults: Faults) -> None:
    reason = fault_in_url(url)
    if reason is not None:
        faults.add(at, reason)


@functools.lru_cache(maxsize=4096)
def fault_in_url(url: str) -> str | None:
    """What is wrong with it, without repeating it: it may hold a secret."""
    if len(url) > URL_MAX_LENGTH:
        return f"has at most {URL_MAX_LENGTH} characters, not {len(url)}"
    if not _VISIBLE.fullmatch(url):
        return "must be visible ASCII without backslashes: write other characters as %XX, a host as xn--…"
    absolute = _ABSOLUTE.fullmatch(url)
    if absolute is None:
        return "must be absolute and begin with http:// or https://"
    return _fault_in_authority(absolute[1])


def _fault_in_authority(authority: str) -> str | None:
    if "@" in authority:
        return "must not contain a user name or password: use a header"
    if not authority or authority.startswith(":"):
        return "has no host"
    match = _AUTHORITY.fullmatch(authority)
    if match is None or (match[1] and not _is_ipv6(match[1])):
        return "has a host or port that cannot be read"
    if match[2] and not 1 <= int(match[2]) <= 65_535:
        return "has a port that is not from 1 to 65535"
    return None


def _is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except AddressValueError:
        return False
    return True


@accepted_once
def check_headers(headers: Mapping[Any, Any], at: str, faults: Faults) -> None:
    """Refuse headers that a request may not have, and values that are no strings."""
    if len(headers) > MAX_HEADERS:
        faults.add(at, f"has at most {MAX_HEADERS} headers, not {len(headers)}")
        return
    size = 0
    seen: set[str] = set()
    for name, text in headers.items():
        reason = _fault_in_name(name, seen) or _fault_in_value(text)
        if reason is None:
            size += len(name) + len(text)
        else:
            faults.add(below(at, name), reason)
    if size > MAX_HEADER_BYTES:
        faults.add(at, f"has more than {MAX_HEADER_BYTES} bytes of names and values")


def _fault_in_name(name: object, seen: set[str]) -> str | None:
    """What is wrong with the name. Names are the same in upper and lower case; `seen` collects them."""
    if not isinstance(name, str) or not _TOKEN.fullmatch(name):
        return "is not a header name: use letters, digits and !#$%&'*+-.^_`|~"
    lower = name.lower()
    if lower in seen:
        return "is given twice: upper and lower case are the same"
    seen.add(lower)
    if lower in _OF_CONNECTION or lower.startswith(_OF_PROXIES):
        return "belongs to the connection, not to the request"
    if lower == "expect":
        return "would make each delivery wait for a reply before its body: a request is sent whole"
    if lower in _OURS or lower.startswith(_OUR_PREFIXES):
        return "is set by Evertick"
    return None


def _fault_in_value(text: object) -> str | None:
    if not isinstance(text, str):
        return f"must be a string, not {kind_of(text)}"
    if not _VALUE.fullmatch(text):
        return "must be ASCII without line breaks or other control characters, and not begin or end with white space"
    return None
