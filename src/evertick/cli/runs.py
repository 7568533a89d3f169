"""`evertick runs`: what ran, what runs, and what did not."""

from typing import Annotated

import typer

from evertick.cli.acting import DEFAULT_TENANT, Limit, TenantName, Where, act, gathered, job_id_of, mention_more
from evertick.cli.given import EXAMPLE_INSTANT, read_instant
from evertick.cli.options import AsJson, DatabaseUrl, DataDir
from evertick.cli.output import print_facts, print_json, print_rows
from evertick.cli.shapes import detail_shape, run_shape
from evertick.domain.schedule.english import counted
from evertick.domain.states import GapStatus, RunStatus
from evertick.usecases import requests, runs
from evertick.usecases.context import Tenant
from evertick.usecases.history import Entry, RunDetail, SkippedTicks

app = typer.Typer(no_args_is_help=True, help="List, show, cancel and replay runs.", rich_markup_mode="rich")

RunId = Annotated[str, typer.Argument(metavar="RUN", help="Its id, as `runs list` shows it.")]

_STATUSES: dict[str, RunStatus | GapStatus] = {str(status): status for status in (*RunStatus, *GapStatus)}


def _status(value: str | None) -> str | None:
    if value is not None and value not in _STATUSES:
        raise typer.BadParameter(f"must be one of {', '.join(_STATUSES)}")
    return value


@app.command("list")
def list_runs(
    *,
    job: Annotated[str | None, typer.Option("--job", metavar="JOB", help="Of this job, with its gaps.")] = None,
    status: Annotated[str | None, typer.Option(callback=_status, help=f"Only these: {', '.join(_STATUSES)}.")] = None,
    from_at: Annotated[
        str | None, typer.Option("--from", metavar="INSTANT", help=f"Fire times from {EXAMPLE_INSTANT} on.")
    ] = None,
    to_at: Annotated[str | None, typer.Option("--to", metavar="INSTANT", help="Fire times before this.")] = None,
    limit: Limit = 20,
    as_json: AsJson = False,
    tenant: TenantName = DEFAULT_TENANT,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """List runs, the newest first. With --job, the ticks that did not run stand in their place.

    [bold]Examples[/bold]

      evertick runs list --job send-weekly-report

      evertick runs list --status dead --from 2026-06-01T00:00:00Z --json
    """
    wanted = None if status is None else _STATUSES[status]
    if job is None and isinstance(wanted, GapStatus):
        raise typer.BadParameter("ticks that did not run are listed by --job")
    since, until = read_instant("--from", from_at), read_instant("--to", to_at)

    async def work(acting: Tenant) -> tuple[list[Entry], bool]:
        if job is not None:
            job_id = await job_id_of(acting, job)
            return await gathered(
                limit,
                lambda most, cursor: runs.job_runs(
                    acting, job_id, limit=most, cursor=cursor, status=wanted, from_at=since, to_at=until
                ),
            )
        assert not isinstance(wanted, GapStatus)
        found, is_more = await gathered(
            limit,
            lambda most, cursor: runs.tenant_runs(
                acting, limit=most, cursor=cursor, status=wanted, from_at=since, to_at=until
            ),
        )
        return list(found), is_more

    found, is_more = act(Where(database_url, data_dir, tenant), work)
    if as_json:
        print_json([run_shape(entry) for entry in found])
    else:
        _print_runs(found)
    mention_more(is_more=is_more)


@app.command()
def show(
    run: RunId,
    *,
    as_json: AsJson = False,
    tenant: TenantName = DEFAULT_TENANT,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Show a run with all its attempts.

    [bold]Example[/bold]

      evertick runs show run_…
    """

    async def work(acting: Tenant) -> RunDetail:
        return await runs.get_run(acting, run)

    detail = act(Where(database_url, data_dir, tenant), work)
    if as_json:
        print_json(detail_shape(detail))
        return
    print_facts(run_shape(detail.run).items())
    typer.echo()
    rows = [
        (each.attempt, each.status, each.started_at, _duration(each.duration_ms), each.worker_id, each.error)
        for each in detail.attempts
    ]
    columns = ("attempt", "status", "started (UTC)", "took", "worker", "error")
    print_rows(columns, rows, none="No attempt yet.")


@app.command()
def cancel(
    run: RunId,
    *,
    tenant: TenantName = DEFAULT_TENANT,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """End a run: a handler at work is told to stop, and no attempt follows.

    [bold]Example[/bold]

      evertick runs cancel run_…
    """

    async def work(acting: Tenant) -> None:
        await requests.cancel(acting, run)

    act(Where(database_url, data_dir, tenant), work)
    typer.echo(f"{run} is cancelled.")


@app.command()
def replay(
    run: RunId,
    *,
    as_json: AsJson = False,
    tenant: TenantName = DEFAULT_TENANT,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Run a finished run again, as a new run with the same payload.

    [bold]Example[/bold]

      evertick runs replay run_…
    """

    async def work(acting: Tenant) -> str:
        return await requests.replay(acting, run)

    run_id = act(Where(database_url, data_dir, tenant), work)
    if as_json:
        print_json({"run_id": run_id})
    else:
        typer.echo(f"{run_id} repeats it.")


def _print_runs(found: list[Entry]) -> None:
    rows = [_row(entry) for entry in found]
    columns = ("scheduled (UTC)", "run", "status", "reason", "attempt", "took", "error")
    print_rows(columns, rows, none="No runs.")


def _row(entry: Entry) -> tuple[object, ...]:
    if isinstance(entry, SkippedTicks):
        return entry.scheduled_at, counted(entry.count, "tick"), entry.status, entry.reason, None, None, None
    took = _duration(entry.duration_ms)
    return entry.scheduled_at, entry.run_id, entry.status, entry.reason, entry.attempt, took, entry.error


def _duration(milliseconds: int | None) -> str | None:
    return None if milliseconds is None else f"{milliseconds:,} ms"
