"""The document: paths with their requests, responses and problems, made from the operations as they are declared."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from evertick.api.idempotency import IDEMPOTENCY_KEY, REPLAYED
from evertick.api.messages import EVENT_CURSOR, IF_MATCH, LAST_EVENT_ID
from evertick.api.openapi.components import components_of, schema_of
from evertick.api.operations import BodySpec, HandlerMode, Operation, ResponseSpec
from evertick.api.problems import MEDIA_TYPE, Kind
from evertick.contract import patterns
from evertick.contract.annotations import Schema, ref
from evertick.contract.target import WORKER_QUEUE
from evertick.domain.tracing import TRACEPARENT
from evertick.usecases.idempotency import KEY_MAX_LENGTH
from evertick.version import __version__


def _text(pattern: str, **more: Any) -> Schema:
    return {"type": "string", "pattern": pattern, **more}


_PATH = {
    "job_id": _text(patterns.JOB_ID),
    "run_id": _text(patterns.RUN_ID),
    "replay_id": _text(patterns.REPLAY_ID),
    "smear_id": _text(patterns.SMEAR_ID),
    "key_id": _text(patterns.KEY_ID),
    "tenant_id": _text(patterns.TENANT_ID),
    "queue": _text(patterns.QUEUE),
    "worker_id": _text(patterns.WORKER_ID),
    "host": _text(patterns.HOST),
    "connection": _text(patterns.CONNECTION),
    "name": _text(patterns.NAME, maxLength=255),
}
_PULLED_QUEUE = {"type": "string", **WORKER_QUEUE}
_REQUEST_HEADERS: dict[str, tuple[str, Schema]] = {
    IF_MATCH: (
        "An `ETag`: only that version is acted on; otherwise the answer is 412.",
        _text(patterns.IF_MATCH, format="entity-tag", examples=['"3"']),
    ),
    IDEMPOTENCY_KEY: (
        "The same key and body get the first answer again, for a day; another body 422, and while it is in flight 409.",
        _text(patterns.IDEMPOTENCY_KEY, maxLength=KEY_MAX_LENGTH, examples=["invoice-4711"]),
    ),
    LAST_EVENT_ID: (
        "Of server-sent events: the `id` of the last event that the client has. It counts before `cursor`.",
        _text(patterns.ENTRY),
    ),
    TRACEPARENT: (
        "W3C Trace Context: the run belongs to this trace. One that is not valid is ignored.",
        {"type": "string", "examples": ["00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"]},
    ),
}
_TEXT: Schema = {"type": "string"}
_RESPONSE_HEADERS: dict[str, tuple[str, Schema]] = {
    "ETag": ("The version.", {"type": "string", "pattern": r'^"[1-9][0-9]*"$'}),
    "Location": ("Where it is.", {"type": "string", "format": "uri-reference"}),
    "Link": ("The next page, if there is one.", _TEXT),
    EVENT_CURSOR: ("Of a page: how far it has looked, also past events of other types.", _text(patterns.ENTRY)),
    "Retry-After": ("After so many seconds it may work.", {"type": "string", "pattern": "^[0-9]+$"}),
    "WWW-Authenticate": ("How to identify oneself.", _TEXT),
    REPLAYED: ("`true` if this is an earlier answer again.", {"const": "true"}),
}
_REQUIRED_HEADERS = {"ETag", "Location", "Retry-After", "WWW-Authenticate"}
_CONNECTION_PROBLEMS = (Kind.TOO_SLOW, Kind.URL_TOO_LONG, Kind.HEAD_TOO_LARGE, Kind.UNAVAILABLE)
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
    """The types of requests and responses."""
    found: list[Any] = []
    for operation in operations:
        found += [operation.query] if operation.query is not None else []
        found += [operation.body.shape] if operation.body is not None else []
        found += [spec.shape for spec in operation.responses.values()]
    return [shape for shape in found if shape is not None and not isinstance(shape, str)]


def _operation(operation: Operation, components: dict[str, Schema]) -> dict[str, Any]:
    summary, description = operation.texts
    entry: dict[str, Any] = {
        "operationId": operation.name,
        "summary": summary,
        "tags": [operation.tag],
        "parameters": [*_in_path(operation), *_in_query(operation, components), *_in_headers(operation)],
        "responses": {**_responses(operation), **_problems(operation)},
        "security": [] if operation.role is None else [{"key": []}],
    }
    if description:
        entry["description"] = description
    if operation.role is not None:
        entry["x-role"] = str(operation.role)
    if operation.body is not None:
        entry["requestBody"] = {"required": operation.body.is_required, "content": _content(operation.body)}
    return entry


def _in_path(operation: Operation) -> Iterable[dict[str, Any]]:
    for name in operation.parameters:
        schema = _PULLED_QUEUE if name == "queue" and operation.mode is HandlerMode.POLL else _PATH[name]
        yield {"name": name, "in": "path", "required": True, "schema": schema}


def _in_query(operation: Operation, components: dict[str, Schema]) -> Iterable[dict[str, Any]]:
    if operation.query is None:
        return
    for name, schema in components[operation.query.__name__]["properties"].items():
        yield {"name": name, "in": "query", "required": False, "schema": _without_null(schema)}


def _without_null(schema: Schema) -> Schema:
    """A query parameter is there or not; null it cannot be."""
    choices = [choice for choice in schema.get("anyOf", []) if choice != {"type": "null"}]
    rest = {name: value for name, value in schema.items() if name != "anyOf" and (name, value) != ("default", None)}
    if len(choices) == 1:
        return {**rest, **choices[0]}
    if choices:
        return {**rest, "anyOf": choices}
    if "enum" in rest:
        return {**rest, "enum": [value for value in rest["enum"] if value is not None]}
    return rest


def _in_headers(operation: Operation) -> Iterable[dict[str, Any]]:
    for name in (*operation.headers, *([IDEMPOTENCY_KEY] if operation.is_repeatable else [])):
        description, schema = _REQUEST_HEADERS[name]
        yield {"name": name, "in": "header", "required": False, "description": description, "schema": schema}


def _responses(operation: Operation) -> dict[str, Any]:
    more = [REPLAYED] if operation.is_repeatable else []
    if operation.query is not None and hasattr(operation.query, "cursor"):
        more.append("Link")
    return {str(status): _response(spec, (*spec.headers, *more)) for status, spec in operation.responses.items()}


def _response(spec: ResponseSpec, headers: tuple[str, ...]) -> dict[str, Any]:
    entry: dict[str, Any] = {"description": spec.text}
    if spec.shape is not None:
        entry["content"] = _content(spec)
    if headers:
        entry["headers"] = _response_headers(headers, set(headers) & _REQUIRED_HEADERS)
    if spec.links:
        entry["links"] = {
            name: {"operationId": target, "parameters": dict(parameters)}
            for name, (target, parameters) in spec.links.items()
        }
    return entry


def _content(spec: ResponseSpec | BodySpec) -> dict[str, Any]:
    shapes = {spec.media_type: spec.shape, **spec.also}
    return {media_type: {"schema": schema_of(shape)} for media_type, shape in shapes.items()}


def _response_headers(names: Iterable[str], needed: set[str]) -> dict[str, Any]:
    return {
        name: {"description": text, "schema": schema, "required": name in needed}
        for name in names
        for text, schema in [_RESPONSE_HEADERS[name]]
    }


def _problems(operation: Operation) -> dict[str, Any]:
    """Every problem that the operation can be answered with, by status."""
    kinds = [*operation.problems, Kind.INVALID, *_CONNECTION_PROBLEMS]
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
        entry["headers"] = _response_headers(headers, always)
    return entry
