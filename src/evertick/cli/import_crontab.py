"""`evertick jobs import crontab`: one job for each entry of a crontab, and what could not be carried over."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from evertick.cli.errors import Exit
from evertick.cli.errors import REJECTIONS, error_lines
from evertick.cli.parsing import parse_fields
from evertick.cli.output import progress_bar
from evertick.cli.parsing import target_of
from evertick.cli.options import AsJson
from evertick.cli.output import print_json, print_rows, print_line
from evertick.cli.connection import ConnectionOptions, call, connection_options
from evertick.cli.backend import Backend
from evertick.contract.job import Job
from evertick.domain.crontab import Crontab, CrontabEntry, Remark, job_names, read_crontab
from evertick.domain.errors import EvertickError, InvalidFields
from evertick.domain.schedule.describe.english import counted
from evertick.sdk.declarations import check

_SYSTEM_FILE, _SYSTEM_FOLDER = Path("/etc/crontab"), Path("/etc/cron.d")


class Wanted(NamedTuple):
    """A job to make, and the entry that it comes from."""

    entry: CrontabEntry
    fields: dict[str, Any]


class Imported(NamedTuple):
    """What became of an entry: its job, or why there is none. In a dry run there is neither."""

    wanted: Wanted
    job: Job | None = None
    fault: str | None = None


@connection_options
def crontab(
    place: ConnectionOptions,
    file: Annotated[typer.FileText, typer.Argument(metavar="FILE", encoding="utf-8", help="A crontab; - is stdin.")],
    *,
    handler: Annotated[str | None, typer.Option(metavar="NAME", help="Which handler runs the commands.")] = None,
    queue: Annotated[str | None, typer.Option(metavar="NAME", help="From which queue. [dim](default)[/dim]")] = None,
    target_url: Annotated[
        str | None, typer.Option("--target-url", metavar="URL", help="Or: where they are delivered by HTTP.")
    ] = None,
    system: Annotated[
        bool | None, typer.Option("--system/--user", help="With a user in each line or not; in /etc, with.")
    ] = None,
    timezone: Annotated[
        str | None, typer.Option("--timezone", "-z", metavar="ZONE", help="Where CRON_TZ says none. [dim](UTC)[/dim]")
    ] = None,
    fields: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Any other field, for all of them.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace jobs of the same names.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be made.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a job of each entry of a crontab. Each run is given the command, its input and its environment.

    Beyond their times, the jobs have Evertick's defaults, which are not cron's: runs of one job do not overlap, a
    failed one is tried again, and each has a time limit. --set chooses otherwise.

    [bold]Examples[/bold]

      crontab -l | evertick jobs import crontab - --handler run_command --timezone Europe/Paris --dry-run

      evertick jobs import crontab /etc/crontab --target-url https://example.com/hooks/cron --set timeout_seconds=3600
    """
    path = Path(file.name)
    has_users = _is_system(path) if system is None else system
    read = read_crontab(_text_of(file), has_users=has_users, timezone=timezone or "UTC")
    target = target_of(handler, queue, target_url)
    given = parse_fields("--set", fields or ())
    stem = "crontab" if file.name == "<stdin>" else path.stem
    named = zip(job_names(stem, read.entries), read.entries, strict=True)
    wanted = [Wanted(entry, {**_fields(entry, name), "target": target, **given}) for name, entry in named]
    if dry_run:
        imported = [_checked(each) for each in wanted]
    else:
        imported = call(place, lambda service: _make(service, wanted, replace=replace))
    faults = sorted([*read.faults, *(Remark(each.wanted.entry.line, each.fault) for each in imported if each.fault)])
    made = [each for each in imported if each.fault is None]
    (_print_json if as_json else _print)(made, faults, _losses(read, timezone))
    if faults:
        raise typer.Exit(Exit.FAILED)


def _text_of(file: typer.FileText) -> str:
    try:
        return file.read()
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"{file.name} is not UTF-8: {error}") from None


def _is_system(path: Path) -> bool:
    return path.absolute() == _SYSTEM_FILE or path.absolute().parent == _SYSTEM_FOLDER


def _fields(entry: CrontabEntry, name: str) -> dict[str, Any]:
    payload = {"command": entry.command, "stdin": entry.stdin, "env": dict(entry.environment)}
    if entry.user is not None:
        payload["user"] = entry.user
    return {"name": name, "schedule": entry.schedule, "timezone": entry.timezone, "payload": payload}


def _checked(wanted: Wanted) -> Imported:
    try:
        check(wanted.fields)
    except InvalidFields as refused:
        return Imported(wanted, fault=_why(refused))
    return Imported(wanted)


async def _make(service: Backend, wanted: Sequence[Wanted], *, replace: bool) -> list[Imported]:
    imported: list[Imported] = []
    with progress_bar(len(wanted)) as advance:
        for each in wanted:
            imported.append(await _make_one(service, each, replace=replace))
            advance(1)
    return imported


async def _make_one(service: Backend, wanted: Wanted, *, replace: bool) -> Imported:
    fields = wanted.fields
    try:
        job = await (service.put_job(fields["name"], fields) if replace else service.add_job(fields))
    except REJECTIONS as refused:
        return Imported(wanted, fault=_why(refused))
    return Imported(wanted, job)


def _why(refused: EvertickError) -> str:
    return "; ".join(error_lines(refused))


def _losses(read: Crontab, timezone: str | None) -> list[Remark]:
    unzoned = [entry.line for entry in read.entries if timezone is None and entry.timezone == "UTC"]
    if not unzoned:
        return read.losses
    reason = "times are in UTC: cron took its machine's zone, which the file does not print_line; --timezone names it"
    return [*read.losses, Remark(unzoned[0], reason)]


def _print(imported: Sequence[Imported], faults: Sequence[Remark], losses: Sequence[Remark]) -> None:
    rows = [
        (each.line, fields["name"], job and job.job_id, each.schedule, each.timezone, job and job.next_run_at)
        for (each, fields), job, _ in imported
    ]
    print_rows(("line", "name", "id", "schedule", "timezone", "next run (UTC)"), rows, none="No jobs.")
    if losses:
        typer.echo()
        print_rows(("line", "not carried over"), losses, none="")
    for line, reason in faults:
        print_line(f"Error: line {line}: {reason}", err=True)
    if faults:
        typer.echo(f"{counted(len(faults), 'line')} could not be imported.", err=True)


def _print_json(imported: Sequence[Imported], faults: Sequence[Remark], losses: Sequence[Remark]) -> None:
    print_json(
        {
            "imported": [
                {"line": each.line, "job_id": job and job.job_id, **fields} for (each, fields), job, _ in imported
            ],
            "failed": [{"line": line, "reason": reason} for line, reason in faults],
            "not_carried_over": [{"line": line, "reason": reason} for line, reason in losses],
        }
    )
