"""`evertick jobs import crontab`: creates a job for each entry of a crontab, and lists what has no equivalent."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TextIO

import click

from evertick.cli.commands.job_files import ImportEntry
from evertick.cli.commands.jobs_import import ImportedEntry, app, create_one, print_failed_lines, reason_of
from evertick.cli.connection import Backend, ConnectionOptions, call, connection_options
from evertick.cli.errors import Exit
from evertick.cli.options import ReplaceAll, TargetUrl, WorkerQueue, parse_fields, read_text, target_of
from evertick.cli.output import print_json, print_rows, progress_bar
from evertick.cli.signatures import Argument, Option
from evertick.domain.crontab import Crontab, CrontabEntry, Remark, job_names, read_crontab
from evertick.domain.errors import InvalidFields, InvalidInput
from evertick.domain.schedule.preview import as_new_job
from evertick.domain.schedule.schedule import Schedule
from evertick.sdk.declarations import check

_SYSTEM_FILE, _SYSTEM_FOLDER = Path("/etc/crontab"), Path("/etc/cron.d")


@app.add()
@connection_options
def crontab(
    connection: ConnectionOptions,
    file: Annotated[TextIO, Argument(metavar="FILE", help="A crontab; - is stdin.")],
    *,
    handler: Annotated[str | None, Option(metavar="NAME", help="Handler that runs the commands.")] = None,
    queue: WorkerQueue = None,
    target_url: TargetUrl = None,
    system: Annotated[
        bool | None,
        Option("--system/--user", help="Whether lines name a user. [default: files in /etc do]"),
    ] = None,
    timezone: Annotated[
        str | None,
        Option("--timezone", "-z", metavar="ZONE", help="Time zone of lines without CRON_TZ. [default: UTC]"),
    ] = None,
    fields: Annotated[
        list[str] | None, Option("--set", metavar="FIELD=VALUE", help="Any other field, for all jobs.")
    ] = None,
    replace: ReplaceAll = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Show the jobs and create none.")] = False,
) -> None:
    """Create a job for each entry of a crontab. Its payload has the command, its input and its environment.

    The other fields have Evertick's defaults, which differ from cron: runs of one job do not overlap, a failed run is
    retried, and each run has a time limit. --set overrides them.

    Examples

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
    entries = [
        ImportEntry(entry.line, {**_fields(entry, name), "target": target, **overrides}) for name, entry in named
    ]
    if dry_run:
        now_at = datetime.now(UTC)
        imported = [_checked(entry, now_at) for entry in entries]
    else:
        imported = call(connection, lambda backend: _create_all(backend, entries, replace=replace))
    faults = sorted([*parsed.faults, *(Remark(each.entry.number, each.fault) for each in imported if each.fault)])
    created = [each for each in imported if each.fault is None]
    (_print_json if connection.as_json else _print)(created, faults, _losses(parsed, timezone))
    if faults:
        raise click.exceptions.Exit(Exit.FAILED)


def _is_system(path: Path) -> bool:
    return path.absolute() == _SYSTEM_FILE or path.absolute().parent == _SYSTEM_FOLDER


def _fields(entry: CrontabEntry, name: str) -> dict[str, Any]:
    payload = {"command": entry.command, "stdin": entry.stdin, "env": dict(entry.environment)}
    if entry.user is not None:
        payload["user"] = entry.user
    return {"name": name, "schedule": entry.schedule, "timezone": entry.timezone, "payload": payload}


def _checked(entry: ImportEntry, now_at: datetime) -> ImportedEntry:
    """What an import at this instant would create."""
    try:
        spec = check(entry.job)
        dst = spec.dst_gap, spec.dst_overlap
        next_run_at = as_new_job(
            lambda anchor_at: Schedule(
                spec.schedule, spec.timezone, *dst, spec.start_at, spec.end_at, anchor_at=anchor_at
            ),
            now_at,
        ).next(now_at)
    except (InvalidFields, InvalidInput) as rejection:
        return ImportedEntry(entry, fault=reason_of(rejection))
    return ImportedEntry(entry, next_run_at=next_run_at)


async def _create_all(backend: Backend, entries: Sequence[ImportEntry], *, replace: bool) -> list[ImportedEntry]:
    imported: list[ImportedEntry] = []
    with progress_bar("Importing", len(entries)) as advance:
        for entry in entries:
            imported.append(await create_one(backend, entry, replace=replace))
            advance(1)
    return imported


def _losses(parsed: Crontab, timezone: str | None) -> list[Remark]:
    in_utc = [entry.line for entry in parsed.entries if timezone is None and entry.timezone == "UTC"]
    if not in_utc:
        return parsed.losses
    reason = "times are in UTC: cron uses the zone of its machine, which the file does not name; set --timezone"
    return [*parsed.losses, Remark(in_utc[0], reason)]


def _print(imported: Sequence[ImportedEntry], faults: Sequence[Remark], losses: Sequence[Remark]) -> None:
    columns = ("line", "name", "id", "schedule", "timezone", "next run (UTC)")
    rows = [
        (each.entry.number, job["name"], each.job_id, job["schedule"], job["timezone"], each.next_run_at)
        for each in imported
        for job in [each.entry.job]
    ]
    print_rows(columns, rows, empty="No jobs.")
    if losses:
        click.echo()
        print_rows(("line", "not carried over"), losses, empty="")
    print_failed_lines(faults)


def _print_json(imported: Sequence[ImportedEntry], faults: Sequence[Remark], losses: Sequence[Remark]) -> None:
    print_json(
        {
            "imported": [{"line": each.entry.number, "job_id": each.job_id, **each.entry.job} for each in imported],
            "failed": [{"line": line, "reason": reason} for line, reason in faults],
            "not_carried_over": [{"line": line, "reason": reason} for line, reason in losses],
        }
    )
