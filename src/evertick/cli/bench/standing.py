"""`evertick bench load` and `idle`: jobs that come and stand there."""

from typing import Annotated

import typer

from evertick.bench import idle as idle_scenario, load as load_scenario
from evertick.bench.server_lifetime import Place
from evertick.cli.bench.options import AsJson, DatabaseUrl, DataDir, Jobs, Rules, Seconds, Seed, Workers, perform


def load(
    *,
    jobs: Jobs = 1_000_000,
    rules: Rules = 1_000,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the jobs: with --database-url, in a new database.")
    ] = False,
    seed: Seed = 1,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """How fast jobs are created by the thousand, and how many bytes each takes.

    Example: evertick bench load --jobs 1000000 --data-dir ./bench-data --json
    """
    if keep and database_url is None and data_dir is None:
        raise typer.BadParameter("--keep needs --database-url or --data-dir: what is temporary is removed")
    settings = load_scenario.Settings(jobs, rules, seed)
    perform(load_scenario.SCENARIO, settings, Place(database_url, data_dir, keep), as_json=as_json)


def idle(
    *,
    jobs: Jobs = 100_000,
    seconds: Seconds = 60,
    rules: Rules = 1_000,
    workers: Workers = 1,
    calm_seconds: Annotated[float, typer.Option(min=0, max=3600, help="To wait before, for all to calm down.")] = 15,
    seed: Seed = 1,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """What Evertick costs while nothing is due: statements each second, and CPU of each process.

    Example: evertick bench idle --jobs 1000000 --seconds 60 --json
    """
    settings = idle_scenario.Settings(jobs, seconds, rules, workers, calm_seconds, seed)
    perform(idle_scenario.SCENARIO, settings, Place(database_url, data_dir), as_json=as_json)
