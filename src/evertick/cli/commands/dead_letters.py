"""`evertick dead-letters`: runs that have used up their attempts, until they are replayed or dismissed."""

from operator import attrgetter
from typing import Annotated

import typer

from evertick.cli.connection import Backend, ConnectionOptions, call, connection_options
from evertick.cli.options import Limit
from evertick.cli.output import print_listing, print_result
from evertick.contract.runs import Replaying

app = typer.Typer(no_args_is_help=True, help="List, replay and dismiss dead letters.", rich_markup_mode="rich")

JobOption = Annotated[str | None, typer.Option("--job", metavar="JOB", help="Only this job's, by id or by name.")]
RUNS_HELP = "Ids of runs, as `dead-letters list` shows them."


@app.command("list")
@connection_options
def list_dead_letters(connection: ConnectionOptions, *, job: JobOption = None, limit: Limit = 50) -> None:
    """List dead letters, the newest first.

    [bold]Example[/bold]

      evertick dead-letters list --job send-weekly-report
    """
    print_listing(
        call(connection, lambda backend: backend.list_dead_letters(job, limit)),
        ("died (UTC)", "run", "job", "attempts", "reason", "error"),
        attrgetter("died_at", "run_id", "name", "attempt", "reason", "error"),
        empty="No dead letters.",
        as_json=connection.as_json,
    )


@app.command()
@connection_options
def replay(
    connection: ConnectionOptions,
    runs: Annotated[list[str] | None, typer.Argument(metavar="RUN...", help=RUNS_HELP)] = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="Replay all, or with --job all of one job.")] = False,
    job: JobOption = None,
) -> None:
    """Run dead letters again, each as a new run with the same payload.

    With --all, a hundred start each second.

    [bold]Examples[/bold]

      evertick dead-letters replay run_…

      evertick dead-letters replay --all --job send-weekly-report
    """
    if bool(runs) == every:
        raise typer.BadParameter("give the ids of runs, or --all")

    async def work(backend: Backend) -> Replaying:
        if every:
            return await backend.replay_dead_letters(job)
        replayed = tuple([await backend.replay_dead_letter(run) for run in runs or ()])
        return Replaying(replayed=len(replayed), run_ids=replayed, last_due_at=None, has_more=False)

    result = call(connection, work)
    runs_made = [{"run_id": run_id} for run_id in result.run_ids]
    print_result(runs_made, f"Replayed {result.replayed:,}.", as_json=connection.as_json)
    if result.has_more:
        typer.echo("There are more: replay again when these have run.", err=True)


@app.command()
@connection_options
def dismiss(
    connection: ConnectionOptions, runs: Annotated[list[str], typer.Argument(metavar="RUN...", help=RUNS_HELP)]
) -> None:
    """Remove dead letters without running them again. The runs stay in the history.

    [bold]Example[/bold]

      evertick dead-letters dismiss run_…
    """

    async def work(backend: Backend) -> None:
        for run in runs:
            await backend.dismiss_dead_letter(run)

    call(connection, work)
    print_result([{"run_id": run_id} for run_id in runs], f"Dismissed {len(runs):,}.", as_json=connection.as_json)
