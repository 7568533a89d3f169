"""`evertick bench schedules`."""

import json

import typer
from rich.console import Console
from rich.table import Table

from evertick.bench.scenarios import schedules as scenario


def schedules(
    seconds: float = typer.Option(0.5, min=0.01, max=60, help="CPU seconds spent on each common schedule."),
    jobs: int = typer.Option(100_000, min=1, max=5_000_000, help="Timers that are due at one instant."),
    rules: int = typer.Option(1_000, min=1, max=86_400, help="Distinct rules that these timers share."),
    seed: int = typer.Option(1, help="Chooses the load; the same seed gives the same load."),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object instead of tables."),
) -> None:
    """How fast the next fire time is computed, and how fast many due timers that share rules are planned.

    Example: evertick bench schedules --jobs 100000 --rules 1000 --json
    """
    settings = scenario.Settings(seconds, jobs, rules, seed)
    with Console(stderr=True).status("starting") as status:
        result = scenario.run(settings, status.update)
    if as_json:
        typer.echo(json.dumps(result, indent=2))
    else:
        _show(result)


def _show(result: dict[str, object]) -> None:
    console = Console()
    table = Table("schedule", "next fire times per CPU second", title="One schedule, tick after tick")
    table.columns[1].justify = "right"
    rates = result["next_fires_per_second"]
    assert isinstance(rates, dict)
    for name, rate in rates.items():
        table.add_row(name, f"{rate:,}")
    console.print(table)
    console.print(
        f"{result['runs']:,} due timers in {result['plans']:,} plans: "
        f"[bold]{result['rate_per_second']:,}[/bold] timers planned per CPU second"
    )
