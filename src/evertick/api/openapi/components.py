"""The schemas of all messages, generated from their structs."""

import json
from collections.abc import Iterable
from typing import Any

import msgspec

from evertick import tzdb
from evertick.api.bodies.request_body import NDJSON
from evertick.contract import patterns
from evertick.contract.access import AuditEntry
from evertick.contract.annotations import ACCEPTED, Schema, ref
from evertick.contract.connections import REQUESTS
from evertick.contract.derived import request_of
from evertick.contract.events import EVENT_STREAM, ChangedJob, FinishedRun, LostEvents, StreamedGap
from evertick.contract.job import EXAMPLE_JOB, Job, JobPatch, JobReplacement, JobRequest
from evertick.contract.jobs import Verdict
from evertick.contract.problem import InputError, Problem
from evertick.contract.runs import Gap, Run
from evertick.contract.target import TARGETS

REFS = "#/components/schemas/{name}"
_STORABLE = {"type": "string", "pattern": patterns.STORABLE}
_NAMED: tuple[Any, ...] = (
    JobRequest,
    JobReplacement,
    JobPatch,
    *REQUESTS.values(),
    *(request_of(kind.__name__, kind, kind.__doc__ or "") for kind in TARGETS),
    Job,
    Run,
    Gap,
    FinishedRun,
    StreamedGap,
    ChangedJob,
    AuditEntry,
    LostEvents,
    Verdict,
    InputError,
    Problem,
)
"""Structs that operations refer to by name, or that other schemas do."""

_CONNECTION: Schema = {"oneOf": [ref(kind.__name__) for kind in REQUESTS.values()]}
_WITHOUT_STRUCT: dict[str, Schema] = {
    "Timezone": {"type": "string", "enum": sorted(tzdb.names()), "description": "An IANA name."},
    "Payload": {
        "description": "Any JSON of up to 64 KB, without NUL characters.",
        "anyOf": [
            {"type": ["null", "boolean", "number"]},
            _STORABLE,
            {"type": "array", "items": ref("Payload")},
            {"type": "object", "propertyNames": _STORABLE, "additionalProperties": ref("Payload")},
        ],
    },
    "ConnectionRequest": {**_CONNECTION, "required": ["name"], "properties": {"name": {"type": "string"}}},
    "ConnectionReplacement": {**_CONNECTION, "properties": {"name": {"type": "null"}}},  # or the one in the path
    "RunsAndGaps": {"type": "array", "items": {"anyOf": [ref("Run"), ref("Gap")]}},
    # Each item gets a verdict, so no item makes the whole invalid.
    "Batch": {
        "type": "array",
        "items": {"description": "A JobRequest."},
        "maxItems": 10_000,
        "examples": [[EXAMPLE_JOB]],
    },
    "BatchLines": {
        "description": "A JobRequest on each line, at most 10,000 of them. Empty lines do not count.",
        "contentMediaType": NDJSON,
        "examples": [json.dumps(EXAMPLE_JOB) + "\n"],
    },
    "VerdictLines": {"type": "string", "description": "A Verdict on each line.", "contentMediaType": NDJSON},
    "EventLines": {
        "type": "string",
        "description": "Server-sent events: the `data` of each is an Event, its `id` the position to go on after.",
        "contentMediaType": EVENT_STREAM,
    },
    "Metrics": {"type": "string"},
    "OpenApi": {"type": "object"},
}


def components_of(shapes: Iterable[Any]) -> dict[str, Schema]:
    """The schemas of these types and of all that they refer to, by name."""
    found = list(dict.fromkeys([*_NAMED, *shapes]))
    _, generated = msgspec.json.schema_components(found, ref_template=REFS)
    components = {name: _published(schema) for name, schema in generated.items()}
    for shape in found:
        more: Schema = dict(getattr(shape, "json_schema", {}))
        if more:
            schema = components[shape.__name__]
            schema |= more | {"required": list(dict.fromkeys([*schema["required"], *more.get("required", [])]))}
    return components | _WITHOUT_STRUCT


def schema_of(shape: Any) -> Schema:
    """The schema of a type, or of the component of a name."""
    if isinstance(shape, str):
        return ref(shape)
    (schema,), _ = msgspec.json.schema_components([shape], ref_template=REFS)
    return schema


def _published(schema: Schema) -> Schema:
    """A generated schema as it is published: requests show what they accept, and answers have no defaults.

    Requests are those that allow no other properties.
    """
    is_request = schema.get("additionalProperties") is False
    published: Schema = _translated(schema, is_request=is_request)
    return published


def _translated(value: Any, *, is_request: bool) -> Any:
    if isinstance(value, list):
        return _without_integers([_translated(item, is_request=is_request) for item in value])
    if not isinstance(value, dict):
        return value
    schema = {name: _translated(item, is_request=is_request) for name, item in value.items()}
    accepted = schema.pop(ACCEPTED, {})
    if accepted and is_request:
        schema.pop("format", None)
        schema |= accepted
    if not is_request:
        schema.pop("default", None)
    if len(schema.get("anyOf", ())) == 1:
        (only,) = schema.pop("anyOf")
        schema |= only
    return schema


def _without_integers(choices: list[Any]) -> list[Any]:
    """Without an integer that is a number with the same bounds: JSON does not tell 120.0 from 120."""
    numbers = [choice for choice in choices if isinstance(choice, dict) and choice.get("type") == "number"]
    return [
        choice
        for choice in choices
        if not (isinstance(choice, dict) and {**choice, "type": "number"} in numbers and choice["type"] == "integer")
    ]
