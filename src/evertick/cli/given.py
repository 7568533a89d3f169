"""Values on the command line: JSON, instants, labels, fields."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import typer

EXAMPLE_INSTANT = "2026-03-07T00:00:00Z"


def read_json(option: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option} must be JSON: {error}") from None


def read_instant(option: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text.strip().upper())
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise typer.BadParameter(f"{option} must be an instant with its offset, as in {EXAMPLE_INSTANT}")
    return at.astimezone(UTC)


def read_pairs(option: str, texts: Iterable[str], separator: str) -> dict[str, str]:
    """`name:value` or `name=value`, as often as wanted."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, found, value = text.partition(separator)
        if not found or not name:
            raise typer.BadParameter(f"{option} must read NAME{separator}VALUE, not {text!r}")
        if pairs.setdefault(name.strip(), value.strip()) != value.strip():
            raise typer.BadParameter(f"{option} gives {name.strip()!r} two values")
    return pairs


def read_fields(option: str, texts: Iterable[str]) -> dict[str, Any]:
    """`field=value`, where a value that is no JSON is the text that it is."""
    fields: dict[str, Any] = {}
    for name, value in read_pairs(option, texts, "=").items():
        try:
            fields[name] = json.loads(value)
        except ValueError:
            fields[name] = value
    return fields
