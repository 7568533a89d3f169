"""How results are shown: plain tables that survive a pipe, and JSON."""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from evertick.runtime.terminal_text import terminal_safe, terminal_safe_json

_PIPE_WIDTH = 1000
"""Into a pipe or file nothing wraps: a line stays a line for whoever reads it."""

STYLES = {
    "ok": "green",
    "active": "green",
    "success": "green",
    "warning": "yellow",
    "paused": "yellow",
    "retrying": "yellow",
    "missed": "yellow",
    "skipped": "yellow",
    "problem": "bold red",
    "dead": "bold red",
}


def say(text: str, *, err: bool = False) -> None:
    """A line for people, on stdout or stderr. Names and errors in it are other people's: none acts on the terminal."""
    typer.echo(terminal_safe(text), err=err)


def print_json(value: Any, *, indent: int | None = 2) -> None:
    typer.echo(terminal_safe_json(json.dumps(value, indent=indent, ensure_ascii=False, default=_plain)))


def print_rows(columns: Sequence[str], rows: Iterable[Sequence[object]], *, none: str) -> None:
    """A table; where there are no rows, the words for that."""
    rows = list(rows)
    if not rows:
        typer.echo(none)
        return
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    table.show_header = any(columns)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    _console().print(table)


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Names and values, one below the other."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts:
        grid.add_row(name, _cell(value))
    _console().print(grid)


def utc(at: datetime | None) -> str | None:
    """RFC 3339 with `Z`."""
    return None if at is None else f"{at.astimezone(UTC).replace(tzinfo=None).isoformat()}Z"


def _console() -> Console:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    return console


def _cell(value: object) -> Text:
    """Never markup, and nothing that acts on the terminal: names and errors are other people's."""
    if value is None:
        return Text("-", style="dim")
    if isinstance(value, datetime):
        return Text(f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}")
    if isinstance(value, dict | list):
        return Text(terminal_safe_json(json.dumps(value, ensure_ascii=False)))
    return Text(terminal_safe(str(value)), style=STYLES.get(str(value), ""))


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return utc(value)
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    raise TypeError(f"{type(value).__name__} has no JSON")
