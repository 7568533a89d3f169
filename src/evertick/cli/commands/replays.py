"""`evertick replays`: replays of many dead letters, which `evertick dead-letters replay` starts."""

from operator import attrgetter
from typing import Annotated

from msgspec.structs import asdict

from evertick.cli.connection import ConnectionOptions, call, connection_options
from evertick.cli.options import Limit
from evertick.cli.output import print_document, print_listing, print_result
from evertick.cli.signatures import Argument, CommandGroup
from evertick.contract.runs import Replay

app = CommandGroup(help="List, show and cancel replays.")

ReplayId = Annotated[str, Argument(metavar="REPLAY", help="Id of the replay, as `replays list` shows it.")]


@app.add("list")
@connection_options
def list_replays(connection: ConnectionOptions, *, limit: Limit = 50) -> None:
    """List replays, the newest first.

    Example

      evertick replays list
    """
    print_listing(
        call(connection, lambda backend: backend.list_replays(limit)),
        ("created (UTC)", "replay", "status", "replayed", "looked at", "rate", "by"),
        attrgetter("created_at", "replay_id", "status", "replayed", "looked_at", "rate_per_second", "created_by"),
        empty="No replays.",
        as_json=connection.as_json,
    )


@app.add()
@connection_options
def show(connection: ConnectionOptions, replay: ReplayId) -> None:
    """Show a replay: its filter, how many runs it has made, and how many dead letters are left.

    Example

      evertick replays show rpl_…
    """
    print_document(_document(call(connection, lambda backend: backend.get_replay(replay))), as_json=connection.as_json)


@app.add()
@connection_options
def cancel(connection: ConnectionOptions, replay: ReplayId) -> None:
    """Cancel a replay. Runs that it has made stay, and so do the other dead letters.

    Example

      evertick replays cancel rpl_…
    """
    cancelled = call(connection, lambda backend: backend.cancel_replay(replay))
    text = f"{replay} is cancelled: it replayed {cancelled.replayed:,}."
    print_result(cancelled, text, as_json=connection.as_json)


def _document(replay: Replay) -> dict[str, object]:
    chosen = {name: value for name, value in asdict(replay.filter).items() if value is not None}
    return asdict(replay) | {"filter": {name: str(value) for name, value in chosen.items()}}
