"""Tables on a terminal, by Rich: with colours, and folded to its width. `output` prints them elsewhere."""

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

PIPE_WIDTH = 1000
"""Lines do not wrap in a pipe or a file."""

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
EMPTY = "-"


def plain_console() -> Console:
    """A console that prints text as it is."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    table.show_header = any(columns)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(_cell, row))
    plain_console().print(table)


def print_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in pairs:
        grid.add_row(name, _cell(value))
    plain_console().print(grid)


def _cell(text: str) -> Text:
    """Plain text: markup in untrusted names and errors has no effect."""
    return Text(text, style="dim" if text == EMPTY else STYLES.get(text, ""))
