"""`evertick bench drain`, `hot-second`, `steady` and `lag`: how fast and how punctually runs come about."""

from typing import Annotated

import typer

from evertick.bench import (
    drain as drain_scenario,
    hot_second as hot_second_scenario,
    lag as lag_scenario,
    steady as steady_scenario,
)
from evertick.bench.server_lifetime import Place
from evertick.cli.bench.options import (
    MOST,
    AsJson,
    Concurrency,
    DatabaseUrl,
    DataDir,
    Jobs,
    PayloadBytes,
    Rules,
    Seconds,
    Seed,
    Workers,
    perform,
)


def drain(
    *,
    runs: Annotated[int, typer.Option(min=1, max=MOST, help="How many runs are ready.")] = 500_000,
    payload_bytes: PayloadBytes = 300,
    workers: Workers = 1,
    concurrency: Concurrency = None,
    seed: Seed = 1,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """How fast workers run what is ready: runs that do nothing, from the first lease to the last outcome.

    Example: evertick bench drain --runs 100000 --workers 1 --json
    """
    settings = drain_scenario.Settings(runs, payload_bytes, workers, concurrency, seed)
    perform(drain_scenario.SCENARIO, settings, Place(database_url, data_dir), as_json=as_json)


def hot_second(
    *,
    jobs: Jobs = 1_000_000,
    due: Annotated[int, typer.Option(min=1, max=MOST, help="How many of them are due at one instant.")] = 500_000,
    rules: Rules = 1_000,
    payload_bytes: PayloadBytes = 300,
    workers: Workers = 1,
    concurrency: Concurrency = None,
    seed: Seed = 1,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """How fast very many runs come about that are due at one instant, from that instant to the last outcome.

    Example: evertick bench hot-second --jobs 200000 --due 100000 --json
    """
    if due > jobs:
        raise typer.BadParameter("--due must not be more than --jobs")
    settings = hot_second_scenario.Settings(jobs, due, rules, payload_bytes, workers, concurrency, seed)
    perform(hot_second_scenario.SCENARIO, settings, Place(database_url, data_dir), as_json=as_json)


def steady(
    *,
    jobs: Jobs = 10_000_000,
    rate: Annotated[int, typer.Option(min=1, max=100_000, help="How many of them fire each second.")] = 2_800,
    seconds: Seconds = 300,
    spread: Annotated[
        bool, typer.Option("--spread/--at-once", help="Due all over each second, by jitter; or all as it begins.")
    ] = True,
    payload_bytes: PayloadBytes = 100,
    workers: Workers = 1,
    concurrency: Concurrency = None,
    seed: Seed = 1,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """How punctual very many jobs are that fire again and again, evenly over the seconds.

    Example: evertick bench steady --jobs 1000000 --rate 1000 --seconds 60 --json
    """
    if rate > jobs:
        raise typer.BadParameter("--rate must not be more than --jobs: no job fires more than once a second")
    settings = steady_scenario.Settings(jobs, rate, seconds, spread, payload_bytes, workers, concurrency, seed)
    perform(steady_scenario.SCENARIO, settings, Place(database_url, data_dir), as_json=as_json)


def lag(
    *,
    jobs: Annotated[int, typer.Option(min=1, max=1_000_000, help="One-offs, and as many that run at once.")] = 2_000,
    seconds: Seconds = 20,
    seed: Seed = 1,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """How punctual runs are on an idle system: one-offs at their instants, then jobs that are to run now.

    Example: evertick bench lag --jobs 2000 --seconds 20 --json
    """
    settings = lag_scenario.Settings(jobs, seconds, seed)
    perform(lag_scenario.SCENARIO, settings, Place(database_url, data_dir), as_json=as_json)
