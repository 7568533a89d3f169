"""`docs/reference/http.md` and `docs/reference/events.md`: the published OpenAPI, as pages that people can read."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from evertick.api.app import openapi
from evertick.domain.events import EventType

Schema: TypeAlias = dict[str, Any]

_INTRO = """\
# HTTP API reference

<!-- Generated from the operations and messages of the API: edit there, then run `python docs/generate.py`. -->

Every operation, with its role, parameters, body and answers. The server publishes the same as OpenAPI 3.1 at
`/api/v1/openapi.json`, for tools and with the patterns of all texts. [The guide](../http-api.md) explains how they
belong together.

An operation needs `Authorization: Bearer evt_…` with a key of the named role or a higher one: `viewer` < `operator` <
`editor` < `admin`. The role `worker` stands apart. Unknown fields are refused."""

_EVENTS_INTRO = """\
# Event types

<!-- Generated from domain/events.py and the messages of the API: edit there, then run `python docs/generate.py`. -->

Every event of [the stream](../events.md) is a CloudEvent whose `type` begins with `evertick.`. `data` depends on the
type."""

_DATA = {
    "run": "FinishedRun",
    "gap": "StreamedGap",
    "job": "ChangedJob",
    "audit": "AuditEntry",
    "events": "LostEvents",
}
"""The message in `data`, by the first word of the type."""
_PROBLEM = "application/problem+json"
_SLUG = re.compile(r"urn:evertick:problem:([\w-]+)")
_USUAL = 20
"""A problem of so many operations is named once."""


def http_page() -> str:
    document = json.loads(openapi())
    schemas = document["components"]["schemas"]
    counts = Counter(slug for _, _, operation in _operations(document) for slug in _slugs(operation))
    common = {slug for slug, count in counts.items() if count >= _USUAL}
    usual = ", ".join(f"`{slug}`" for slug in counts if slug in common)
    parts = [_INTRO, f"Most operations may answer with the [problems](errors.md) {usual}.", "## Operations"]
    parts.append(_overview(document))
    for tag in (each["name"] for each in document["tags"]):
        parts.append(f"### {tag}")
        for method, path, operation in _operations(document):
            if tag in operation["tags"]:
                parts += _operation(method, path, operation, common)
    parts.append("## Messages")
    shown = {name: schema for name, schema in schemas.items() if "properties" in schema or "enum" in schema}
    for name, schema in shown.items():
        parts += _message(name, schema)
    return "\n\n".join(parts) + "\n"


def event_types_page() -> str:
    schemas = json.loads(openapi())["components"]["schemas"]
    parts = [_EVENTS_INTRO, "## The envelope", _fields(schemas["Event"], "http.md")]
    for kind in EventType:
        message = _DATA[kind.split(".")[0]]
        link = f"[`{message}`](#{message.lower()})"
        parts += [f"## {kind}", f"Caused by: {kind.set_by}. It means: {kind.meaning}. `data`: {link}."]
    parts.append("## Messages in data")
    for name in dict.fromkeys(_DATA.values()):
        parts += [f"### {name}", schemas[name].get("description", ""), _fields(schemas[name], "http.md")]
    return "\n\n".join(parts) + "\n"


def _operations(document: Schema) -> Iterator[tuple[str, str, Schema]]:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield method.upper(), path, operation


def _overview(document: Schema) -> str:
    rows = [
        f"| [`{method} {path.removeprefix('/api/v1')}`](#{operation['operationId']}) | {operation['summary']} "
        f"| {operation.get('x-role', 'none')} |"
        for method, path, operation in _operations(document)
    ]
    return "\n".join(
        ["Paths are below `/api/v1`, except the probes.\n", "| operation | does | role |", "|---|---|---|", *rows]
    )


def _slugs(operation: Schema) -> list[str]:
    """The problems that an operation may answer with."""
    return [slug for answer in operation["responses"].values() for slug in _SLUG.findall(answer["description"])]


def _operation(method: str, path: str, operation: Schema, common: set[str]) -> Iterator[str]:
    yield f'<a id="{operation["operationId"]}"></a>\n\n#### `{method} {path}`'
    role = f"Role: `{operation['x-role']}`." if "x-role" in operation else "Needs no key."
    yield " ".join(filter(None, [f"**{operation['summary']}.**", operation.get("description"), role]))
    if "requestBody" in operation:
        yield f"Body: {_content(operation['requestBody'])}."
    if operation["parameters"]:
        rows = [_parameter(each) for each in operation["parameters"]]
        yield "\n".join(["| parameter | in | type | meaning |", "|---|---|---|---|", *rows])
    rows = [
        f"| {status} | {_answer(answer)} |"
        for status, answer in operation["responses"].items()
        if _PROBLEM not in answer.get("content", {})
    ]
    yield "\n".join(["| status | answer |", "|---|---|", *rows])
    if special := [slug for slug in _slugs(operation) if slug not in common]:
        yield "Problems besides the usual ones: " + ", ".join(f"[`{slug}`](errors.md)" for slug in special) + "."


def _parameter(each: Schema) -> str:
    schema = each["schema"]
    text = each.get("description") or schema.get("description") or ""
    return f"| `{each['name']}` | {each['in']} | {_type(schema)} | {_cell(text)} {_default(schema)}|"


def _answer(answer: Schema) -> str:
    text = _cell(answer["description"].rstrip("."))
    headers = ", ".join(f"`{name}`" for name in answer.get("headers", {}))
    parts = [
        f"{text}.",
        f"Body: {_content(answer)}." if "content" in answer else "",
        f"Headers: {headers}." if headers else "",
    ]
    return " ".join(filter(None, parts))


def _content(holder: Schema) -> str:
    kinds = [f"{_type(media['schema'])} as `{name}`" for name, media in holder["content"].items()]
    return " or ".join(kinds).replace(" as `application/json`", "")


def _message(name: str, schema: Schema) -> Iterator[str]:
    yield f"### {name}"
    if text := schema.get("description"):
        yield _cell(text)
    if "enum" in schema:
        values = schema["enum"] if len(schema["enum"]) < 50 else [*schema["enum"][:3], "…"]
        yield "One of " + ", ".join(f"`{value}`" for value in values) + "."
    else:
        yield _fields(schema)


def _fields(schema: Schema, page: str = "") -> str:
    fields, required = schema.get("properties", {}), schema.get("required", [])
    defaults = {name: "required" if name in required else _default_value(field) for name, field in fields.items()}
    rows = [
        f"| `{name}` | {_type(field, page)} | {defaults[name]} | {_text(field)} |" for name, field in fields.items()
    ]
    if not rows:
        return "No fields."
    return "\n".join(["| field | type | default | meaning |", "|---|---|---|---|", *rows])


def _choices(schema: Schema) -> list[Schema]:
    found = schema.get("anyOf") or schema.get("oneOf") or []
    return [choice for choice in found if "pattern" not in choice or "title" not in choice]


def _type(schema: Schema, page: str = "") -> str:
    """What a value looks like, in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}]({page}#{name.lower()})" if name not in _WITHOUT_ENTRY else _WITHOUT_ENTRY[name]
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{'null' if value is None else value}`" for value in schema["enum"])
    if choices := _choices(schema):
        return " or ".join(dict.fromkeys(_type(choice, page) for choice in choices))
    kind = schema.get("type", "any JSON")
    if kind == "array":
        return f"list of {_type(schema.get('items', {}), page)}"
    if isinstance(kind, list):
        kind = " or ".join(kind)
    return {"date-time": "instant"}.get(schema.get("format", ""), kind) + _bounds(schema)


_WITHOUT_ENTRY = {
    "Payload": "any JSON",
    "Timezone": "IANA name",
    "RunsAndGaps": "list of [Run](#run) or [Gap](#gap)",
    "ConnectionRequest": "a connection, with its `name`",
    "ConnectionReplacement": "a connection",
    "Batch": "list of [JobRequest](#jobrequest)",
    "BatchLines": "lines of [JobRequest](#jobrequest)",
    "VerdictLines": "lines of [Verdict](#verdict)",
    "EventLines": "server-sent events",
    "Metrics": "text",
    "OpenApi": "object",
}
"""Schemas that are no table of fields."""


def _bounds(schema: Schema) -> str:
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if low is not None and high is not None:
        return f" {low:,}–{high:,}"
    if low is not None:
        return f" ≥ {low:,}"
    if high is not None:
        return f" ≤ {high:,}"
    return f", up to {schema['maxLength']:,} characters" if "maxLength" in schema else ""


def _default(schema: Schema) -> str:
    default = schema.get("default")
    return "" if default in (None, [], {}) else f"Default: `{_json(default)}`. "


def _default_value(schema: Schema) -> str:
    return f"`{_json(schema['default'])}`" if "default" in schema else "none"


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _text(schema: Schema) -> str:
    texts: Iterable[str] = [schema.get("description", ""), *(each.get("description", "") for each in _choices(schema))]
    return _cell(" ".join(filter(None, texts)))


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
