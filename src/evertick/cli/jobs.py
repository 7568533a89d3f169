"""`evertick jobs`: list, show and steer jobs, directly on the database."""

from typing import Annotated

import typer

from evertick.cli.acting import DEFAULT_TENANT, Limit, TenantName, Where, act, gathered, job_id_of, mention_more
from evertick.cli.given import read_json, read_pairs
from evertick.cli.jobs_add import add
from evertick.cli.options import AsJson, DatabaseUrl, DataDir
from evertick.cli.output import print_facts, print_json, print_rows
from evertick.cli.shapes import job_shape
from evertick.usecases import jobs, lifecycle, requests
from evertick.usecases.context import Tenant
from evertick.usecases.lifecycle import Missed
from evertick.usecases.requests import JOBS_OWN
from evertick.usecases.views import Job, JobStatus

app = typer.Typer(no_args_is_help=True, help="List, show, add and steer jobs.", rich_markup_mode="rich")
app.command("add")(add)

JobName = Annotated[str, typer.Argument(metavar="JOB", help="Its id or its name.")]


@app.command("list")
def list_jobs(
    *,
    status: Annotated[JobStatus | None, typer.Option(help="Only those that stand so.")] = None,
    label: Annotated[list[str] | None, typer.Option(metavar="NAME:VALUE", help="Only those with this label.")] = None,
    name_prefix: Annotated[str | None, typer.Option(metavar="TEXT", help="Only names that begin so.")] = None,
    queue: Annotated[str | None, typer.Option(metavar="NAME", help="Only those of this queue.")] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
    tenant: TenantName = DEFAULT_TENANT,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """List jobs in the order in which they were made.

    [bold]Examples[/bold]

      evertick jobs list --status paused

      evertick jobs list --label team:growth --json | jq -r '.[].name'
    """
    labels = read_pairs("--label", label or (), ":")

    async def work(acting: Tenant) -> tuple[list[Job], bool]:
        return await gathered(
            limit,
            lambda most, cursor: jobs.list_jobs(
                acting,
                status=status,
                labels=labels,
                name_prefix=name_prefix,
                queue=queue,
                limit=most,
                cursor=cursor,
            ),
        )

    found, is_more = act(Where(database_url, data_dir, tenant), work)
    if as_json:
        print_json([job_shape(job) for job in found])
    else:
        rows = [(job.job_id, job.name, job.status, job.fields["schedule"], job.next_run_at) for job in found]
        print_rows(("id", "name", "status", "schedule", "next run (UTC)"), rows, none="No jobs.")
    mention_more(is_more=is_more)


@app.command()
def show(
    job: JobName,
    *,
    as_json: AsJson = False,
    tenant: TenantName = DEFAULT_TENANT,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Show a job with every field's value in force.

    [bold]Example[/bold]

      evertick jobs show send-weekly-report
    """

    async def work(acting: Tenant) -> Job:
        return await jobs.get(acting, await job_id_of(acting, job))

    _print_job(act(Where(database_url, data_dir, tenant), work), as_json=as_json)


@app.command()
def pause(
    job: JobName,
    *,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why, for others to read.")] = None,
    as_json: AsJson = False,
    tenant: TenantName = DEFAULT_TENANT,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Let no tick of a job fire until it is resumed.

    [bold]Example[/bold]

      evertick jobs pause send-weekly-report --reason "provider is down"
    """

    async def work(acting: Tenant) -> Job:
        return await lifecycle.pause(acting, await job_id_of(acting, job), reason)

    paused = act(Where(database_url, data_dir, tenant), work)
    _say(paused, "is paused", as_json=as_json)


@app.command()
def resume(
    job: JobName,
    *,
    missed: Annotated[Missed, typer.Option(help="What becomes of the ticks that the pause swallowed.")] = Missed.SKIP,
    as_json: AsJson = False,
    tenant: TenantName = DEFAULT_TENANT,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Let a paused job fire again.

    [bold]Example[/bold]

      evertick jobs resume send-weekly-report --missed run_once
    """

    async def work(acting: Tenant) -> Job:
        return await lifecycle.resume(acting, await job_id_of(acting, job), missed)

    resumed = act(Where(database_url, data_dir, tenant), work)
    _say(resumed, "is active again", as_json=as_json)


@app.command()
def trigger(
    job: JobName,
    *,
    payload: Annotated[str | None, typer.Option(metavar="JSON", help="Instead of the job's own.")] = None,
    as_json: AsJson = False,
    tenant: TenantName = DEFAULT_TENANT,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Run a job now, whatever its schedule; no tick is consumed.

    [bold]Example[/bold]

      evertick jobs trigger send-weekly-report --payload '{"report_type": "trial"}'
    """
    given = JOBS_OWN if payload is None else read_json("--payload", payload)

    async def work(acting: Tenant) -> str:
        return await requests.trigger(acting, await job_id_of(acting, job), given)

    run_id = act(Where(database_url, data_dir, tenant), work)
    if as_json:
        print_json({"run_id": run_id})
    else:
        typer.echo(f"{run_id} will run as soon as a worker is free.")


@app.command()
def delete(
    job: JobName,
    *,
    tenant: TenantName = DEFAULT_TENANT,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
) -> None:
    """Delete a job: nothing of it fires any more; what runs goes on to its end, and its history stays.

    [bold]Example[/bold]

      evertick jobs delete send-weekly-report
    """

    async def work(acting: Tenant) -> None:
        await lifecycle.delete(acting, await job_id_of(acting, job))

    act(Where(database_url, data_dir, tenant), work)
    typer.echo(f"{job} is deleted.")


def _say(job: Job, words: str, *, as_json: bool) -> None:
    if as_json:
        print_json(job_shape(job))
    else:
        typer.echo(f"{job.name} {words}.")


def _print_job(job: Job, *, as_json: bool) -> None:
    if as_json:
        print_json(job_shape(job))
    else:
        print_facts(job_shape(job).items())
