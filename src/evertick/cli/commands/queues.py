"""`evertick queues`: which queues there are, how much of each runs at once, and how much waits."""

from operator import attrgetter
from typing import Annotated

import typer
from msgspec.structs import asdict

from evertick.cli.connection import Backend, ConnectionOptions, call, connection_options
from evertick.cli.options import Limit, optional
from evertick.cli.output import print_document, print_listing
from evertick.contract.workers import Queue

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
        ("queue", "max running", "max ready", "ready", "oldest due", "full"),
        attrgetter("name", "max_running", "max_ready", "ready", "oldest_due_at", "is_full"),
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
        str | None,
        optional("--max-running", "How many runs at once, in all workers together.", metavar="NUMBER|none"),
    ] = None,
    max_ready: Annotated[
        int | None,
        optional("--max-ready", "How many runs may wait. While so many do, its jobs do not fire.", metavar="NUMBER"),
    ] = None,
) -> None:
    """Limit how many runs of a queue run at once, and how many wait. What is left out stays as it is.

    [bold]Examples[/bold]

      evertick queues edit reports --max-running 5

      evertick queues edit reports --max-running none

      evertick queues edit reports --max-ready 10000
    """
    cap = None if max_running is None else _max_running(max_running)

    async def change(backend: Backend) -> Queue:
        found = await backend.find_queue(queue)
        known = Queue(name=queue, max_running=None) if found is None else found
        return await backend.cap_queue(
            queue,
            known.max_running if max_running is None else cap,
            known.max_ready if max_ready is None else max_ready,
        )

    print_document(asdict(call(connection, change)), as_json=connection.as_json)
