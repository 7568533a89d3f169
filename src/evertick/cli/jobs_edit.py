"""`evertick jobs edit`: changes some fields of a job and leaves the others."""

from typing import Annotated, Any

import typer

from evertick.cli.parsing import parse_fields, parse_json, parse_pairs
from evertick.cli.options import AsJson
from evertick.cli.output import print_json, print_line, utc
from evertick.cli.connection import ConnectionOptions, call, connection_options

JobName = Annotated[str, typer.Argument(metavar="JOB", help="Its id or its name.")]


@connection_options
def edit(
    place: ConnectionOptions,
    job: JobName,
    *,
    schedule: Annotated[str | None, typer.Option(metavar="SCHEDULE", help="When it runs, from now on.")] = None,
    timezone: Annotated[str | None, typer.Option("--timezone", "-z", metavar="ZONE", help="IANA name.")] = None,
    payload: Annotated[str | None, typer.Option(metavar="JSON", help="What each run is given.")] = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="NAME:VALUE", help="In place of all its labels; as often as wanted.")
    ] = None,
    fields: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Any field of a job; null resets it to its default."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Change fields of a job. What was fired already keeps the version that it was fired with.

    [bold]Examples[/bold]

      evertick jobs edit send-weekly-report --schedule "0 8 * * 1"

      evertick jobs edit send-weekly-report --set max_retries=5 --set timeout_seconds=null
    """
    changed: dict[str, Any] = {"schedule": schedule, "timezone": timezone}
    changed = {name: value for name, value in changed.items() if value is not None}
    if payload is not None:
        changed["payload"] = parse_json("--payload", payload)
    if label:
        changed["labels"] = parse_pairs("--label", label, ":")
    changed |= parse_fields("--set", fields or ())
    if not changed:
        raise typer.BadParameter("there is nothing to change: print_line --schedule, --set or another field")
    edited = call(place, lambda service: service.edit_job(job, changed))
    if as_json:
        print_json(edited)
    else:
        following = f"next run at {utc(edited.next_run_at)}" if edited.next_run_at else "no run is scheduled"
        print_line(f"{edited.name} is at version {edited.spec_version}: {following}.")
