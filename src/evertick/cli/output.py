"""Prints results: tables that stay readable in a pipe, JSON, progress bars."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from typing import Any, TypeVar

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from evertick.cli.backends import Listing
from evertick.runtime.terminal import terminal_safe, terminal_safe_json

_T = TypeVar("_T")

_PIPE_WIDTH = 1000
"""Lines do not wrap in a pipe or a file."""
_PROGRESS_MIN = 20
"""Fewer items than this get no progress bar."""

STYLES = {
    "ok": "green",
    "active": "green",
    "success": "green",
    "warning": "yellow",
    "paused": "yellow",
    "retrying": "yellow",
    "missed": "yellow",
    "skipped": "yellow",
    "closed": "green",
    "half_open": "yellow",
    "open": "bold red",
    "problem": "bold red",
    "dead": "bold red",
}


def print_line(text: str, *, err: bool = False) -> None:
    """A line on stdout or stderr. It may contain untrusted names and errors: control characters are escaped."""
    typer.echo(terminal_safe(text), err=err)


def print_json(value: Any, *, indent: int | None = 2) -> None:
    typer.echo(terminal_safe_json(json.dumps(value, indent=indent, ensure_ascii=False, default=_encode)))


def print_rows(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """A table, or the text `empty` if there are no rows."""
    rows = list(rows)
    if not rows:
        typer.echo(empty)
        return
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    table.show_header = any(columns)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    plain_console().print(table)


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Names and values, one pair on each line."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in fields:
        grid.add_row(name, _cell(value))
    plain_console().print(grid)


def utc(at: datetime | None) -> str | None:
    """RFC 3339 with `Z`."""
    return None if at is None else f"{at.astimezone(UTC).replace(tzinfo=None).isoformat()}Z"


def print_result(value: Any, text: str, *, as_json: bool) -> None:
    """A value as JSON, or a line about it."""
    if as_json:
        print_json(value)
    else:
        print_line(text)


def print_document(document: Mapping[str, Any], *, as_json: bool) -> None:
    """All fields of a document, as JSON or one on each line."""
    if as_json:
        print_json(document)
    else:
        print_fields(document.items())


def print_listing(
    listing: Listing[_T],
    columns: Sequence[str],
    row: Callable[[_T], Sequence[object]],
    *,
    empty: str,
    as_json: bool,
) -> None:
    """A list as JSON, or as a table with a row for each item, and a hint if the list is cut."""
    if as_json:
        print_json(listing.items)
    else:
        print_rows(columns, map(row, listing.items), empty=empty)
    if listing.has_more:  # on stderr, so that scripts read only the result
        typer.echo("There are more: raise --limit to see them.", err=True)


@contextmanager
def progress_bar(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, if that is a terminal. Yields a function that takes how many further items are done."""
    console = Console(stderr=True)
    disabled = total < _PROGRESS_MIN or not console.is_terminal
    with Progress(console=console, transient=True, disable=disabled) as progress:
        task = progress.add_task(label, total=total)
        yield lambda done: progress.advance(task, done)


def plain_console() -> Console:
    """A console that prints text as it is."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    return console


def _cell(value: object) -> Text:
    """Plain text: markup and control characters in untrusted names and errors have no effect."""
    if value is None:
        return Text("-", style="dim")
    if isinstance(value, datetime):
        return Text(f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}")
    if isinstance(value, dict | list):
        return Text(terminal_safe_json(json.dumps(value, ensure_ascii=False)))
    return Text(terminal_safe(str(value)), style=STYLES.get(str(value), ""))


def _encode(value: object) -> object:
    if isinstance(value, datetime):
        return utc(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
