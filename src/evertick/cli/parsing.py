"""Parses values of options: JSON, instants, labels, fields, files."""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import typer

EXAMPLE_INSTANT = "2026-03-07T00:00:00Z"


def parse_json(option: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option} must be JSON: {error}") from None


def parse_instant(option: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    at = instant_or_none(text)
    if at is None:
        raise typer.BadParameter(f"{option} must be an instant with its offset, as in {EXAMPLE_INSTANT}")
    return at.astimezone(UTC)


def instant_or_none(text: str) -> datetime | None:
    """An instant, or None if the text is not a date and time with an offset."""
    try:
        at = datetime.fromisoformat(text.strip().upper())
    except ValueError:
        return None
    return None if at.tzinfo is None else at


def parse_pairs(option: str, texts: Iterable[str], separator: str) -> dict[str, str]:
    """`name:value` or `name=value` pairs of an option that can be repeated."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, found, value = text.partition(separator)
        if not found or not name:
            raise typer.BadParameter(f"{option} must be NAME{separator}VALUE, not {text!r}")
        if pairs.setdefault(name.strip(), value.strip()) != value.strip():
            raise typer.BadParameter(f"{option} gives {name.strip()!r} two values")
    return pairs


def parse_fields(option: str, texts: Iterable[str]) -> dict[str, Any]:
    """`field=value` pairs. A value that is not JSON is a string."""
    fields: dict[str, Any] = {}
    for name, value in parse_pairs(option, texts, "=").items():
        try:
            fields[name] = json.loads(value)
        except ValueError:
            fields[name] = value
    return fields


def read_text(file: typer.FileText) -> str:
    """The content of a file argument."""
    try:
        return file.read()
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"{file.name} is not UTF-8: {error}") from None


def target_of(handler: str | None, queue: str | None, url: str | None) -> dict[str, str]:
    """The target that the options --handler, --queue and --target-url describe."""
    if (handler is None) == (url is None):
        raise typer.BadParameter("use either --handler or --target-url")
    if url is not None:
        if queue is not None:
            raise typer.BadParameter("--queue needs --handler")
        return {"type": "http", "url": url}
    assert handler is not None
    return {"type": "worker", "handler": handler, **({} if queue is None else {"queue": queue})}
