"""`evertick queues`: which queues there are, and how much of each runs at once."""

from operator import attrgetter
from typing import Annotated

import typer
from msgspec.structs import asdict

from evertick.cli.connection import ConnectionOptions, call, connection_options
from evertick.cli.options import Limit
from evertick.cli.output import print_document, print_listing

app = typer.Typer(no_args_is_help=True, help="List and limit queues.", rich_markup_mode="rich")

NO_LIMIT = "none"


def _max_running(text: str) -> int | None:
    if text == NO_LIMIT:
        return None
    if not text.isdecimal():
        raise typer.BadParameter(f"{text!r} is neither a number nor {NO_LIMIT!r}")
    return int(text)


@app.command("list")
@connection_options
def list_queues(connection: ConnectionOptions, *, limit: Limit = 50) -> None:
    """List queues by name.

    [bold]Example[/bold]

      evertick queues list
    """
    print_listing(
        call(connection, lambda backend: backend.list_queues(limit)),
        ("queue", "max running"),
        attrgetter("name", "max_running"),
        empty="No queues.",
        as_json=connection.as_json,
    )


@app.command()
@connection_options
def edit(
    connection: ConnectionOptions,
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="Its name.")],
    *,
    max_running: Annotated[
        str,
        typer.Option("--max-running", metavar="NUMBER|none", help="How many runs at once, in all workers together."),
    ],
) -> None:
    """Limit how many runs of a queue run at once. Others wait in the queue.

    [bold]Examples[/bold]

      evertick queues edit reports --max-running 5

      evertick queues edit reports --max-running none
    """
    cap = _max_running(max_running)
    changed = call(connection, lambda backend: backend.cap_queue(queue, cap))
    print_document(asdict(changed), as_json=connection.as_json)
