"""JSON Schemas, put together from small parts."""

from typing import Any, TypeAlias

Schema: TypeAlias = dict[str, Any]


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def array(item: Schema) -> Schema:
    return {"type": "array", "items": item}


def record(properties: dict[str, Schema], *optional: str, text: str = "") -> Schema:
    """An object of an answer: all properties are there, except for the optional ones."""
    schema = {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in optional],
    }
    return {**schema, "description": text} if text else schema


def text(pattern: str | None = None, **more: Any) -> Schema:
    return {"type": "string", **({"pattern": pattern} if pattern else {}), **more}


def instant(**more: Any) -> Schema:
    return {"type": "string", "format": "date-time", **more}


def or_null(schema: Schema) -> Schema:
    """The schema, or null, which stands for the default."""
    if isinstance(schema.get("type"), str) and "enum" not in schema:
        return {**schema, "type": [schema["type"], "null"]}
    return {"anyOf": [schema, {"type": "null"}]}


def choice(kind: Any, default: Any) -> Schema:
    return {"type": "string", "enum": [str(member) for member in kind], "default": str(default)}


def whole(least: int, most: int, default: int) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most, "default": default}


def seconds(most: int, **more: Any) -> Schema:
    return {"type": "number", "minimum": 0, "maximum": most, **more}
