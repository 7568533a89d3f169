"""`evertick queues`: which queues there are, and what limits them."""

from operator import attrgetter
from typing import Annotated

import typer
from msgspec.structs import asdict

from evertick.cli.connection import ConnectionOptions, call, connection_options
from evertick.cli.options import Limit, limit_option, read_limits
from evertick.cli.output import print_document, print_listing

app = typer.Typer(no_args_is_help=True, help="List and limit queues.", rich_markup_mode="rich")


@app.command("list")
@connection_options
def list_queues(connection: ConnectionOptions, *, limit: Limit = 50) -> None:
    """List queues by name.

    [bold]Example[/bold]

      evertick queues list
    """
    print_listing(
        call(connection, lambda backend: backend.list_queues(limit)),
        ("queue", "max running", "rate limit", "rate burst"),
        attrgetter("name", "max_running", "rate_limit", "rate_burst"),
        empty="No queues.",
        as_json=connection.as_json,
    )


@app.command()
@connection_options
def edit(
    connection: ConnectionOptions,
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="Its name.")],
    *,
    max_running: Annotated[str | None, limit_option("--max-running", "How many run at once, in all workers.")] = None,
    rate_limit: Annotated[
        str | None, limit_option("--rate-limit", "How many start per second, in all workers.")
    ] = None,
    rate_burst: Annotated[
        str | None, limit_option("--rate-burst", "How many of them start at once after a pause.")
    ] = None,
) -> None:
    """Limit how many runs of a queue run at once, or start per second. Others wait in the queue.

    [bold]Examples[/bold]

      evertick queues edit reports --max-running 5

      evertick queues edit reports --rate-limit 0.5 --max-running none
    """
    changes = read_limits(max_running=max_running, rate_limit=rate_limit, rate_burst=rate_burst)
    changed = call(connection, lambda backend: backend.edit_queue(queue, changes))
    print_document(asdict(changed), as_json=connection.as_json)
