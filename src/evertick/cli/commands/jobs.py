"""`evertick jobs`: list, show, create and change jobs."""

from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any

import click

from evertick.cli.backends import JobListFilter
from evertick.cli.connection import Backend, ConnectionOptions, call, connection_options
from evertick.cli.errors import exit_on_error
from evertick.cli.options import (
    FileFormat,
    Limit,
    TargetUrl,
    WorkerQueue,
    parse_fields,
    parse_json,
    parse_pairs,
    target_of,
)
from evertick.cli.output import print_document, print_listing, print_result, utc
from evertick.cli.signatures import Argument, CommandGroup, Option
from evertick.domain.policies import Missed
from evertick.domain.states import JobStatus

if TYPE_CHECKING:
    from evertick.contract.job import Job

app = CommandGroup(
    help="List, show, add, edit, export, pause, trigger and delete jobs.",
    later={"import": ("crontab_import:app", "Import jobs from a file (jobs import FILE) or from another source.")},
)

ALL_JOBS = 10_000_000
JobName = Annotated[str, Argument(metavar="JOB", help="Id or name of the job.")]
Timezone = Annotated[str | None, Option("--timezone", "-z", metavar="ZONE", help="IANA name of the time zone.")]
Payload = Annotated[str | None, Option(metavar="JSON", help="Payload of each run.")]


@app.add()
@connection_options
def add(
    connection: ConnectionOptions,
    name: Annotated[str, Argument(help="Name, unique among the tenant's jobs.")],
    schedule: Annotated[str, Argument(help="Cron, @daily, 'every 5m', RRULE:…, an instant, now, 'in 90s' or manual.")],
    *,
    handler: Annotated[str | None, Option(metavar="NAME", help="Handler that runs the job in a worker.")] = None,
    queue: WorkerQueue = None,
    target_url: TargetUrl = None,
    timezone: Timezone = None,
    payload: Payload = None,
    label: Annotated[list[str] | None, Option(metavar="NAME:VALUE", help="Label. Can be repeated.")] = None,
    fields: Annotated[
        list[str] | None, Option("--set", metavar="FIELD=VALUE", help="Any other field of a job.")
    ] = None,
    replace: Annotated[bool, Option("--replace", help="Replace an existing job of this name.")] = False,
) -> None:
    """Add a job that a worker's handler runs, or that is delivered to a URL.

    Examples

      evertick jobs add refresh "*/5 * * * *" --handler refresh

      evertick jobs add invoices "0 9 1 * *" -z Europe/Paris --handler send_invoices --queue billing --set max_retries=5

      evertick jobs add report "0 9 * * 1" --target-url https://example.com/hooks/report --payload '{"type": "weekly"}'
    """
    target = target_of(handler, queue, target_url)
    values = _option_fields(None, timezone, payload, label, fields)
    job_fields = {"name": name, "schedule": schedule, "target": target, **values}

    async def work(backend: Backend) -> "Job":
        return await (backend.put_job(name, job_fields) if replace else backend.add_job(job_fields))

    job = call(connection, work)
    first = f"first run at {utc(job.next_run_at)}" if job.next_run_at else "runs when it is triggered"
    print_result(job, f"{job.name} is {job.job_id}: {first}.", as_json=connection.as_json)


@app.add()
@connection_options
def edit(
    connection: ConnectionOptions,
    job: JobName,
    *,
    schedule: Annotated[str | None, Option(metavar="SCHEDULE", help="New schedule.")] = None,
    timezone: Timezone = None,
    payload: Payload = None,
    label: Annotated[
        list[str] | None, Option(metavar="NAME:VALUE", help="Label, replaces all labels. Can be repeated.")
    ] = None,
    fields: Annotated[
        list[str] | None,
        Option("--set", metavar="FIELD=VALUE", help="Any field of a job; null resets it to its default."),
    ] = None,
) -> None:
    """Change fields of a job. Runs that have fired keep the version of the job that they fired with.

    Examples

      evertick jobs edit send-weekly-report --schedule "0 8 * * 1"

      evertick jobs edit send-weekly-report --set max_retries=5 --set timeout_seconds=null
    """
    changes = _option_fields(schedule, timezone, payload, label, fields)
    if not changes:
        raise click.BadParameter("there is nothing to change: use --schedule, --set or another option")
    edited = call(connection, lambda backend: backend.edit_job(job, changes))
    following = f"next run at {utc(edited.next_run_at)}" if edited.next_run_at else "no run is scheduled"
    text = f"{edited.name} is at version {edited.spec_version}: {following}."
    print_result(edited, text, as_json=connection.as_json)


def _option_fields(
    schedule: str | None,
    timezone: str | None,
    payload: str | None,
    labels: list[str] | None,
    fields: list[str] | None,
) -> dict[str, Any]:
    """The fields of a job that are set by options. `--set` overrides the other options."""
    values: dict[str, Any] = {}
    if schedule is not None:
        values["schedule"] = schedule
    if timezone is not None:
        values["timezone"] = timezone
    if payload is not None:
        values["payload"] = parse_json("--payload", payload)
    if labels:
        values["labels"] = parse_pairs("--label", labels, ":")
    return values | parse_fields("--set", fields or ())


