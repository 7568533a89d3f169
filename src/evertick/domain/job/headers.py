"""Checks the headers that a job's author adds to its requests: well formed, few, and none that Evertick sets itself."""

import re
from collections.abc import Mapping
from typing import Any

from evertick.domain.job.faults import Faults, accepted_once, below, kind_of

MAX_HEADERS = 50
MAX_BYTES = 8192

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
    if size > MAX_BYTES:
        faults.add(at, f"has more than {MAX_BYTES} bytes of names and values")


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
        return "would make each delivery wait for its target's word: a request is sent whole"
    if lower in _OURS or lower.startswith(_OUR_PREFIXES):
        return "is set by Evertick"
    return None


def _fault_in_value(text: object) -> str | None:
    if not isinstance(text, str):
        return f"must be a string, not {kind_of(text)}"
    if not _VALUE.fullmatch(text):
        return "must be ASCII without line breaks or other control characters, and not begin or end with white space"
    return None
