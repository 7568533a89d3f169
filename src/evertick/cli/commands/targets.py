"""`evertick targets`: hosts of HTTP targets that failed lately, and their circuit breakers."""

from typing import Annotated

import typer

from evertick.cli.connection import ConnectionOptions, call, connection_options
from evertick.cli.options import Limit
from evertick.cli.output import print_listing, print_result
from evertick.contract.target_hosts import TargetHost

app = typer.Typer(no_args_is_help=True, help="List failing target hosts, and reset them.", rich_markup_mode="rich")


@app.command("list")
@connection_options
def list_targets(connection: ConnectionOptions, *, limit: Limit = 50) -> None:
    """List the hosts of HTTP targets that failed lately. Deliveries to a host that is not closed are deferred.

    [bold]Example[/bold]

      evertick targets list
    """
    print_listing(
        call(connection, lambda backend: backend.list_targets(limit)),
        ("host", "circuit", "since (UTC)", "failed", "next probe (UTC)", "last error"),
        _row,
        empty="No target host failed lately.",
        as_json=connection.as_json,
    )


@app.command()
@connection_options
def reset(
    connection: ConnectionOptions,
    host: Annotated[str, typer.Argument(metavar="HOST", help="A host, as `targets list` shows it.")],
) -> None:
    """Close the circuit of a host, so that deliveries to it are made again.

    [bold]Example[/bold]

      evertick targets reset api.example.com
    """
    done = call(connection, lambda backend: backend.reset_target(host))
    print_result(done, f"The circuit of {done.host} is closed.", as_json=connection.as_json)


def _row(host: TargetHost) -> tuple[object, ...]:
    failed = f"{host.failures} of {host.calls}"
    return host.host, host.state, host.since, failed, host.next_probe_at, host.last_error
