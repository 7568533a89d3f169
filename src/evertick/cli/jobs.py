"""`evertick jobs`: list, show and steer jobs."""

from typing import Annotated

import typer
from msgspec.structs import asdict

from evertick.cli.parsing import parse_json, parse_pairs
from evertick.cli.commands.jobs import add
from evertick.cli.commands.jobs import JobName, edit
from evertick.cli.options import AsJson, Limit
from evertick.cli.output import mention_more
from evertick.cli.output import print_fields, print_json, print_rows, print_line
from evertick.cli.connection import ConnectionOptions, call, connection_options
from evertick.cli.backend import JOB_PAYLOAD, JobFilter
from evertick.contract.job import Job, JobStatus
from evertick.contract.jobs import Missed

app = typer.Typer(no_args_is_help=True, help="List, show, add, edit and steer jobs.", rich_markup_mode="rich")
app.command("add")(add)
app.command("edit")(edit)


@app.command("list")
@connection_options
def list_jobs(
    place: ConnectionOptions,
    *,
    status: Annotated[JobStatus | None, typer.Option(help="Only those that stand so.")] = None,
    label: Annotated[list[str] | None, typer.Option(metavar="NAME:VALUE", help="Only those with this label.")] = None,
    name_prefix: Annotated[str | None, typer.Option(metavar="TEXT", help="Only names that begin so.")] = None,
    queue: Annotated[str | None, typer.Option(metavar="NAME", help="Only those of this queue.")] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """List jobs in the order in which they were made.

    [bold]Examples[/bold]

      evertick jobs list --status paused

      evertick jobs list --label team:growth --json | jq -r '.[].name'

      evertick jobs list --url https://evertick.example.com --api-key-file ~/.evertick-key
    """
    wanted = JobFilter(status, parse_pairs("--label", label or (), ":"), name_prefix, queue)
    found, is_more = call(place, lambda service: service.list_jobs(wanted, limit))
    if as_json:
        print_json(found)
    else:
        rows = [(job.job_id, job.name, job.status, job.schedule, job.next_run_at) for job in found]
        print_rows(("id", "name", "status", "schedule", "next run (UTC)"), rows, none="No jobs.")
    mention_more(is_more=is_more)


@app.command()
@connection_options
def show(place: ConnectionOptions, job: JobName, *, as_json: AsJson = False) -> None:
    """Show a job with every field's value in force.

    [bold]Example[/bold]

      evertick jobs show send-weekly-report
    """
    shape = asdict(call(place, lambda service: service.get_job(job)))
    if as_json:
        print_json(shape)
    else:
        print_fields(shape.items())


@app.command()
@connection_options
def pause(
    place: ConnectionOptions,
    job: JobName,
    *,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why, for others to read.")] = None,
    as_json: AsJson = False,
) -> None:
    """Let no tick of a job fire until it is resumed.

    [bold]Example[/bold]

      evertick jobs pause send-weekly-report --reason "provider is down"
    """
    _say(call(place, lambda service: service.pause_job(job, reason)), "is paused", as_json=as_json)


@app.command()
@connection_options
def resume(
    place: ConnectionOptions,
    job: JobName,
    *,
    missed: Annotated[Missed, typer.Option(help="What becomes of the ticks that the pause swallowed.")] = Missed.SKIP,
    as_json: AsJson = False,
) -> None:
    """Let a paused job fire again.

    [bold]Example[/bold]

      evertick jobs resume send-weekly-report --missed run_once
    """
    _say(call(place, lambda service: service.resume_job(job, missed)), "is active again", as_json=as_json)


@app.command()
@connection_options
def trigger(
    place: ConnectionOptions,
    job: JobName,
    *,
    payload: Annotated[str | None, typer.Option(metavar="JSON", help="Instead of the job's own.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a job now, whatever its schedule; no tick is consumed.

    [bold]Example[/bold]

      evertick jobs trigger send-weekly-report --payload '{"report_type": "trial"}'
    """
    given = JOB_PAYLOAD if payload is None else parse_json("--payload", payload)
    run_id = call(place, lambda service: service.trigger_job(job, given))
    if as_json:
        print_json({"run_id": run_id})
    else:
        typer.echo(f"{run_id} will run as soon as a worker is free.")


@app.command()
@connection_options
def delete(place: ConnectionOptions, job: JobName, *, as_json: AsJson = False) -> None:
    """Delete a job: nothing of it fires any more; what runs goes on to its end, and its history stays.

    [bold]Example[/bold]

      evertick jobs delete send-weekly-report
    """
    job_id = call(place, lambda service: service.delete_job(job))
    if as_json:
        print_json({"job_id": job_id})
    else:
        print_line(f"{job} is deleted.")


def _say(job: Job, words: str, *, as_json: bool) -> None:
    if as_json:
        print_json(job)
    else:
        print_line(f"{job.name} {words}.")
