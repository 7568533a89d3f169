"""How measurements look: bars on stderr while they run, a table of figures afterwards."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress as Bars, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from evertick.bench.stage import Progress
from evertick.cli.output import print_facts

_NAMES = {"rate_per_second": "per second", "lag_ms": "lag in ms", "runs": "runs"}


class _Shown(Progress):
    """One bar for each thing that takes its time."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._task: TaskID | None = None

    def begin(self, what: str, total: float | None = None) -> None:
        if self._task is not None:
            self._bars.update(self._task, total=1, completed=1)
            self._bars.stop_task(self._task)
        self._task = self._bars.add_task(what, total=total)

    def reach(self, done: float) -> None:
        if self._task is not None:
            self._bars.update(self._task, completed=done)


@contextmanager
def watched() -> Iterator[Progress]:
    """Bars for people who watch, and nothing for a pipe or a log."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        yield _Shown(bars)


def show(result: Mapping[str, Any]) -> None:
    """The figures, then what they were measured on."""
    print_facts(_facts(result))


def _facts(result: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    for name, value in result.items():
        yield from _lines(_NAMES.get(name, name.replace("_", " ")), value)


def _lines(name: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        plain = {key: each for key, each in value.items() if not isinstance(each, Mapping)}
        yield name, "  ".join(f"{key} {_text(each)}" for key, each in plain.items())
        for key, each in value.items():
            if isinstance(each, Mapping):
                yield from _lines(f"{name}, {key.replace('_', ' ')}", each)
    elif isinstance(value, list) and value and isinstance(value[0], Mapping):
        for number, each in enumerate(value, start=1):
            yield from _lines(f"{name} {number}", each)
    else:
        yield name, _text(value)


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}"
