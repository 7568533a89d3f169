"""A preview as people read it in the terminal."""

from collections.abc import Iterator
from datetime import datetime

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from evertick.domain.schedule.describe.english import WEEKDAYS, length
from evertick.domain.schedule.lint.findings import Finding, Severity
from evertick.domain.schedule.preview import LostTimes, Preview, PreviewRow
from evertick.domain.schedule.spec import Manual

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}
_NARROW = 100
_PIPE_WIDTH = 1000
"""Into a pipe or file nothing wraps: a line stays a line for whoever reads it."""


def print_table(preview: Preview, count: int) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    for number, block in enumerate(_blocks(preview, count, narrow=console.width < _NARROW)):
        if number:
            console.print()
        console.print(block)


def _blocks(preview: Preview, count: int, *, narrow: bool) -> Iterator[RenderableType]:
    text = " / ".join(preview.schedule.text.splitlines())
    about = Text(f"{text}   (tz database {preview.tzdb_version})", style="dim")
    yield Group(Text(preview.description, style="bold"), about)
    if preview.rows:
        yield _table(preview, narrow=narrow)
    if below := list(_below(preview, count)):
        yield Text("\n".join(below), style="dim")
    if preview.findings:
        yield _findings(preview.findings)


def _table(preview: Preview, *, narrow: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    utc = preview.schedule.zone.is_utc
    noted = bool(preview.lost) or any(row.notes for row in preview.rows)
    table.add_column("#", justify="right", style="dim", no_wrap=True)
    if not utc:
        table.add_column(preview.schedule.timezone, no_wrap=True)
    table.add_column("UTC", no_wrap=True, style="" if utc else "dim")
    if noted:
        table.add_column("note", style="yellow", overflow="fold")
    fine = _finest([row.fire_at for row in preview.rows])
    for item, number in _in_order(preview):
        if isinstance(item, LostTimes):
            table.add_row("-", f"{_date(item.first_local)} {_time(item.first_local, fine)}", "", item.note, style="dim")
            continue
        clock = f"{_date(item.local)} {_time(item.local, fine)}"
        # Beside the local date the year of the UTC one goes without saying, where room is short.
        plain = f"{item.fire_at.date().isoformat()[5 if narrow else 0 :]} {_time(item.fire_at, fine)}"
        times = [clock] if utc else [f"{clock} {_offset(item.local, narrow=narrow)}", plain]
        table.add_row(str(number), *times, *(["; ".join(item.notes)] if noted else []))
    return table


def _in_order(preview: Preview) -> Iterator[tuple[PreviewRow | LostTimes, int]]:
    """Fire times with their numbers, and between them, at their place, what is lost."""
    lost = list(preview.lost)
    for number, row in enumerate(preview.rows, 1):
        while lost and lost[0].at <= row.fire_at:
            yield lost.pop(0), 0
        yield row, number


def _finest(times: list[datetime]) -> str:
    """One format for all, as fine as the finest needs: minutes, seconds or microseconds."""
    if any(at.microsecond for at in times):
        return "microseconds"
    return "seconds" if any(at.second for at in times) else "minutes"


def _date(at: datetime) -> str:
    return f"{WEEKDAYS[at.weekday()][:3]} {at.year:04}-{at.month:02}-{at.day:02}"


def _time(at: datetime, fine: str) -> str:
    return at.time().isoformat(timespec=fine)


def _offset(at: datetime, *, narrow: bool) -> str:
    """The offset from UTC, with its abbreviation where there is room: `-05:00 EST`."""
    offset = f"{at:%z}"
    name = at.tzname() or ""
    shown = f"{offset[:3]}:{offset[3:5]}"
    # Zones without an abbreviation repeat their offset in its place.
    return shown if narrow or not name.isalpha() else f"{shown} {name}"


def _below(preview: Preview, count: int) -> Iterator[str]:
    if isinstance(preview.schedule.spec, Manual):
        yield "No fire times of its own."
    elif preview.rows and len(preview.rows) < count:
        yield "Nothing after that."
    if preview.rows and (jitter := preview.rows[0].due_at - preview.rows[0].fire_at):
        yield f"Jitter: each is due {length(jitter)} later."


def _findings(findings: tuple[Finding, ...]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        style = _STYLES[finding.severity]
        table.add_row(Text(finding.severity, style=style), Text(f"{finding.message} ({finding.code})"))
    return table
