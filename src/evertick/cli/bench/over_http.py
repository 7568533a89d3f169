"""`evertick bench register` and `webhooks`: what comes in and goes out over HTTP."""

from typing import Annotated

import typer

from evertick.bench import register as register_scenario, webhooks as webhooks_scenario
from evertick.bench.server_lifetime import Place
from evertick.cli.bench.options import AsJson, DatabaseUrl, DataDir, Jobs, PayloadBytes, Seed, perform


def register(
    *,
    jobs: Jobs = 100_000,
    singles: Annotated[int, typer.Option(min=1, max=10_000_000, help="How many come one by one.")] = 20_000,
    connections: Annotated[int, typer.Option(min=1, max=10_000, help="Over how many connections these come.")] = 64,
    batch_connections: Annotated[int, typer.Option(min=1, max=64, help="And over how many the batches.")] = 2,
    payload_bytes: PayloadBytes = 300,
    seed: Seed = 1,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """How fast jobs come in over HTTP: in batches of 10,000, one by one, and by the Python client.

    Example: evertick bench register --jobs 100000 --connections 64 --json
    """
    settings = register_scenario.Settings(jobs, singles, connections, batch_connections, payload_bytes, seed)
    perform(register_scenario.SCENARIO, settings, Place(database_url, data_dir), as_json=as_json)


def webhooks(
    *,
    deliveries: Annotated[int, typer.Option(min=1, max=10_000_000, help="How many are due at one instant.")] = 20_000,
    hosts: Annotated[int, typer.Option(min=1, max=254, help="To how many hosts, all of them here.")] = 4,
    payload_bytes: PayloadBytes = 300,
    dispatchers: Annotated[int, typer.Option(min=1, max=64, help="Dispatcher processes.")] = 1,
    seed: Seed = 1,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """How fast webhooks are delivered that are due at one instant, to receivers here that answer at once.

    Example: evertick bench webhooks --deliveries 20000 --hosts 4 --json
    """
    settings = webhooks_scenario.Settings(deliveries, hosts, payload_bytes, dispatchers, seed)
    perform(webhooks_scenario.SCENARIO, settings, Place(database_url, data_dir), as_json=as_json)
