"""Prints results: tables that stay readable in a pipe, JSON, progress bars."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from itertools import zip_longest
from typing import Any, TypeVar
from unicodedata import combining, east_asian_width

import click

from evertick.cli.backends import Listing
from evertick.runtime.terminal import terminal_safe, terminal_safe_json

_T = TypeVar("_T")

_PROGRESS_MIN = 20
"""Fewer items than this get no progress bar."""


def print_line(text: str, *, err: bool = False) -> None:
    """A line on stdout or stderr. It may contain untrusted names and errors: control characters are escaped."""
    click.echo(terminal_safe(text), err=err)


def print_json(value: Any, *, indent: int | None = 2) -> None:
    click.echo(terminal_safe_json(json.dumps(value, indent=indent, ensure_ascii=False, default=encode_plain)))


def print_rows(columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str) -> None:
    """A table, or the text `empty` if there are no rows."""
    texts = [[_text(value) for value in row] for row in rows]
    if not texts:
        click.echo(empty)
    elif _is_terminal():
        from evertick.cli.tables import print_table  # noqa: PLC0415 - Rich takes longer to import than most commands

        print_table(columns, texts)
    else:
        _echo_table(columns, texts)


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Names and values, one pair on each line."""
    pairs = [(name, _text(value)) for name, value in fields]
    if _is_terminal():
        from evertick.cli.tables import print_pairs  # noqa: PLC0415 - as above

        print_pairs(pairs)
    else:
        _echo_aligned([list(pair) for pair in pairs])


def _echo_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if not any(columns):
        _echo_aligned(rows)
        return
    is_utf = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().startswith("utf")
    _echo_aligned([columns, *rows], rule="\N{BOX DRAWINGS LIGHT HORIZONTAL}" if is_utf else "-")


def _echo_aligned(rows: Sequence[Sequence[str]], rule: str = "") -> None:
    """Rows in aligned columns, each on a line of its own however long it is; with a rule, a line below the first."""
    cells = [[each.split("\n") for each in row] for row in rows]
    widths = [max(_width(line) for lines in column for line in lines) for column in zip(*cells, strict=True)]
    for number, row in enumerate(cells):
        for parts in zip_longest(*row, fillvalue=""):
            padded = (part + " " * (width - _width(part)) for part, width in zip(parts, widths, strict=True))
            click.echo("  ".join(padded).rstrip())
        if rule and not number:
            click.echo(rule * (sum(widths) + 2 * len(widths) - 2))


def _width(text: str) -> int:
    """The columns that a text takes in a terminal."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(letter) else 1 + (east_asian_width(letter) in "WF") for letter in text)


def _is_terminal() -> bool:
    return sys.stdout.isatty() or bool(os.environ.get("FORCE_COLOR"))


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
        click.echo("There are more: raise --limit to see them.", err=True)


@contextmanager
def progress_bar(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, if that is a terminal. Yields a function that takes how many further items are done."""
    from rich.console import Console  # noqa: PLC0415 - few commands have a bar
    from rich.progress import Progress  # noqa: PLC0415

    console = Console(stderr=True)
    disabled = total < _PROGRESS_MIN or not console.is_terminal
    with Progress(console=console, transient=True, disable=disabled) as progress:
        task = progress.add_task(label, total=total)
        yield lambda done: progress.advance(task, done)


def _text(value: object) -> str:
    """Control characters in untrusted names and errors have no effect."""
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
    if isinstance(value, dict | list | tuple):
        return terminal_safe_json(json.dumps(value, ensure_ascii=False, default=encode_plain))
    return terminal_safe(str(value))


def encode_plain(value: object) -> object:
    """What JSON has no form for, in the form of the API."""
    if isinstance(value, datetime):
        return utc(value)
    if isinstance(value, date):
        return value.isoformat()
    import msgspec  # noqa: PLC0415 - the help needs none

    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
