"""`evertick bench growth`, `age` and `floor`: what size and age do to it, and what the database alone could do."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from evertick.bench import age as age_scenario, floor as floor_scenario, growth as growth_scenario, plot
from evertick.bench.server_lifetime import Place
from evertick.cli.bench.options import (
    MOST,
    AsJson,
    Concurrency,
    DatabaseUrl,
    DataDir,
    PayloadBytes,
    Rules,
    Seed,
    Workers,
    perform,
)


def growth(
    *,
    sizes: Annotated[
        str, typer.Option(metavar="N,N,…", help="How many jobs stand there at each point, from few to many.")
    ] = "100000,1000000,10000000",
    due: Annotated[int, typer.Option(min=1, max=MOST, help="How many others are due at one instant then.")] = 100_000,
    svg: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            dir_okay=False,
            writable=True,
            help="Also draw the costs into this file.",
            show_default=False,
        ),
    ] = None,
    rules: Rules = 1_000,
    payload_bytes: PayloadBytes = 300,
    workers: Workers = 1,
    concurrency: Concurrency = None,
    seed: Seed = 1,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """What loading, running, looking up and storing cost with more and more jobs in one database.

    Example: evertick bench growth --sizes 100000,1000000 --due 100000 --svg growth.svg --json
    """

    def draw(result: Mapping[str, Any]) -> None:
        if svg is not None:
            picture = plot.draw("What more jobs cost", "jobs", growth_scenario.panels(result["points"]))
            svg.write_text(picture, encoding="utf-8")

    settings = growth_scenario.Settings(_counts(sizes), due, rules, payload_bytes, workers, concurrency, seed)
    perform(growth_scenario.SCENARIO, settings, Place(database_url, data_dir), as_json=as_json, also=draw)


def _counts(text: str) -> tuple[int, ...]:
    """Numbers with commas in between, each greater than the one before."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise typer.BadParameter("--sizes must be numbers with commas in between")
    counts = tuple(int(part) for part in parts)
    if any(later <= earlier for earlier, later in zip((0, *counts), counts, strict=False)) or counts[-1] > MOST:
        raise typer.BadParameter(f"--sizes must grow, from 1 to {MOST} at most")
    return counts


def age(
    *,
    runs: Annotated[int, typer.Option(min=1, max=1_000_000_000, help="How many runs in all, in whole steps.")] = (
        10_000_000
    ),
    step: Annotated[int, typer.Option(min=1, max=MOST, help="How many jobs there are; each runs once a step.")] = (
        1_000_000
    ),
    pin_seconds: Annotated[
        float,
        typer.Option(min=0, max=86_400, help="Hold a snapshot for so long during an extra step; 0: no such step."),
    ] = 0,
    payload_bytes: PayloadBytes = 300,
    workers: Workers = 1,
    concurrency: Concurrency = None,
    seed: Seed = 1,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Whether late runs cost what the first did: the same jobs run again and again, on tables that age.

    Example: evertick bench age --runs 1000000 --step 100000 --pin-seconds 60 --json
    """
    settings = age_scenario.Settings(runs, step, pin_seconds, payload_bytes, workers, concurrency, seed)
    perform(age_scenario.SCENARIO, settings, Place(database_url, data_dir), as_json=as_json)


def floor(
    *,
    runs: Annotated[int, typer.Option(min=1, max=MOST, help="How many runs' rows are written.")] = 500_000,
    seed: Seed = 1,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """How fast the database takes the rows that runs leave, if nothing else is to be done: by bare COPY and UPDATE.

    Example: evertick bench floor --runs 500000 --json
    """
    settings = floor_scenario.Settings(runs, seed)
    perform(floor_scenario.SCENARIO, settings, Place(database_url, data_dir), as_json=as_json)
