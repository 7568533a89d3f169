"""The document: paths with their requests, answers and problems, made from the operations as they are declared."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from evertick.api.idempotency import REPLAYED
from evertick.api.openapi.components import components_of, schema_of
from evertick.api.openapi.parameters import parameters_of
from evertick.api.operations import BodySpec, Operation, ResponseSpec
from evertick.api.problems import MEDIA_TYPE, Kind
from evertick.contract.annotations import Schema, ref
from evertick.version import __version__

_TEXT: Schema = {"type": "string"}
_ANSWER_HEADERS: dict[str, tuple[str, Schema]] = {
    "ETag": ("The version.", {"type": "string", "pattern": r'^"[1-9][0-9]*"$'}),
    "Location": ("Where it is.", {"type": "string", "format": "uri-reference"}),
    "Link": ("The next page, if there is one.", _TEXT),
    "Retry-After": ("After so many seconds it may work.", {"type": "string", "pattern": "^[0-9]+$"}),
    "WWW-Authenticate": ("How to identify oneself.", _TEXT),
    REPLAYED: ("`true` if this is an earlier answer again.", {"const": "true"}),
}
_NEEDED = {"ETag", "Location", "Retry-After", "WWW-Authenticate"}
_OF_CONNECTIONS = (Kind.TOO_SLOW, Kind.URL_TOO_LONG, Kind.HEAD_TOO_LARGE, Kind.UNAVAILABLE)
_PROBLEM_HEADERS = {
    Kind.UNAUTHENTICATED: ("WWW-Authenticate",),
    Kind.VERSION_CONFLICT: ("ETag",),
    Kind.IN_FLIGHT: ("Retry-After",),
    Kind.OVER_QUOTA: ("Retry-After",),
    Kind.UNAVAILABLE: ("Retry-After",),
}


def describe(operations: Sequence[Operation]) -> bytes:
    """The description as JSON."""
    components = components_of(_shapes(operations))
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        entry = paths.setdefault(operation.path, {})
        entry[operation.method.lower()] = _operation(operation, components)
    queries = {operation.query.__name__ for operation in operations if operation.query is not None}
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "Evertick",
            "version": __version__,
            "description": "A distributed job scheduler: every tick accounted for.",
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": tag} for tag in dict.fromkeys(operation.tag for operation in operations)],
        "paths": paths,
        "components": {
            "schemas": {name: schema for name, schema in sorted(components.items()) if name not in queries},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": "An API key, `evt_…`."}},
        },
    }
    return msgspec.json.encode(document)


def _shapes(operations: Iterable[Operation]) -> list[Any]:
    """The types that are read and answered."""
    found: list[Any] = []
    for operation in operations:
        found += [operation.query] if operation.query is not None else []
        found += [operation.body.shape] if operation.body is not None else []
        found += [shown.shape for shown in operation.responses.values()]
    return [shape for shape in found if shape is not None and not isinstance(shape, str)]


def _operation(operation: Operation, components: dict[str, Schema]) -> dict[str, Any]:
    summary, description = operation.texts
    entry: dict[str, Any] = {
        "operationId": operation.name,
        "summary": summary,
        "tags": [operation.tag],
        "parameters": parameters_of(operation, components),
        "responses": {**_answers(operation), **_problems(operation)},
        "security": [] if operation.role is None else [{"key": []}],
    }
    if description:
        entry["description"] = description
    if operation.role is not None:
        entry["x-role"] = str(operation.role)
    if operation.body is not None:
        entry["requestBody"] = {"required": operation.body.is_required, "content": _content(operation.body)}
    return entry


def _answers(operation: Operation) -> dict[str, Any]:
    more = (REPLAYED,) if operation.is_repeatable else ()
    return {str(status): _answer(shown, (*shown.headers, *more)) for status, shown in operation.responses.items()}


def _answer(shown: ResponseSpec, headers: tuple[str, ...]) -> dict[str, Any]:
    entry: dict[str, Any] = {"description": shown.text}
    if shown.shape is not None:
        entry["content"] = _content(shown)
    if headers:
        entry["headers"] = _answer_headers(headers, set(headers) & _NEEDED)
    if shown.links:
        entry["links"] = {
            name: {"operationId": target, "parameters": dict(parameters)}
            for name, (target, parameters) in shown.links.items()
        }
    return entry


def _content(told: ResponseSpec | BodySpec) -> dict[str, Any]:
    shapes = dict.fromkeys(told.media_types, told.shape) | dict(told.also)
    return {media_type: {"schema": schema_of(shape)} for media_type, shape in shapes.items()}


def _answer_headers(names: Iterable[str], needed: set[str]) -> dict[str, Any]:
    return {
        name: {"description": text, "schema": schema, "required": name in needed}
        for name in names
        for text, schema in [_ANSWER_HEADERS[name]]
    }


def _problems(operation: Operation) -> dict[str, Any]:
    """Every problem that the operation can be answered with, by status."""
    kinds = [*operation.problems, Kind.INVALID, *_OF_CONNECTIONS]
    if operation.role is not None:
        kinds += [Kind.UNAUTHENTICATED, Kind.FORBIDDEN, Kind.OVER_QUOTA]
    if operation.query is not None or operation.body is not None or operation.headers:
        kinds.append(Kind.MALFORMED)
    if operation.body is not None:
        kinds += [Kind.TOO_LARGE, Kind.UNSUPPORTED]
    if operation.is_repeatable:
        kinds += [Kind.IN_FLIGHT, Kind.KEY_REUSED]
    found: dict[int, list[Kind]] = {}
    for kind in dict.fromkeys(kinds):
        found.setdefault(kind.status, []).append(kind)
    return {str(status): _problem(found[status]) for status in sorted(found) if status not in operation.responses}


def _problem(kinds: list[Kind]) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "description": "; ".join(f"{kind.title} (`{kind.type}`)" for kind in kinds),
        "content": {MEDIA_TYPE: {"schema": ref("Problem")}},
    }
    headers = dict.fromkeys(name for kind in kinds for name in _PROBLEM_HEADERS.get(kind, ()))
    if headers:
        # Of several kinds under one status, each has its own.
        always = {name for name in _PROBLEM_HEADERS.get(kinds[0], ()) if len(kinds) == 1} - {"ETag"}
        entry["headers"] = _answer_headers(headers, always)
    return entry
