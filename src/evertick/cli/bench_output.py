"""Prints the results of `evertick bench` as tables."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

from evertick.cli.output import plain_console, print_fields

_NAMES = {"rate_per_second": "per second", "lag_ms": "lag in ms"}


def print_result(result: Mapping[str, Any]) -> None:
    """All fields of a result, one on each line."""
    print_fields(
        line for name, value in result.items() for line in _lines(_NAMES.get(name, name.replace("_", " ")), value)
    )


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


def print_schedules(result: Mapping[str, Any]) -> None:
    table = Table("schedule", "next fire times per CPU second")
    table.columns[1].justify = "right"
    for name, rate in result["next_fires_per_second"].items():
        table.add_row(name, f"{rate:,}")
    console = plain_console()
    console.print(table)
    console.print(
        f"{result['runs']:,} due timers in {result['plans']:,} plans: "
        f"[bold]{result['rate_per_second']:,}[/bold] timers planned per CPU second"
    )
