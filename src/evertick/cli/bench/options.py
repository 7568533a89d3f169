"""Options that all measurements on a database share, and what they do with them."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from evertick.bench.measuring import S, Scenario, is_sound, measure
from evertick.bench.server_lifetime import Place
from evertick.cli.bench.showing import show, watched
from evertick.cli.exit_codes import Exit
from evertick.cli.failures import reported
from evertick.cli.output import print_json

DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database-url",
        metavar="URL",
        help="Measure on this server, in a database that is made for it and dropped afterwards.",
        show_default=False,
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="Measure on the embedded server in this directory, which stays. [dim](a temporary one)[/dim]",
        show_default=False,
    ),
]
MOST = 50_000_000

Jobs = Annotated[int, typer.Option(min=1, max=MOST, help="How many jobs there are.")]
Rules = Annotated[int, typer.Option(min=1, max=100_000, help="How many rules the jobs that are not due share.")]
PayloadBytes = Annotated[int, typer.Option(min=0, max=60_000, help="Size of each job's payload.")]
Seconds = Annotated[float, typer.Option(min=1, max=86_400, help="For how long.")]
Workers = Annotated[int, typer.Option(min=1, max=64, help="Worker processes.")]
Concurrency = Annotated[
    int | None,
    typer.Option(min=1, max=10_000, help="Runs at a time in each worker. [dim](the product's own)[/dim]"),
]
Seed = Annotated[int, typer.Option(help="Chooses the load; the same seed gives the same load.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


def perform(
    scenario: Scenario[S],
    settings: S,
    place: Place,
    *,
    as_json: bool,
    also: Callable[[dict[str, Any]], None] | None = None,
) -> None:
    """Measure, show, do what `also` says with the result, and fail where something is missing or was done twice."""
    if place.database_url is not None and place.data_dir is not None:
        raise typer.BadParameter("--database-url and --data-dir exclude each other")
    with reported(), watched() as progress:
        result: dict[str, Any] = measure(scenario, settings, place, progress)
    if as_json:
        print_json(result)
    else:
        show(result)
    if also is not None:
        also(result)
    if not is_sound(result):
        typer.echo("Error: runs are missing, or were started more than once", err=True)
        raise typer.Exit(Exit.FAILED)
