"""`evertick jobs`: list, show and steer jobs."""

from typing import Annotated

import typer
from msgspec.structs import asdict

from evertick.cli.given import read_json, read_pairs
from evertick.cli.jobs_add import add
from evertick.cli.jobs_edit import JobName, edit
from evertick.cli.options import AsJson, Limit, mention_more
from evertick.cli.output import print_facts, print_json, print_rows, say
from evertick.cli.place import Place, ask, placed
from evertick.cli.service import JOBS_OWN_PAYLOAD, JobFilter
from evertick.contract.job import Job, JobStatus
from evertick.contract.jobs import Missed

app = typer.Typer(no_args_is_help=True, help="List, show, add, edit and steer jobs.", rich_markup_mode="rich")
app.command("add")(add)
app.command("edit")(edit)


@app.command("list")
@placed
def list_jobs(
    place: Place,
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
    wanted = JobFilter(status, read_pairs("--label", label or (), ":"), name_prefix, queue)
    found, is_more = ask(place, lambda service: service.list_jobs(wanted, limit))
    if as_json:
        print_json(found)
    else:
        rows = [(job.job_id, job.name, job.status, job.schedule, job.next_run_at) for job in found]
        print_rows(("id", "name", "status", "schedule", "next run (UTC)"), rows, none="No jobs.")
    mention_more(is_more=is_more)


@app.command()
@placed
def show(place: Place, job: JobName, *, as_json: AsJson = False) -> None:
    """Show a job with every field's value in force.

    [bold]Example[/bold]

      evertick jobs show send-weekly-report
    """
    shape = asdict(ask(place, lambda service: service.get_job(job)))
    if as_json:
        print_json(shape)
    else:
        print_facts(shape.items())


@app.command()
@placed
def pause(
    place: Place,
    job: JobName,
    *,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why, for others to read.")] = None,
    as_json: AsJson = False,
) -> None:
    """Let no tick of a job fire until it is resumed.

    [bold]Example[/bold]

      evertick jobs pause send-weekly-report --reason "provider is down"
    """
    _say(ask(place, lambda service: service.pause_job(job, reason)), "is paused", as_json=as_json)


@app.command()
@placed
def resume(
    place: Place,
    job: JobName,
    *,
    missed: Annotated[Missed, typer.Option(help="What becomes of the ticks that the pause swallowed.")] = Missed.SKIP,
    as_json: AsJson = False,
) -> None:
    """Let a paused job fire again.

    [bold]Example[/bold]

      evertick jobs resume send-weekly-report --missed run_once
    """
    _say(ask(place, lambda service: service.resume_job(job, missed)), "is active again", as_json=as_json)


@app.command()
@placed
def trigger(
    place: Place,
    job: JobName,
    *,
    payload: Annotated[str | None, typer.Option(metavar="JSON", help="Instead of the job's own.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a job now, whatever its schedule; no tick is consumed.

    [bold]Example[/bold]

      evertick jobs trigger send-weekly-report --payload '{"report_type": "trial"}'
    """
    given = JOBS_OWN_PAYLOAD if payload is None else read_json("--payload", payload)
    run_id = ask(place, lambda service: service.trigger_job(job, given))
    if as_json:
        print_json({"run_id": run_id})
    else:
        typer.echo(f"{run_id} will run as soon as a worker is free.")


@app.command()
@placed
def delete(place: Place, job: JobName, *, as_json: AsJson = False) -> None:
    """Delete a job: nothing of it fires any more; what runs goes on to its end, and its history stays.

    [bold]Example[/bold]

      evertick jobs delete send-weekly-report
    """
    job_id = ask(place, lambda service: service.delete_job(job))
    if as_json:
        print_json({"job_id": job_id})
    else:
        say(f"{job} is deleted.")


def _say(job: Job, words: str, *, as_json: bool) -> None:
    if as_json:
        print_json(job)
    else:
        say(f"{job.name} {words}.")
