"""`evertick dead-letters`: runs whose attempts are used up, until they are replayed or dismissed."""

from typing import Annotated

import typer

from evertick.cli.acting import DEFAULT_TENANT, Limit, TenantName, Where, act, gathered, job_id_of, mention_more
from evertick.cli.options import AsJson, DatabaseUrl, DataDir
from evertick.cli.output import print_json, print_rows
from evertick.cli.shapes import letter_shape
from evertick.usecases import dead_letters, requests
from evertick.usecases.context import MOST_PER_PAGE, Tenant
from evertick.usecases.dead_letters import Chosen, DeadLetter

app = typer.Typer(no_args_is_help=True, help="List, replay and dismiss dead letters.", rich_markup_mode="rich")

JobOption = Annotated[str | None, typer.Option("--job", metavar="JOB", help="Of this job, by id or by name.")]
RunIds = Annotated[list[str] | None, typer.Argument(metavar="RUN...", help="Ids, as `dead-letters list` shows them.")]


@app.command("list")
def list_letters(
    *,
    job: JobOption = None,
    limit: Limit = 50,
    as_json: AsJson = False,
    tenant: TenantName = DEFAULT_TENANT,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """List dead letters, those that died last first.

    [bold]Example[/bold]

      evertick dead-letters list --job send-weekly-report
    """

    async def work(acting: Tenant) -> tuple[list[DeadLetter], bool]:
        job_id = None if job is None else await job_id_of(acting, job)
        return await gathered(
            limit,
            lambda most, cursor: dead_letters.list_letters(acting, job_id=job_id, limit=most, cursor=cursor),
        )

    found, is_more = act(Where(database_url, data_dir, tenant), work)
    if as_json:
        print_json([letter_shape(letter) for letter in found])
    else:
        rows = [(each.died_at, each.run_id, each.name, each.attempt, each.reason, each.error) for each in found]
        columns = ("died (UTC)", "run", "job", "attempts", "reason", "error")
        print_rows(columns, rows, none="No dead letters.")
    mention_more(is_more=is_more)


@app.command()
def replay(
    runs: RunIds = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="All of them, or with --job all of one job.")] = False,
    job: JobOption = None,
    as_json: AsJson = False,
    tenant: TenantName = DEFAULT_TENANT,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Run dead letters again, each as a new run with the same payload.

    [bold]Examples[/bold]

      evertick dead-letters replay run_…

      evertick dead-letters replay --all --job send-weekly-report
    """
    if bool(runs) == every:
        raise typer.BadParameter("name runs, or say --all")

    async def work(acting: Tenant) -> list[str]:
        if every:
            return await _replay_all(acting, None if job is None else await job_id_of(acting, job))
        return [await requests.replay_letter(acting, run) for run in runs or ()]

    replayed = act(Where(database_url, data_dir, tenant), work)
    if as_json:
        print_json([{"run_id": run_id} for run_id in replayed])
    else:
        typer.echo(f"Replayed {len(replayed):,}.")


@app.command()
def dismiss(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Ids, as `dead-letters list` shows them.")],
    *,
    tenant: TenantName = DEFAULT_TENANT,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Settle dead letters without running them again; the runs stay in the history.

    [bold]Example[/bold]

      evertick dead-letters dismiss run_…
    """

    async def work(acting: Tenant) -> None:
        for run in runs:
            await dead_letters.dismiss(acting, run)

    act(Where(database_url, data_dir, tenant), work)
    typer.echo(f"Dismissed {len(runs):,}.")


async def _replay_all(acting: Tenant, job_id: str | None) -> list[str]:
    replayed: list[str] = []
    while True:
        some = await dead_letters.replay_letters(acting, Chosen(job_id=job_id), MOST_PER_PAGE)
        replayed += some
        if len(some) < MOST_PER_PAGE:
            return replayed
