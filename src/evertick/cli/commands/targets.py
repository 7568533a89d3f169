"""`evertick targets`: hosts of HTTP targets that failed lately or have a rate limit, and their circuit breakers."""

from typing import Annotated

from msgspec.structs import asdict

from evertick.cli.connection import ConnectionOptions, call, connection_options
from evertick.cli.options import Limit, limit_option, read_limits
from evertick.cli.output import print_document, print_listing, print_result
from evertick.cli.signatures import Argument, CommandGroup
from evertick.contract.target_hosts import TargetHost

app = CommandGroup(help="List, limit and reset target hosts.")


@app.add("list")
@connection_options
def list_targets(connection: ConnectionOptions, *, limit: Limit = 50) -> None:
    """List the hosts and connections that failed lately or have a limit. Nothing goes to one that is not closed.

    Example

      evertick targets list
    """
    print_listing(
        call(connection, lambda backend: backend.list_targets(limit)),
        ("host", "circuit", "since (UTC)", "failed", "next probe (UTC)", "rate limit", "last error"),
        _row,
        empty="No target host failed lately.",
        as_json=connection.as_json,
    )


@app.add()
@connection_options
def edit(
    connection: ConnectionOptions,
    host: Annotated[
        str, Argument(metavar="HOST", help="A host, with its port unless that is 443; or type:connection.")
    ],
    *,
    rate_limit: Annotated[str, limit_option("--rate-limit", "How many deliveries per second, from all dispatchers.")],
    rate_burst: Annotated[str | None, limit_option("--rate-burst", "How many at once after a pause.")] = None,
) -> None:
    """Limit how many deliveries a host gets per second. Others are deferred, and use up no attempt.

    Examples

      evertick targets edit api.example.com --rate-limit 50

      evertick targets edit api.example.com --rate-limit none
    """
    limits = read_limits(rate_limit=rate_limit, rate_burst=rate_burst)
    changed = call(connection, lambda backend: backend.limit_target(host, limits))
    print_document(asdict(changed), as_json=connection.as_json)


@app.add()
@connection_options
def reset(
    connection: ConnectionOptions,
    host: Annotated[str, Argument(metavar="HOST", help="A host, as `targets list` shows it.")],
) -> None:
    """Close the circuit of a host, so that deliveries to it are made again.

    Example

      evertick targets reset api.example.com
    """
    done = call(connection, lambda backend: backend.reset_target(host))
    print_result(done, f"The circuit of {done.host} is closed.", as_json=connection.as_json)


def _row(host: TargetHost) -> tuple[object, ...]:
    failed = f"{host.failures} of {host.calls}"
    return host.host, host.state, host.since, failed, host.next_probe_at, host.rate_limit, host.last_error