@app.add("list")
@connection_options
def list_jobs(
    connection: ConnectionOptions,
    *,
    status: Annotated[JobStatus | None, Option(help="Only jobs with this status.")] = None,
    label: Annotated[list[str] | None, Option(metavar="NAME:VALUE", help="Only jobs with this label.")] = None,
    name_prefix: Annotated[str | None, Option(metavar="TEXT", help="Only names that start with this.")] = None,
    queue: Annotated[str | None, Option(metavar="NAME", help="Only jobs of this queue.")] = None,
    every: Annotated[bool, Option("--all", help="Also jobs that have finished, such as one-offs.")] = False,
    limit: Limit = 50,
) -> None:
    """List jobs in the order of their creation. Those that have finished are listed with --all or --status finished.

    Examples

      evertick jobs list --status paused

      evertick jobs list --label team:growth --json | jq -r '.[].name'

      evertick jobs list --url https://evertick.example.com --api-key-file ~/.evertick-key
    """
    has_finished = every or status is not None
    filters = JobListFilter(status, parse_pairs("--label", label or (), ":"), name_prefix, queue, has_finished)
    print_listing(
        call(connection, lambda backend: backend.list_jobs(filters, limit)),
        ("id", "name", "status", "schedule", "last run (UTC)", "result", "failures", "next run (UTC)"),
        attrgetter(
            *("job_id", "name", "status", "schedule", "last_run_at", "last_run_status", "consecutive_failures"),
            "next_run_at",
        ),
        empty="No jobs.",
        as_json=connection.as_json,
    )


@app.add()
@connection_options
def export(
    connection: ConnectionOptions,
    *,
    file_format: Annotated[FileFormat, Option("--format", help="Of what is printed.")] = FileFormat.NDJSON,
    label: Annotated[list[str] | None, Option(metavar="NAME:VALUE", help="Only jobs with this label.")] = None,
    name_prefix: Annotated[str | None, Option(metavar="TEXT", help="Only names that start with this.")] = None,
    queue: Annotated[str | None, Option(metavar="NAME", help="Only jobs of this queue.")] = None,
    finished: Annotated[bool, Option("--finished", help="Also one-offs that have fired.")] = False,
) -> None:
    """Print the definitions of all jobs, as `jobs import` takes them. Fields with their default are left out.

    Examples

      evertick jobs export > jobs.ndjson

      evertick jobs export --format yaml --label team:growth > jobs.yaml
    """
    from evertick.cli.commands.job_files import document_of, write_documents  # noqa: PLC0415 - computes schedules

    filters = JobListFilter(None, parse_pairs("--label", label or (), ":"), name_prefix, queue, finished)
    found = call(connection, lambda backend: backend.list_jobs(filters, ALL_JOBS))
    with exit_on_error():
        click.echo(write_documents([document_of(job) for job in found.items], file_format), nl=False)


@app.add()
@connection_options
def show(connection: ConnectionOptions, job: JobName) -> None:
    """Show a job with all its fields.

    Example

      evertick jobs show send-weekly-report
    """
    from msgspec.structs import asdict  # noqa: PLC0415 - as in `output`

    print_document(asdict(call(connection, lambda backend: backend.get_job(job))), as_json=connection.as_json)


@app.add()
@connection_options
def pause(
    connection: ConnectionOptions,
    job: JobName,
    *,
    reason: Annotated[str | None, Option(metavar="TEXT", help="Reason, shown with the job.")] = None,
) -> None:
    """Pause a job: no tick fires until it is resumed.

    Example

      evertick jobs pause send-weekly-report --reason "provider is down"
    """
    paused = call(connection, lambda backend: backend.pause_job(job, reason))
    print_result(paused, f"{paused.name} is paused.", as_json=connection.as_json)


@app.add()
@connection_options
def resume(
    connection: ConnectionOptions,
    job: JobName,
    *,
    missed: Annotated[Missed, Option(help="What happens to the ticks of the pause.")] = Missed.SKIP,
) -> None:
    """Resume a paused job.

    Example

      evertick jobs resume send-weekly-report --missed run_once
    """
    resumed = call(connection, lambda backend: backend.resume_job(job, missed))
    print_result(resumed, f"{resumed.name} is active again.", as_json=connection.as_json)


@app.add()
@connection_options
def trigger(
    connection: ConnectionOptions,
    job: JobName,
    *,
    payload: Annotated[str | None, Option(metavar="JSON", help="Payload instead of the job's own.")] = None,
    force: Annotated[
        bool, Option("--force", help="Start a run even beside one that the job's policy excludes.")
    ] = False,
) -> None:
    """Run a job now. Its schedule is not affected.

    While another run of the job is open, its concurrent_policy decides: SKIP refuses the trigger, QUEUE lets it wait,
    REPLACE cancels the other run, ALLOW starts it up to max_concurrent. Jobs with the schedule `manual`, with a key or
    with max_running refuse nothing.

    Examples

      evertick jobs trigger send-weekly-report --payload '{"report_type": "trial"}'

      evertick jobs trigger send-weekly-report --force
    """
    chosen = {} if payload is None else {"payload": parse_json("--payload", payload)}
    run_id, waiting = call(connection, lambda backend: backend.trigger_job(job, force=force, **chosen))
    result = {"run_id": run_id} | ({} if waiting is None else {"waiting": waiting})
    text = (
        f"{run_id} starts as soon as a worker that serves it is free: see `evertick runs show {run_id}`."
        if waiting is None
        else f"{run_id} is {waiting}."
    )
    print_result(result, text, as_json=connection.as_json)


@app.add()
@connection_options
def delete(connection: ConnectionOptions, job: JobName) -> None:
    """Delete a job: it does not fire any more. Attempts under way finish, and the history stays.

    Example

      evertick jobs delete send-weekly-report
    """
    job_id = call(connection, lambda backend: backend.delete_job(job))
    print_result({"job_id": job_id}, f"{job} is deleted.", as_json=connection.as_json)
