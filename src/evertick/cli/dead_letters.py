"""`evertick dead-letters`: runs whose attempts are used up, until they are replayed or dismissed."""

from typing import Annotated

import typer

from evertick.cli.options import AsJson, Limit
from evertick.cli.output import mention_more
from evertick.cli.output import print_json, print_rows
from evertick.cli.connection import ConnectionOptions, call, connection_options
from evertick.cli.backend import Backend
from evertick.contract.dead_letters import Replaying

app = typer.Typer(no_args_is_help=True, help="List, replay and dismiss dead letters.", rich_markup_mode="rich")

JobOption = Annotated[str | None, typer.Option("--job", metavar="JOB", help="Of this job, by id or by name.")]
RunIds = Annotated[list[str] | None, typer.Argument(metavar="RUN...", help="Ids, as `dead-letters list` shows them.")]


@app.command("list")
@connection_options
def list_letters(place: ConnectionOptions, *, job: JobOption = None, limit: Limit = 50, as_json: AsJson = False) -> None:
    """List dead letters, those that died last first.

    [bold]Example[/bold]

      evertick dead-letters list --job send-weekly-report
    """
    found, is_more = call(place, lambda service: service.list_letters(job, limit))
    if as_json:
        print_json(found)
    else:
        rows = [(each.died_at, each.run_id, each.name, each.attempt, each.reason, each.error) for each in found]
        columns = ("died (UTC)", "run", "job", "attempts", "reason", "error")
        print_rows(columns, rows, none="No dead letters.")
    mention_more(is_more=is_more)


@app.command()
@connection_options
def replay(
    place: ConnectionOptions,
    runs: RunIds = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="All of them, or with --job all of one job.")] = False,
    job: JobOption = None,
    as_json: AsJson = False,
) -> None:
    """Run dead letters again, each as a new run with the same payload.

    Many are spread over time, a hundred each second.

    [bold]Examples[/bold]

      evertick dead-letters replay run_…

      evertick dead-letters replay --all --job send-weekly-report
    """
    if bool(runs) == every:
        raise typer.BadParameter("name runs, or say --all")

    async def work(service: Backend) -> Replaying:
        if every:
            return await service.replay_letters(job)
        replayed = tuple([await service.replay_letter(run) for run in runs or ()])
        return Replaying(replayed=len(replayed), run_ids=replayed, last_due_at=None, has_more=False)

    done = call(place, work)
    if as_json:
        print_json([{"run_id": run_id} for run_id in done.run_ids])
    else:
        typer.echo(f"Replayed {done.replayed:,}.")
    if done.has_more:
        typer.echo("There are more: replay again when these are through.", err=True)


@app.command()
@connection_options
def dismiss(
    place: ConnectionOptions,
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Ids, as `dead-letters list` shows them.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Settle dead letters without running them again; the runs stay in the history.

    [bold]Example[/bold]

      evertick dead-letters dismiss run_…
    """

    async def work(service: Backend) -> None:
        for run in runs:
            await service.dismiss_letter(run)

    call(place, work)
    if as_json:
        print_json([{"run_id": run_id} for run_id in runs])
    else:
        typer.echo(f"Dismissed {len(runs):,}.")
