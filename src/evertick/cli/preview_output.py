"""Prints a preview: as a table, or as a JSON object."""

from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from evertick.cli.tables import plain_console
from evertick.domain.schedule.describe.english import WEEKDAYS, length
from evertick.domain.schedule.lint import Finding, Severity
from evertick.domain.schedule.preview import LostTimes, PreviewRow, SchedulePreview
from evertick.domain.schedule.spec import Manual

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}
_NARROW = 100


def document_of(preview: SchedulePreview) -> dict[str, Any]:
    """The JSON object of a preview."""
    return {
        "schedule": preview.schedule.text,
        "timezone": preview.schedule.timezone,
        "tzdb": preview.tzdb_version,
        "description": preview.description,
        "upcoming": [
            {"fire_at": row.fire_at, "due_at": row.due_at, "local": row.local.isoformat(), "notes": row.notes}
            for row in preview.rows
        ],
        "lost": [
            {
                "at": lost.at,
                "ticks": lost.ticks,
                "first_local": lost.first_local.isoformat(),
                "last_local": lost.last_local.isoformat(),
                "note": lost.note,
            }
            for lost in preview.lost
        ],
        "findings": [asdict(finding) for finding in preview.findings],
    }


def print_table(preview: SchedulePreview, count: int) -> None:
    console = plain_console()
    for number, block in enumerate(_blocks(preview, count, narrow=console.width < _NARROW)):
        if number:
            console.print()
        console.print(block)


def _blocks(preview: SchedulePreview, count: int, *, narrow: bool) -> Iterator[RenderableType]:
    text = " / ".join(preview.schedule.text.splitlines())
    about = Text(f"{text}   (tz database {preview.tzdb_version})", style="dim")
    yield Group(Text(preview.description, style="bold"), about)
    if preview.rows:
        yield _table(preview, narrow=narrow)
    if remarks := list(_remarks(preview, count)):
        yield Text("\n".join(remarks), style="dim")
    if preview.findings:
        yield _findings(preview.findings)


def _table(preview: SchedulePreview, *, narrow: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    is_utc = preview.schedule.zone.is_utc
    has_notes = bool(preview.lost) or any(row.notes for row in preview.rows)
    table.add_column("#", justify="right", style="dim", no_wrap=True)
    if not is_utc:
        table.add_column(preview.schedule.timezone, no_wrap=True)
    table.add_column("UTC", no_wrap=True, style="" if is_utc else "dim")
    if has_notes:
        table.add_column("note", style="yellow", overflow="fold")
    precision = _precision([row.fire_at for row in preview.rows])
    for item, number in _in_order(preview):
        if isinstance(item, LostTimes):
            table.add_row(
                "-", f"{_date(item.first_local)} {_time(item.first_local, precision)}", "", item.note, style="dim"
            )
            continue
        clock = f"{_date(item.local)} {_time(item.local, precision)}"
        # In a narrow terminal the UTC date has no year: the local date beside it has one.
        plain = f"{item.fire_at.date().isoformat()[5 if narrow else 0 :]} {_time(item.fire_at, precision)}"
        times = [clock] if is_utc else [f"{clock} {_offset(item.local, narrow=narrow)}", plain]
        table.add_row(str(number), *times, *(["; ".join(item.notes)] if has_notes else []))
    return table


def _in_order(preview: SchedulePreview) -> Iterator[tuple[PreviewRow | LostTimes, int]]:
    """Fire times with their numbers, and the lost times between them, in chronological order."""
    lost = list(preview.lost)
    for number, row in enumerate(preview.rows, 1):
        while lost and lost[0].at <= row.fire_at:
            yield lost.pop(0), 0
        yield row, number


def _precision(times: list[datetime]) -> str:
    """The coarsest precision that shows every time exactly: minutes, seconds or microseconds."""
    if any(at.microsecond for at in times):
        return "microseconds"
    return "seconds" if any(at.second for at in times) else "minutes"


def _date(at: datetime) -> str:
    return f"{WEEKDAYS[at.weekday()][:3]} {at.year:04}-{at.month:02}-{at.day:02}"


def _time(at: datetime, precision: str) -> str:
    return at.time().isoformat(timespec=precision)


def _offset(at: datetime, *, narrow: bool) -> str:
    """The offset from UTC, with the zone's abbreviation unless the terminal is narrow: `-05:00 EST`."""
    offset = f"{at:%z}"
    name = at.tzname() or ""
    text = f"{offset[:3]}:{offset[3:5]}"
    # A zone without an abbreviation has its offset as its name.
    return text if narrow or not name.isalpha() else f"{text} {name}"


def _remarks(preview: SchedulePreview, count: int) -> Iterator[str]:
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
