"""`evertick jobs import crontab`: creates a job for each entry of a crontab, and lists what has no equivalent."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from evertick.cli.backend import Backend
from evertick.cli.commands.jobs_import import print_failed_lines
from evertick.cli.connection import ConnectionOptions, call, connection_options
from evertick.cli.errors import REJECTIONS, Exit, error_lines
from evertick.cli.options import AsJson
from evertick.cli.output import print_json, print_rows, progress_bar
from evertick.cli.parsing import parse_fields, read_text, target_of
from evertick.contract.job import Job
from evertick.domain.crontab import Crontab, CrontabEntry, Remark, job_names, read_crontab
from evertick.domain.errors import EvertickError, InvalidFields
from evertick.sdk.declarations import check

_SYSTEM_FILE, _SYSTEM_FOLDER = Path("/etc/crontab"), Path("/etc/cron.d")


class CrontabJob(NamedTuple):
    """The fields of a job, and the entry that they come from."""

    entry: CrontabEntry
    fields: dict[str, Any]


class ImportedCrontabJob(NamedTuple):
    """The job that was created, or the reason why none was. In a dry run both are None."""

    source: CrontabJob
    job: Job | None = None
    fault: str | None = None


@connection_options
def crontab(
    connection: ConnectionOptions,
    file: Annotated[typer.FileText, typer.Argument(metavar="FILE", encoding="utf-8", help="A crontab; - is stdin.")],
    *,
    handler: Annotated[str | None, typer.Option(metavar="NAME", help="Handler that runs the commands.")] = None,
    queue: Annotated[
        str | None, typer.Option(metavar="NAME", help="Queue of the workers. [dim](default)[/dim]")
    ] = None,
    target_url: Annotated[
        str | None, typer.Option("--target-url", metavar="URL", help="URL to deliver runs to, instead of a handler.")
    ] = None,
    system: Annotated[
        bool | None,
        typer.Option("--system/--user", help="Whether lines name a user. [dim](files in /etc do)[/dim]"),
    ] = None,
    timezone: Annotated[
        str | None,
        typer.Option("--timezone", "-z", metavar="ZONE", help="Time zone of lines without CRON_TZ. [dim](UTC)[/dim]"),
    ] = None,
    fields: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Any other field, for all jobs.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace existing jobs of the same names.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the jobs and create none.")] = False,
    as_json: AsJson = False,
) -> None:
    """Create a job for each entry of a crontab. Its payload has the command, its input and its environment.

    The other fields have Evertick's defaults, which differ from cron: runs of one job do not overlap, a failed run is
    retried, and each run has a time limit. --set overrides them.

    [bold]Examples[/bold]

      crontab -l | evertick jobs import crontab - --handler run_command --timezone Europe/Paris --dry-run

      evertick jobs import crontab /etc/crontab --target-url https://example.com/hooks/cron --set timeout_seconds=3600
    """
    path = Path(file.name)
    has_users = _is_system(path) if system is None else system
    parsed = read_crontab(read_text(file), has_users=has_users, timezone=timezone or "UTC")
    target = target_of(handler, queue, target_url)
    overrides = parse_fields("--set", fields or ())
    stem = "crontab" if file.name == "<stdin>" else path.stem
    named = zip(job_names(stem, parsed.entries), parsed.entries, strict=True)
    jobs = [CrontabJob(entry, {**_fields(entry, name), "target": target, **overrides}) for name, entry in named]
    if dry_run:
        imported = [_checked(job) for job in jobs]
    else:
        imported = call(connection, lambda backend: _create_all(backend, jobs, replace=replace))
    faults = sorted([*parsed.faults, *(Remark(each.source.entry.line, each.fault) for each in imported if each.fault)])
    created = [each for each in imported if each.fault is None]
    (_print_json if as_json else _print)(created, faults, _losses(parsed, timezone))
    if faults:
        raise typer.Exit(Exit.FAILED)


def _is_system(path: Path) -> bool:
    return path.absolute() == _SYSTEM_FILE or path.absolute().parent == _SYSTEM_FOLDER


def _fields(entry: CrontabEntry, name: str) -> dict[str, Any]:
    payload = {"command": entry.command, "stdin": entry.stdin, "env": dict(entry.environment)}
    if entry.user is not None:
        payload["user"] = entry.user
    return {"name": name, "schedule": entry.schedule, "timezone": entry.timezone, "payload": payload}


def _checked(job: CrontabJob) -> ImportedCrontabJob:
    try:
        check(job.fields)
    except InvalidFields as rejection:
        return ImportedCrontabJob(job, fault=_reason(rejection))
    return ImportedCrontabJob(job)


async def _create_all(backend: Backend, jobs: Sequence[CrontabJob], *, replace: bool) -> list[ImportedCrontabJob]:
    imported: list[ImportedCrontabJob] = []
    with progress_bar("Importing", len(jobs)) as advance:
        for job in jobs:
            imported.append(await _create(backend, job, replace=replace))
            advance(1)
    return imported


async def _create(backend: Backend, source: CrontabJob, *, replace: bool) -> ImportedCrontabJob:
    fields = source.fields
    try:
        job = await (backend.put_job(fields["name"], fields) if replace else backend.add_job(fields))
    except REJECTIONS as rejection:
        return ImportedCrontabJob(source, fault=_reason(rejection))
    return ImportedCrontabJob(source, job)


def _reason(rejection: EvertickError) -> str:
    return "; ".join(error_lines(rejection))


def _losses(parsed: Crontab, timezone: str | None) -> list[Remark]:
    in_utc = [entry.line for entry in parsed.entries if timezone is None and entry.timezone == "UTC"]
    if not in_utc:
        return parsed.losses
    reason = "times are in UTC: cron uses the zone of its machine, which the file does not name; set --timezone"
    return [*parsed.losses, Remark(in_utc[0], reason)]


def _print(imported: Sequence[ImportedCrontabJob], faults: Sequence[Remark], losses: Sequence[Remark]) -> None:
    rows = [
        (entry.line, fields["name"], job and job.job_id, entry.schedule, entry.timezone, job and job.next_run_at)
        for (entry, fields), job, _ in imported
    ]
    print_rows(("line", "name", "id", "schedule", "timezone", "next run (UTC)"), rows, empty="No jobs.")
    if losses:
        typer.echo()
        print_rows(("line", "not carried over"), losses, empty="")
    print_failed_lines(faults)


def _print_json(imported: Sequence[ImportedCrontabJob], faults: Sequence[Remark], losses: Sequence[Remark]) -> None:
    print_json(
        {
            "imported": [
                {"line": entry.line, "job_id": job and job.job_id, **fields} for (entry, fields), job, _ in imported
            ],
            "failed": [{"line": line, "reason": reason} for line, reason in faults],
            "not_carried_over": [{"line": line, "reason": reason} for line, reason in losses],
        }
    )
