"""`evertick events`: reads the event stream, and says where it is sent."""

import asyncio
from typing import Annotated, Any

import click
from msgspec.structs import asdict

from evertick.cli.connection import Backend, ConnectionOptions, call, connection_options
from evertick.cli.options import parse_fields, parse_pairs
from evertick.cli.output import print_document, print_json, print_line, print_result, utc
from evertick.cli.signatures import Argument, CommandGroup, Option
from evertick.contract.annotations import MAX_PER_PAGE
from evertick.contract.broker_targets import BrokerType
from evertick.contract.events import EVENT_PREFIX, Event, EventStream
from evertick.domain.events import EventType
from evertick.runtime.process import stop_signal

app = CommandGroup(help="Read events: finished runs, gaps, changes of jobs; set where they are sent.")

Types = Annotated[list[EventType] | None, Option("--type", help="Only events of this type. Can be repeated.")]


@app.add("list")
@connection_options
def list_events(
    connection: ConnectionOptions,
    *,
    cursor: Annotated[str | None, Option(metavar="ID", help="Begin after the event of this id.")] = None,
    kind: Types = None,
    follow: Annotated[bool, Option("--follow", "-f", help="Go on with events as they happen.")] = False,
) -> None:
    """Show events, oldest first, one on each line. With --json a line is the whole CloudEvent.

    Examples

      evertick events list --follow --type run.finished

      evertick events list --json --cursor 1781532000000000 >> events.ndjson
    """

    async def show(backend: Backend) -> None:
        after = cursor
        while True:
            found = await backend.read_events(after, kind or (), MAX_PER_PAGE)
            for event in found.items:
                print_event(event, as_json=connection.as_json)
                after = event.id
            if not found.has_more:
                return

    async def show_all(backend: Backend) -> None:
        async for event in backend.follow_events(cursor, kind or ()):
            print_event(event, as_json=connection.as_json)

    async def show_until_stopped(backend: Backend) -> None:
        with stop_signal() as stopping:
            following = asyncio.ensure_future(show_all(backend))
            stopped = asyncio.ensure_future(stopping.wait())
            await asyncio.wait((following, stopped), return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            if following.done():
                following.result()  # it has no end but an error
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    call(connection, show_until_stopped if follow else show, waits=follow)


@app.add()
@connection_options
def stream(connection: ConnectionOptions) -> None:
    """Show the event stream: since when events are kept, where they are sent, and how far that came.

    Example

      evertick events stream
    """
    found = call(connection, lambda backend: backend.get_event_stream())
    print_document(_document(found), as_json=connection.as_json)


@app.add()
@connection_options
def switch_on(connection: ConnectionOptions) -> None:
    """Keep events from now on, to be read. They are sent nowhere.

    Example

      evertick events switch-on
    """
    found = call(connection, lambda backend: backend.put_event_stream({}))
    print_result(found, "Events are kept.", as_json=connection.as_json)


@app.add()
@connection_options
def set_sink(
    connection: ConnectionOptions,
    receiver: Annotated[
        str,
        Argument(metavar="URL|TYPE", help=f"URL for signed webhooks, or a type of broker: {', '.join(BrokerType)}."),
    ],
    *,
    settings: Annotated[
        list[str] | None,
        Option("--set", metavar="NAME=VALUE", help="Field of a broker's target. Can be repeated."),
    ] = None,
    header: Annotated[list[str] | None, Option(metavar="NAME:VALUE", help="Header. Can be repeated.")] = None,
    kind: Types = None,
    all_tenants: Annotated[
        bool, Option("--all-tenants", help="Send the events of all tenants. For the hosting tenant.")
    ] = False,
) -> None:
    """Keep events from now on, and send them as CloudEvents: to a URL in batches, to a broker one by one.

    Examples

      evertick events set-sink https://example.com/hooks/events --type run.finished --type gap.recorded

      evertick events set-sink kafka --set connection=warehouse --set topic=evertick-events
    """
    sink = _sink(receiver, parse_fields("--set", settings or ()))
    if header:
        sink["headers"] = parse_pairs("--header", header, ":")
    options: dict[str, Any] = {"sink": sink, "all_tenants": all_tenants}
    if kind:
        options["types"] = [str(each) for each in kind]
    found = call(connection, lambda backend: backend.put_event_stream(options))
    over = f" over connection {sink['connection']}" if "connection" in sink else ""
    print_result(found, f"Events go to {receiver}{over}.", as_json=connection.as_json)


@app.add()
@connection_options
def switch_off(connection: ConnectionOptions) -> None:
    """Keep no more events, and send none.

    Example

      evertick events switch-off
    """
    call(connection, lambda backend: backend.remove_event_stream())
    print_result({}, "No events are kept any more.", as_json=connection.as_json)


def _sink(receiver: str, settings: dict[str, Any]) -> dict[str, Any]:
    if receiver in set(BrokerType):
        return {"type": receiver, **settings}
    if "://" not in receiver:
        raise click.BadParameter(f"{receiver!r} is neither a URL nor one of {', '.join(BrokerType)}")
    if settings:
        raise click.BadParameter("--set is for brokers: a URL has no fields")
    return {"type": "http", "url": receiver}


def print_event(event: Event, *, as_json: bool) -> None:
    if as_json:
        print_json(event, indent=None)
        return
    data = event.data if isinstance(event.data, dict) else asdict(event.data)
    about = data.get("job_name") or event.subject or ""
    detail = data.get("status") or data.get("action") or ""
    line = (event.id, utc(event.time), event.type.removeprefix(EVENT_PREFIX), about, detail, data.get("error") or "")
    print_line("  ".join(str(part) for part in line if part))


def _document(found: EventStream) -> dict[str, Any]:
    return {**asdict(found), "status": None if found.status is None else asdict(found.status)}
