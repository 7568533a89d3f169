"""Reads a job's target: which kind it is, and that kind's own fields."""

import re
from collections.abc import Mapping
from typing import Any

from evertick.domain.job.faults import Faults, Reader, below, kind_of
from evertick.domain.job.headers import read_headers
from evertick.domain.job.target import HTTP_QUEUE, HttpTarget, Target, WorkerTarget
from evertick.domain.job.url import read_url

METHODS = ("POST", "PUT", "PATCH", "GET", "DELETE")
HANDLER_MAX_LENGTH = 255
TYPES = ("http", "worker")

_QUEUE = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


def read_target(value: object, at: str, faults: Faults) -> Target | None:
    if not isinstance(value, Mapping):
        faults.add(at, f"must be an object, not {kind_of(value)}")
        return None
    match value.get("type"):
        case "http":
            found = _members(value, at, faults, _HTTP, required="url")
            return None if found is None else HttpTarget(**found)
        case "worker":
            found = _members(value, at, faults, _WORKER, required="handler")
            return None if found is None else WorkerTarget(**found)
        case None:
            faults.add(f"{at}/type", f"is required: one of {', '.join(TYPES)}")
        case _:
            faults.add(f"{at}/type", f"must be one of {', '.join(TYPES)}")
    return None


def _members(
    given: Mapping[str, object], at: str, faults: Faults, readers: Mapping[str, Reader], *, required: str
) -> dict[str, Any] | None:
    """The members that were given, read; None when any of them cannot be used."""
    before = len(faults.found)
    found: dict[str, Any] = {}
    for name, value in given.items():
        reader = readers.get(name)
        if reader is not None:
            if value is not None:
                found[name] = reader(value, f"{at}/{name}", faults)
        elif faults.full:
            break
        elif name != "type":
            faults.add_unknown(at, name, ("type", *readers))
    if required not in found:
        faults.add(below(at, required), "is required")
    return found if len(faults.found) == before else None


def _read_method(value: object, at: str, faults: Faults) -> str | None:
    if isinstance(value, str) and value in METHODS:
        return value
    faults.add(at, f"must be one of {', '.join(METHODS)}")
    return None


def read_queue(value: object, at: str, faults: Faults) -> str | None:
    if not isinstance(value, str):
        faults.add(at, f"must be a string, not {kind_of(value)}")
    elif value == HTTP_QUEUE:
        faults.add(at, f"{HTTP_QUEUE!r} is reserved for HTTP targets")
    elif not _QUEUE.fullmatch(value):
        faults.add(at, "must be 1 to 63 characters of a-z, 0-9, '.', '_' and '-', the first a letter or digit")
    else:
        return value
    return None


def read_handler(value: object, at: str, faults: Faults) -> str | None:
    if not isinstance(value, str):
        faults.add(at, f"must be a string, not {kind_of(value)}")
    # Printable leaves out surrogates, controls and every white space but the plain one.
    elif not 1 <= len(value) <= HANDLER_MAX_LENGTH or " " in value or not value.isprintable():
        faults.add(at, f"must be 1 to {HANDLER_MAX_LENGTH} visible characters")
    else:
        return value
    return None


_HTTP: dict[str, Reader] = {"url": read_url, "method": _read_method, "headers": read_headers}
_WORKER: dict[str, Reader] = {"queue": read_queue, "handler": read_handler}
