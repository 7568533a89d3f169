"""The published description of what a request may bring besides its body: in its path, its query, its headers."""

from collections.abc import Iterable
from typing import Any

from evertick.api.idempotency import IDEMPOTENCY_KEY
from evertick.api.operations import Operation
from evertick.api.responses import IF_MATCH
from evertick.contract import patterns
from evertick.contract.annotations import Schema
from evertick.contract.target import HTTP_QUEUE
from evertick.usecases.idempotency import KEY_MAX_LENGTH


def _text(pattern: str, **more: Any) -> Schema:
    return {"type": "string", "pattern": pattern, **more}


_PATH = {
    "job_id": _text(patterns.JOB_ID),
    "run_id": _text(patterns.RUN_ID),
    "key_id": _text(patterns.KEY_ID),
    "tenant_id": _text(patterns.TENANT_ID),
    "queue": _text(patterns.QUEUE, **{"not": {"const": HTTP_QUEUE}}),
    "worker_id": _text(patterns.WORKER_ID),
    "name": _text(patterns.NAME, maxLength=255),
}
_REQUEST_HEADERS: dict[str, tuple[str, Schema]] = {
    IF_MATCH: (
        "An `ETag`: only that version is acted on; otherwise the answer is 412.",
        _text(patterns.IF_MATCH, format="entity-tag", examples=['"3"']),
    ),
    IDEMPOTENCY_KEY: (
        "The same key and body get the first answer again, for a day; another body 422, and while it is in flight 409.",
        _text(patterns.IDEMPOTENCY_KEY, maxLength=KEY_MAX_LENGTH, examples=["invoice-4711"]),
    ),
}


def parameters_of(operation: Operation, components: dict[str, Schema]) -> list[dict[str, Any]]:
    return [*_in_path(operation), *_in_query(operation, components), *_in_headers(operation)]


def _in_path(operation: Operation) -> Iterable[dict[str, Any]]:
    for name in operation.parameters:
        yield {"name": name, "in": "path", "required": True, "schema": _PATH[name]}


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
        described, schema = _REQUEST_HEADERS[name]
        yield {"name": name, "in": "header", "required": False, "description": described, "schema": schema}
