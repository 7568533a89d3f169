"""`evertick bench`: measures Evertick on this machine; a table for people, `--json` for machines."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from evertick.bench import plot
from evertick.bench.scenarios import (
    age,
    drain,
    floor,
    growth,
    hot_second,
    idle,
    lag,
    load,
    register,
    steady,
    webhooks,
)
from evertick.bench.server_lifetime import Place
from evertick.cli.bench.options import (
    COUNT_MAX,
    AsJson,
    DatabaseUrl,
    DataDir,
    command_of,
    number,
    perform,
    with_options,
)
from evertick.cli.bench.schedules import schedules

app = typer.Typer(
    no_args_is_help=True,
    help="Measure Evertick on this machine: real processes, on a database that is made for it and removed afterwards.",
)


def _check_due(settings: hot_second.Settings) -> None:
    if settings.due > settings.jobs:
        raise typer.BadParameter("--due must not be more than --jobs")


def _check_rate(settings: steady.Settings) -> None:
    if settings.rate > settings.jobs:
        raise typer.BadParameter("--rate must not be more than --jobs: no job fires more than once a second")


app.command("drain")(
    command_of(
        drain.SCENARIO,
        drain.Settings,
        """How fast workers run what is ready: runs that do nothing, from the first lease to the last outcome.

        Example: evertick bench drain --runs 100000 --workers 1 --json
        """,
        runs=number("How many runs are ready."),
    )
)
app.command("hot-second")(
    command_of(
        hot_second.SCENARIO,
        hot_second.Settings,
        """How fast very many runs come about that are due at one instant, from that instant to the last outcome.

        Example: evertick bench hot-second --jobs 200000 --due 100000 --json
        """,
        check=_check_due,
        due=number("How many of them are due at one instant."),
    )
)
app.command("steady")(
    command_of(
        steady.SCENARIO,
        steady.Settings,
        """How punctual very many jobs are that fire again and again, evenly over the seconds.

        Example: evertick bench steady --jobs 1000000 --rate 1000 --seconds 60 --json
        """,
        check=_check_rate,
        rate=number("How many of them fire each second.", most=100_000),
        spread=Annotated[
            bool, typer.Option("--spread/--at-once", help="Due all over each second, by jitter; or all as it begins.")
        ],
    )
)
app.command("lag")(
    command_of(
        lag.SCENARIO,
        lag.Settings,
        """How punctual runs are on an idle system: one-offs at their instants, then jobs that are to run now.

        Example: evertick bench lag --jobs 2000 --seconds 20 --json
        """,
        jobs=number("One-offs, and as many that run at once.", most=1_000_000),
    )
)
app.command("register")(
    command_of(
        register.SCENARIO,
        register.Settings,
        """How fast jobs come in over HTTP: in batches of 10,000, one by one, and by the Python client.

        Example: evertick bench register --jobs 100000 --connections 64 --json
        """,
        singles=number("How many come one by one.", most=10_000_000),
        connections=number("Over how many connections these come.", most=10_000),
        batch_connections=number("And over how many the batches.", most=64),
    )
)
app.command("webhooks")(
    command_of(
        webhooks.SCENARIO,
        webhooks.Settings,
        """How fast webhooks are delivered that are due at one instant, to receivers here that answer at once.

        Example: evertick bench webhooks --deliveries 20000 --hosts 4 --json
        """,
        deliveries=number("How many are due at one instant.", most=10_000_000),
        hosts=number("To how many hosts, all of them here.", most=254),
        dispatchers=number("Dispatcher processes.", most=64),
    )
)


@app.command("load")
@with_options(load.Settings)
def _load(
    *,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the jobs: with --database-url, in a new database.")
    ] = False,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """How fast jobs are created by the thousand, and how many bytes each takes.

    Example: evertick bench load --jobs 1000000 --data-dir ./bench-data --json
    """
    if keep and database_url is None and data_dir is None:
        raise typer.BadParameter("--keep needs --database-url or --data-dir: what is temporary is removed")
    perform(load.SCENARIO, load.Settings(**given), Place(database_url, data_dir, keep), as_json=as_json)


app.command("idle")(
    command_of(
        idle.SCENARIO,
        idle.Settings,
        """What Evertick costs while nothing is due: statements each second, and CPU of each process.

        Example: evertick bench idle --jobs 1000000 --seconds 60 --json
        """,
        calm_seconds=Annotated[float, typer.Option(min=0, max=3600, help="To wait before, for all to calm down.")],
    )
)


@app.command("growth")
@with_options(growth.Settings, due=number("How many others are due at one instant then."))
def _growth(
    *,
    sizes: Annotated[
        str, typer.Option(metavar="N,N,…", help="How many jobs stand there at each point, from few to many.")
    ] = ",".join(map(str, growth.Settings().sizes)),
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
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
    **given: Any,
) -> None:
    """What loading, running, looking up and storing cost with more and more jobs in one database.

    Example: evertick bench growth --sizes 100000,1000000 --due 100000 --svg growth.svg --json
    """

    def draw(result: Mapping[str, Any]) -> None:
        if svg is not None:
            picture = plot.draw("What more jobs cost", "jobs", growth.panels(result["points"]))
            svg.write_text(picture, encoding="utf-8")

    settings = growth.Settings(_counts(sizes), **given)
    perform(growth.SCENARIO, settings, Place(database_url, data_dir), as_json=as_json, also=draw)


def _counts(text: str) -> tuple[int, ...]:
    """Numbers with commas in between, each greater than the one before."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise typer.BadParameter("--sizes must be numbers with commas in between")
    counts = tuple(int(part) for part in parts)
    if any(later <= earlier for earlier, later in zip((0, *counts), counts, strict=False)) or counts[-1] > COUNT_MAX:
        raise typer.BadParameter(f"--sizes must grow, from 1 to {COUNT_MAX} at most")
    return counts


app.command("age")(
    command_of(
        age.SCENARIO,
        age.Settings,
        """Whether late runs cost what the first did: the same jobs run again and again, on tables that age.

        Example: evertick bench age --runs 1000000 --step 100000 --pin-seconds 60 --json
        """,
        runs=number("How many runs in all, in whole steps.", most=1_000_000_000),
        step=number("How many jobs there are; each runs once a step."),
        pin_seconds=Annotated[
            float,
            typer.Option(min=0, max=86_400, help="Hold a snapshot for so long during an extra step; 0: no such step."),
        ],
    )
)
app.command("floor")(
    command_of(
        floor.SCENARIO,
        floor.Settings,
        """How fast the database takes the rows that runs leave, if nothing else is to be done: by bare COPY and UPDATE.

        Example: evertick bench floor --runs 500000 --json
        """,
        runs=number("How many runs' rows are written."),
    )
)
app.command("schedules")(schedules)
