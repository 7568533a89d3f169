"""`evertick jobs import`: creates jobs from a file, NDJSON or a JSON array. `crontab_import` reads crontabs."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, NamedTuple, TypeAlias

import typer
from typer.core import TyperGroup

from evertick.cli.connection import Backend, ConnectionOptions, call, connection_options
from evertick.cli.errors import REJECTIONS, Exit, error_lines, fault_lines
from evertick.cli.options import ReplaceAll, read_text
from evertick.cli.output import print_json, print_line, print_rows, progress_bar
from evertick.contract.jobs import Verdict
from evertick.domain.admission import QuotaName, Throttled
from evertick.domain.errors import EvertickError
from evertick.domain.schedule.describe.english import counted
from evertick.usecases.errors import QuotaReached

BATCH = 250
"""Jobs in one request: small enough for the largest payloads and for a progress bar that moves."""
_FILE = "file"


class FileByDefault(TyperGroup):
    """`import jobs.ndjson` means `import file jobs.ndjson`."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [_FILE, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=FileByDefault,
    no_args_is_help=True,
    help="Import jobs from a file (jobs import FILE) or from another source.",
    rich_markup_mode="rich",
)


class ImportEntry(NamedTuple):
    """A job of the file: by its line, or by its number in an array. `fault`: the line is not JSON."""

    number: int
    job: Any
    fault: str | None = None


class ImportedEntry(NamedTuple):
    """The job that was created from an entry, or the reason why none was. A dry run creates none."""

    entry: ImportEntry
    job_id: str | None = None
    fault: str | None = None
    next_run_at: datetime | None = None

    @property
    def name(self) -> str | None:
        """The name in the file. A generated name is not known here."""
        return self.entry.job.get("name") if isinstance(self.entry.job, Mapping) else None


Importer: TypeAlias = Callable[[Backend, Sequence[ImportEntry]], AsyncIterator[list[ImportedEntry]]]


@app.command(_FILE)
@connection_options
def import_file(
    connection: ConnectionOptions,
    file: Annotated[
        typer.FileText, typer.Argument(metavar="FILE", encoding="utf-8", help="NDJSON or a JSON array; - is stdin.")
    ],
    *,
    replace: ReplaceAll = False,
) -> None:
    """Create the jobs of a file: one JSON object on each line, or an array of objects, with the fields of the API.

    Invalid lines are reported. The other lines are imported.

    [bold]Examples[/bold]

      evertick jobs import jobs.ndjson

      evertick jobs list --json --limit 1000 | jq -c '.[] | {name, schedule, target}' | evertick jobs import - --replace
    """
    entries = parse_entries(read_text(file))
    readable = [entry for entry in entries if entry.fault is None]
    imported = [ImportedEntry(entry, fault=entry.fault) for entry in entries if entry.fault is not None]
    if readable:
        imported += _import(connection, readable, _replace_each if replace else _add_batches)
    _print_result(sorted(imported, key=lambda each: each.entry.number), as_json=connection.as_json)


def _import(connection: ConnectionOptions, entries: Sequence[ImportEntry], importer: Importer) -> list[ImportedEntry]:
    """Import entries. If an error ends it, the command says how far it got: a restart could create jobs twice."""
    imported: list[ImportedEntry] = []

    async def work(backend: Backend) -> None:
        with progress_bar("Importing", len(entries)) as advance:
            async for batch in importer(backend, entries):
                imported.extend(batch)
                advance(len(batch))

    try:
        call(connection, work)
    except typer.Exit:
        created = [each for each in imported if each.fault is None]
        last = f", the last from line {created[-1].entry.number}" if created else ""
        typer.echo(f"{counted(len(created), 'job')} of {len(entries):,} imported before the error{last}.", err=True)
        raise
    return imported


def parse_entries(text: str) -> list[ImportEntry]:
    """The jobs of a file. An invalid array is wrong usage. An invalid line is a fault of that line."""
    if text.lstrip("\ufeff \t\r\n").startswith("["):
        try:
            return [ImportEntry(number, job) for number, job in enumerate(json.loads(text.lstrip("\ufeff")), 1)]
        except ValueError as error:
            raise typer.BadParameter(f"the file is not a JSON array: {error}") from None
    lines = enumerate(text.lstrip("\ufeff").split("\n"), 1)
    return [_parse_line(number, line) for number, line in lines if line.strip()]


