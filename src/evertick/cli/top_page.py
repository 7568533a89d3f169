"""The page of `evertick top`. It takes as many rows of each list as the terminal has room for."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from evertick.cli.backends import OverviewFigures
from evertick.cli.tables import STYLES
from evertick.contract.server import NeedLevel
from evertick.runtime.terminal import terminal_safe

MAX_QUEUES = 20
MAX_RUNS = 20
_LEVELS = {NeedLevel.BAD: "bold red", NeedLevel.WARN: "yellow", NeedLevel.INFO: "cyan"}
_FEW_ROWS = 2
_WIDE = 110
"""Columns from which lists stand side by side."""
_FRAME = 6
"""Rows above the lists, without what needs attention."""
_HEADS = 2
"""Rows above those of a list."""


@dataclass(slots=True)
class TopPage:
    """What is drawn: the last figures, and why they are not newer."""

    figures: OverviewFigures | None = None
    fault: str | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.figures is None:
            return
        height = console.size.height if console.is_terminal else 1000
        is_wide = options.max_width >= _WIDE
        needs = len(self.figures.attention.needs)
        below_each_other = 2 if is_wide else 4
        room = (height - _FRAME - max(needs, 1)) // below_each_other - _HEADS
        yield self._head(self.figures)
        yield _figures(self.figures, is_wide=is_wide)
        yield _needs(self.figures)
        yield from _lists(self.figures, max(room, _FEW_ROWS), is_wide=is_wide)

    def _head(self, figures: OverviewFigures) -> Text:
        head = Text("Evertick ", style="bold")
        head.append(f"{figures.cluster.version}  {figures.attention.now.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC")
        if self.fault is not None:
            head.append(f"\nNot reached, this is the last picture: {terminal_safe(self.fault)}", style="bold red")
        if figures.cluster.suspicion is not None:
            head.append(f"\n{terminal_safe(figures.cluster.suspicion)}", style="bold red")
        return head


def _figures(figures: OverviewFigures, *, is_wide: bool) -> RenderableType:
    stats = figures.stats
    ratio = stats.succeeded_per_second / stats.finished_per_second if stats.finished_per_second else None
    cells = {
        "fired/s": f"{stats.fired_per_second:,.1f}",
        "finished/s": f"{stats.finished_per_second:,.1f}",
        "success": "-" if ratio is None else f"{ratio:.1%}",
        "lag p50": _ms(stats.lag_ms.p50),
        "p99": _ms(stats.lag_ms.p99),
        "p999": _ms(stats.lag_ms.p999),
        "ready": f"{stats.ready:,}",
        "running": f"{stats.running:,}",
        "oldest due": f"{stats.oldest_due_seconds:,.1f} s" if stats.oldest_due_at else "-",
    }
    if not is_wide:
        return Text("  ").join(Text(f"{name} ", style="dim") + Text(cell, style="bold") for name, cell in cells.items())
    table = Table(box=box.SIMPLE, show_edge=False, pad_edge=False, header_style="dim", expand=False)
    for name in cells:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_row(*(Text(cell, style="bold") for cell in cells.values()))
    return table


def _needs(figures: OverviewFigures) -> Text:
    lines = Text("\n")
    for need in figures.attention.needs:
        style = _LEVELS.get(NeedLevel(need.level), "") if need.level in set(NeedLevel) else ""
        lines.append(f"● {need.count:,} {terminal_safe(need.text)}\n", style=style)
    if not figures.attention.needs:
        lines.append("✓ Nothing needs attention.\n", style="green")
    return lines


def _lists(figures: OverviewFigures, room: int, *, is_wide: bool) -> Iterable[RenderableType]:
    now = figures.attention.now
    partitions = figures.cluster.partitions
    unheld = f", {partitions.unheld} of {partitions.total} partitions unheld" if partitions.unheld else ""
    lists = [
        _table(
            "Next ticks",
            ("in", "job", "queue"),
            [(_span((each.due_at - now).total_seconds()), each.name, each.queue) for each in figures.attention.next],
            room,
        ),
        _table(
            "Last runs",
            ("ago", "job", "status", "took"),
            [
                (
                    _span((now - (run.started_at or run.scheduled_at)).total_seconds()),
                    run.job_id,
                    run.status,
                    "-" if run.duration_ms is None else _ms(run.duration_ms),
                )
                for run in figures.runs
            ],
            room,
        ),
        _table(
            "Queues",
            ("queue", "ready", "waits", "full"),
            [
                (
                    queue.name,
                    f"{queue.ready:,}",
                    "-" if queue.oldest_due_at is None else _span((now - queue.oldest_due_at).total_seconds()),
                    "full" if queue.is_full else "",
                )
                for queue in sorted(figures.queues, key=lambda queue: -queue.ready)
            ],
            room,
        ),
        _table(
            f"Nodes{unheld}",
            ("node", "region", "partitions", "seen", "version"),
            [
                (
                    node.node,
                    node.region,
                    f"{node.partitions}",
                    f"{_span((now - node.seen_at).total_seconds())}{'' if node.is_alive else ' dead'}",
                    node.version,
                )
                for node in figures.cluster.nodes
            ],
            room,
        ),
    ]
    if not is_wide:
        return lists
    return [_beside(lists[0], lists[1]), _beside(lists[2], lists[3])]


def _beside(left: RenderableType, right: RenderableType) -> Table:
    grid = Table.grid(expand=True, padding=(0, 2, 0, 0))
    grid.add_column(ratio=1)
    grid.add_column(ratio=1)
    grid.add_row(left, right)
    return grid


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], room: int) -> Group:
    table = Table(box=None, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        table.add_column(column, no_wrap=True, overflow="ellipsis")
    for row in rows[:room]:
        table.add_row(*(Text(terminal_safe(cell), style=STYLES.get(cell, "")) for cell in row))
    head = Text(title, style="bold")
    return Group(head, table if rows else Text("none", style="dim"))


def _ms(milliseconds: float) -> str:
    return f"{milliseconds / 1000:,.2f} s" if milliseconds >= 1000 else f"{milliseconds:,.0f} ms"


def _span(seconds: float) -> str:
    """A length of time in one unit."""
    seconds = max(seconds, 0.0)
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
