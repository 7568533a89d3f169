"""`evertick runs`: what ran, what runs, and what did not."""

from typing import Annotated

import typer
from msgspec.structs import asdict

from evertick.cli.parsing import EXAMPLE_INSTANT, parse_instant
from evertick.cli.options import AsJson, Limit
from evertick.cli.output import mention_more
from evertick.cli.output import print_fields, print_json, print_rows
from evertick.cli.connection import ConnectionOptions, call, connection_options
from evertick.cli.commands.runs import RUN_COLUMNS, duration, run_row
from evertick.cli.commands.runs import tail
from evertick.cli.backend import RunFilter
from evertick.domain.states import GapStatus, RunStatus

app = typer.Typer(no_args_is_help=True, help="List, follow, show, cancel and replay runs.", rich_markup_mode="rich")
app.command("tail")(tail)

RunId = Annotated[str, typer.Argument(metavar="RUN", help="Its id, as `runs list` shows it.")]

_STATUSES: dict[str, RunStatus | GapStatus] = {str(status): status for status in (*RunStatus, *GapStatus)}


def _status(value: str | None) -> str | None:
    if value is not None and value not in _STATUSES:
        raise typer.BadParameter(f"must be one of {', '.join(_STATUSES)}")
    return value


@app.command("list")
@connection_options
def list_runs(
    place: ConnectionOptions,
    *,
    job: Annotated[str | None, typer.Option("--job", metavar="JOB", help="Of this job, with its gaps.")] = None,
    status: Annotated[str | None, typer.Option(callback=_status, help=f"Only these: {', '.join(_STATUSES)}.")] = None,
    from_at: Annotated[
        str | None, typer.Option("--from", metavar="INSTANT", help=f"Fire times from {EXAMPLE_INSTANT} on.")
    ] = None,
    to_at: Annotated[str | None, typer.Option("--to", metavar="INSTANT", help="Fire times before this.")] = None,
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """List runs, the newest first. With --job, the ticks that did not run stand in their place.

    [bold]Examples[/bold]

      evertick runs list --job send-weekly-report

      evertick runs list --status dead --from 2026-06-01T00:00:00Z --json
    """
    only = None if status is None else _STATUSES[status]
    if job is None and isinstance(only, GapStatus):
        raise typer.BadParameter("ticks that did not run are listed by --job")
    wanted = RunFilter(job, only, parse_instant("--from", from_at), parse_instant("--to", to_at))
    found, is_more = call(place, lambda service: service.list_runs(wanted, limit))
    if as_json:
        print_json(found)
    else:
        print_rows(RUN_COLUMNS, map(run_row, found), none="No runs.")
    mention_more(is_more=is_more)


@app.command()
@connection_options
def show(place: ConnectionOptions, run: RunId, *, as_json: AsJson = False) -> None:
    """Show a run with all its attempts.

    [bold]Example[/bold]

      evertick runs show run_…
    """
    detail = call(place, lambda service: service.get_run(run))
    if as_json:
        print_json(detail)
        return
    print_fields(asdict(detail.run).items())
    typer.echo()
    rows = [
        (each.attempt, each.status, each.started_at, duration(each.duration_ms), each.worker_id, each.error)
        for each in detail.attempts
    ]
    columns = ("attempt", "status", "started (UTC)", "took", "worker", "error")
    print_rows(columns, rows, none="No attempt yet.")


@app.command()
@connection_options
def cancel(place: ConnectionOptions, run: RunId, *, as_json: AsJson = False) -> None:
    """End a run: a handler at work is told to stop, and no attempt follows.

    [bold]Example[/bold]

      evertick runs cancel run_…
    """
    detail = call(place, lambda service: service.cancel_run(run))
    if as_json:
        print_json(detail)
    else:
        typer.echo(f"{run} is cancelled.")


@app.command()
@connection_options
def replay(place: ConnectionOptions, run: RunId, *, as_json: AsJson = False) -> None:
    """Run a finished run again, as a new run with the same payload.

    [bold]Example[/bold]

      evertick runs replay run_…
    """
    run_id = call(place, lambda service: service.replay_run(run))
    if as_json:
        print_json({"run_id": run_id})
    else:
        typer.echo(f"{run_id} repeats it.")
