"""What a job did, as its page shows it: a calendar, its latest runs as ticks, and how long they took."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from evertick.contract.runs import Gap, Run, RunOrGap
from evertick.dashboard.charts import Bar, Cell, Part, Tick
from evertick.dashboard.formatting import milliseconds, number
from evertick.domain.states import RunStatus
from evertick.usecases.job_history import Day

WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_PLACES = 100
"""On the time line of the latest runs."""
_GAP_TEXTS = {
    "missed": "missed: not fired in time",
    "paused": "skipped: the job was paused",
    "overlap": "skipped: an earlier run was unfinished",
    "dst": "skipped: the clocks jumped over it",
}
_KINDS = {
    RunStatus.SUCCESS: "ok",
    RunStatus.DEAD: "bad",
    RunStatus.CANCELLED: "skipped",
}
_PERCENTILES = (50, 95, 99)
_MONTH_WEEKS = 2
"""So many columns of the calendar the name of a month takes."""


class Durations(NamedTuple):
    """How long runs took, in milliseconds, the oldest first; percentiles of them, by name."""

    bars: list[Bar]
    percentiles: list[tuple[str, float]]


def calendar(days: Sequence[Day]) -> list[tuple[str, list[Cell | None]]]:
    """A row for each weekday, a column for each week."""
    most = max((day.runs for day in days), default=0)
    before: list[Cell | None] = [None] * days[0].at.weekday() if days else []
    cells = [*before, *(_cell(day, most) for day in days)]
    return [(name, cells[row :: len(WEEKDAYS)]) for row, name in enumerate(WEEKDAYS)]


def months(days: Sequence[Day]) -> list[str]:
    """Names of the calendar's columns: each month at the week in which it begins, the first one if there is room."""
    if not days:
        return []
    before = days[0].at.weekday()
    names = {(before + place) // 7: day.at.strftime("%b") for place, day in enumerate(days) if day.at.day == 1}
    if min(names, default=_MONTH_WEEKS) >= _MONTH_WEEKS:
        names[0] = days[0].at.strftime("%b")
    return [names.get(week, "") for week in range(-(-(before + len(days)) // 7))]


def _cell(day: Day, most: int) -> Cell:
    when = day.at.strftime("%a %d %B %Y")
    if not day.is_counted:
        return Cell(0, f"{when}: before the job was made, or not counted yet")
    at_least = "at least " if day.is_partial else ""
    texts = [f"{at_least}{number(day.runs)} runs"] if day.runs else ["no runs"]
    if day.failed:
        texts.append(f"{number(day.failed)} failed")
    texts += [_GAP_TEXTS.get(reason, reason) for reason in day.gaps]
    level = 0 if not day.runs else 1 + min(3, day.runs * 4 // (most + 1))
    return Cell(level, f"{when}: {', '.join(texts)}", "bad" if day.failed else "gap" if day.gaps else "")


def ticks(latest: Sequence[RunOrGap]) -> list[Tick]:
    """The latest runs and gaps at equal distances, the newest at the right."""
    shown = list(latest)[:_PLACES]
    return [Tick(1 - (place + 0.5) / _PLACES, kind_of(each), _title(each)) for place, each in enumerate(shown)]


def kind_of(entry: RunOrGap) -> str:
    """The class of a mark."""
    return str(entry.status) if isinstance(entry, Gap) else _KINDS.get(RunStatus(entry.status), "run")


def gap_text(gap: Gap) -> str:
    return _GAP_TEXTS.get(str(gap.reason), str(gap.reason))


def _title(entry: RunOrGap) -> str:
    when = _when(entry.scheduled_at)
    if isinstance(entry, Gap):
        return f"{when}: {number(entry.count)} {'ticks' if entry.count > 1 else 'tick'} {gap_text(entry)}"
    took = "" if entry.duration_ms is None else f", {milliseconds(entry.duration_ms)}"
    return f"{when}: {entry.status} ({entry.reason}){took}{': ' + entry.error[:200] if entry.error else ''}"


def _when(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M:%S UTC")


def durations(latest: Sequence[RunOrGap]) -> Durations:
    """Of those of the latest runs that have ended."""
    ended = [(run, run.duration_ms) for run in reversed(latest) if isinstance(run, Run) and run.duration_ms is not None]
    bars = [Bar(_title(run), (Part(kind_of(run), took),)) for run, took in ended]
    values = sorted(took for _, took in ended)
    return Durations(bars, [(f"p{share}", _percentile(values, share)) for share in _PERCENTILES] if values else [])


def _percentile(values: Sequence[float], share: int) -> float:
    """The nearest of the values: of a few, none between two."""
    return values[max(0, -(-len(values) * share // 100) - 1)]