def _parse_line(number: int, text: str) -> ImportEntry:
    try:
        return ImportEntry(number, json.loads(text))
    except ValueError as error:
        return ImportEntry(number, None, f"is not JSON: {error}")


async def _add_batches(backend: Backend, entries: Sequence[ImportEntry]) -> AsyncIterator[list[ImportedEntry]]:
    for start in range(0, len(entries), BATCH):
        batch = entries[start : start + BATCH]
        while batch:
            verdicts = await _add_batch(backend, batch)
            answered = list(zip(batch, verdicts, strict=True))
            yield [_with_verdict(entry, verdict) for entry, verdict in answered if not _is_early(verdict)]
            batch = [entry for entry, verdict in answered if _is_early(verdict)]


async def _add_batch(backend: Backend, batch: Sequence[ImportEntry]) -> list[Verdict]:
    """Send a batch; while the rate admits nothing of it, wait. The client of the API waits by itself."""
    while True:
        try:
            return await backend.add_jobs([entry.job for entry in batch])
        except QuotaReached as refused:
            if not isinstance(refused.verdict, Throttled) or refused.quota is not QuotaName.SUBMIT_RATE:
                raise
            await asyncio.sleep(refused.verdict.retry_after.total_seconds())


def _is_early(verdict: Verdict) -> bool:
    """Whether the job can be sent again later as it is: the rate did not admit it yet."""
    return verdict.quota == QuotaName.SUBMIT_RATE


def _with_verdict(entry: ImportEntry, verdict: Verdict) -> ImportedEntry:
    faults = fault_lines((error.pointer, error.detail) for error in verdict.errors)
    return ImportedEntry(entry, verdict.job_id, "; ".join(faults) or None)


async def _replace_each(backend: Backend, entries: Sequence[ImportEntry]) -> AsyncIterator[list[ImportedEntry]]:
    for entry in entries:
        yield [await _replace(backend, entry)]


async def _replace(backend: Backend, entry: ImportEntry) -> ImportedEntry:
    fields = entry.job
    if not isinstance(fields, dict) or not isinstance(fields.get("name"), str) or not fields["name"]:
        return ImportedEntry(entry, fault="name: is needed to replace a job")
    return await create_one(backend, entry, replace=True)


async def create_one(backend: Backend, entry: ImportEntry, *, replace: bool) -> ImportedEntry:
    fields = entry.job
    try:
        job = await (backend.put_job(fields["name"], fields) if replace else backend.add_job(fields))
    except REJECTIONS as rejection:
        return ImportedEntry(entry, fault=reason_of(rejection))
    return ImportedEntry(entry, job.job_id, next_run_at=job.next_run_at)


def reason_of(rejection: EvertickError) -> str:
    return "; ".join(error_lines(rejection))


def _print_result(imported: Sequence[ImportedEntry], *, as_json: bool) -> None:
    created = [each for each in imported if each.fault is None]
    failed = [each for each in imported if each.fault is not None]
    if as_json:
        print_json(
            {
                "imported": [{"line": each.entry.number, "job_id": each.job_id, "name": each.name} for each in created],
                "failed": [{"line": each.entry.number, "reason": each.fault} for each in failed],
            }
        )
    else:
        rows = [(each.entry.number, each.name, each.job_id) for each in created]
        print_rows(("line", "name", "id"), rows, empty="No jobs.")
        print_failed_lines([(each.entry.number, each.fault) for each in failed])
    if failed:
        raise typer.Exit(Exit.FAILED)


def print_failed_lines(faults: Sequence[tuple[int, str | None]]) -> None:
    for line, reason in faults:
        print_line(f"Error: line {line}: {reason}", err=True)
    if faults:
        typer.echo(f"{counted(len(faults), 'line')} could not be imported.", err=True)
