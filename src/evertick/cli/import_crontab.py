"""`evertick jobs import crontab`: one job for each entry of a crontab, and what could not be carried over."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.progress import track

from evertick.cli.acting import DEFAULT_TENANT, TenantName, Where, act
from evertick.cli.exit_codes import Exit
from evertick.cli.given import read_fields
from evertick.cli.options import AsJson, DatabaseUrl, DataDir
from evertick.cli.output import print_json, print_rows
from evertick.domain.crontab import Crontab, Entry, Remark, job_names, read_crontab
from evertick.domain.errors import InvalidFields, InvalidInput
from evertick.domain.schedule.english import counted
from evertick.sdk.declarations import check
from evertick.usecases import edit
from evertick.usecases.context import Tenant
from evertick.usecases.create import create
from evertick.usecases.views import Job

app = typer.Typer(no_args_is_help=True, help="Bring in jobs from elsewhere.", rich_markup_mode="rich")

_MANY = 20
"""From so many entries on, a bar shows how far it is."""
_SYSTEM_FILE, _SYSTEM_FOLDER = Path("/etc/crontab"), Path("/etc/cron.d")


class Wanted(NamedTuple):
    """A job to make, and the entry that it comes from."""

    entry: Entry
    fields: dict[str, Any]


class Imported(NamedTuple):
    """What became of an entry: its job, or why there is none. In a dry run there is neither."""

    wanted: Wanted
    job: Job | None = None
    fault: str | None = None


@app.callback()
def bring_in() -> None:
    """Makes `crontab` a command of its own, although it is the only one."""


@app.command()
def crontab(
    file: Annotated[typer.FileText, typer.Argument(metavar="FILE", encoding="utf-8", help="A crontab; - is stdin.")],
    *,
    handler: Annotated[str | None, typer.Option(metavar="NAME", help="Which handler runs the commands.")] = None,
    queue: Annotated[str | None, typer.Option(metavar="NAME", help="From which queue. [dim](default)[/dim]")] = None,
    url: Annotated[
        str | None, typer.Option("--target-url", "--url", metavar="URL", help="Or: where they are delivered by HTTP.")
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
    tenant: TenantName = DEFAULT_TENANT,
    database_url: DatabaseUrl = None,
    data_dir: DataDir = None,
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
    target = _target(handler, queue, url)
    given = read_fields("--set", fields or ())
    stem = "crontab" if file.name == "<stdin>" else path.stem
    named = zip(job_names(stem, read.entries), read.entries, strict=True)
    wanted = [Wanted(entry, {**_fields(entry, name), "target": target, **given}) for name, entry in named]
    if dry_run:
        imported = [_checked(each) for each in wanted]
    else:
        imported = act(
            Where(database_url, data_dir, tenant),
            lambda acting: _make(acting, wanted, replace=replace, with_bar=len(wanted) >= _MANY and not as_json),
        )
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


def _target(handler: str | None, queue: str | None, url: str | None) -> dict[str, str]:
    if (handler is None) == (url is None):
        raise typer.BadParameter("the jobs need --handler or --target-url, and not both")
    if handler is not None:
        return {"type": "worker", "handler": handler, **({} if queue is None else {"queue": queue})}
    if queue is not None:
        raise typer.BadParameter("--queue goes with --handler")
    assert url is not None
    return {"type": "http", "url": url}


def _fields(entry: Entry, name: str) -> dict[str, Any]:
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


async def _make(acting: Tenant, wanted: Sequence[Wanted], *, replace: bool, with_bar: bool) -> list[Imported]:
    console = Console(stderr=True)
    shown = track(wanted, "Importing", console=console, transient=True, disable=not (with_bar and console.is_terminal))
    return [await _make_one(acting, each, replace=replace) for each in shown]


async def _make_one(acting: Tenant, wanted: Wanted, *, replace: bool) -> Imported:
    fields = wanted.fields
    try:
        job = (await edit.put(acting, fields["name"], fields)).job if replace else await create(acting, fields)
    except (InvalidFields, InvalidInput) as refused:
        return Imported(wanted, fault=_why(refused))
    return Imported(wanted, job)


def _why(refused: InvalidFields | InvalidInput) -> str:
    if isinstance(refused, InvalidInput):
        return str(refused)
    return "; ".join(f"{pointer.lstrip('/') or 'job'}: {reason}" for pointer, reason in refused.faults)


def _losses(read: Crontab, timezone: str | None) -> list[Remark]:
    unzoned = [entry.line for entry in read.entries if timezone is None and entry.timezone == "UTC"]
    if not unzoned:
        return read.losses
    reason = "times are in UTC: cron took its machine's zone, which the file does not say; --timezone names it"
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
        typer.echo(f"Error: line {line}: {reason}", err=True)
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
