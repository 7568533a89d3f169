"""`evertick jobs import`: creates jobs from a file, or says what it would change. `crontab_import` reads crontabs."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, NamedTuple, TextIO, TypeAlias

import click

from evertick.cli.commands.job_files import (
    FieldChange,
    ImportEntry,
    changes_between,
    document_of,
    plain_document,
    read_entries,
    without_read_only,
)
from evertick.cli.connection import Backend, ConnectionOptions, call, connection_options
from evertick.cli.errors import Exit, error_lines, exit_on_error, fault_lines
from evertick.cli.options import FileFormat, ReplaceAll, read_text
from evertick.cli.output import print_json, print_line, print_rows, progress_bar
from evertick.cli.signatures import Argument, CommandGroup, Option
from evertick.client import Conflict, Invalid, NotFound
from evertick.contract.job import timing_of
from evertick.contract.job_reading import read_spec
from evertick.contract.jobs import Verdict
from evertick.domain.admission import Throttled
from evertick.domain.errors import EvertickError, InvalidFields, InvalidInput
from evertick.domain.job.definition import define
from evertick.domain.limits import QuotaName
from evertick.domain.schedule.describe.english import counted
from evertick.usecases.errors import JobNotFound, QuotaReached

BATCH = 250
"""Jobs in one request: small enough for the largest payloads and for a progress bar that moves."""
_FILE = "file"
_REJECTIONS = (InvalidFields, InvalidInput, Invalid, Conflict)
"""Errors of one item of a batch. The next item can still succeed."""


class FileByDefault(CommandGroup):
    """`import jobs.ndjson` means `import file jobs.ndjson`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.list_commands(ctx) and args[0] not in ctx.help_option_names:
            args = [_FILE, *args]
        return super().parse_args(ctx, args)


app = FileByDefault(help="Import jobs from a file (jobs import FILE) or from another source.")


class ImportedEntry(NamedTuple):
    """The job that was created from an entry, or the reason why none was. A dry run creates none.

    `changes`: what a dry run says of a job that is there; None if it would be new.
    """

    entry: ImportEntry
    job_id: str | None = None
    fault: str | None = None
    next_run_at: datetime | None = None
    changes: Sequence[FieldChange] | None = None

    @property
    def name(self) -> str | None:
        """The name in the file. A generated name is not known here."""
        return self.entry.job.get("name") if isinstance(self.entry.job, Mapping) else None


Importer: TypeAlias = Callable[[Backend, Sequence[ImportEntry]], AsyncIterator[list[ImportedEntry]]]


@app.add(_FILE)
@connection_options
def import_file(
    connection: ConnectionOptions,
    file: Annotated[
        TextIO,
        Argument(metavar="FILE", help="NDJSON, a JSON array or YAML; - is stdin."),
    ],
    *,
    replace: ReplaceAll = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Check the file and say what it would change.")] = False,
    file_format: Annotated[
        FileFormat | None, Option("--format", help="Of the file. [default: by its name or its beginning]")
    ] = None,
) -> None:
    """Create the jobs of a file: one JSON object on each line, or a list of objects, with the fields of the API.

    Invalid lines are reported. The other lines are imported. With --replace, a field that a job of the file leaves out
    gets its default. Fields that only answers have (job_id, status, next_run_at, …) are ignored, so a file that
    `evertick jobs export` or the API has written can be imported; a paused job is not paused by it.

    Examples

      evertick jobs import jobs.ndjson

      evertick jobs export --format yaml > jobs.yaml

      evertick jobs import jobs.yaml --replace --dry-run
    """
    if file_format is None and file.name.endswith((".yaml", ".yml")):
        file_format = FileFormat.YAML
    with exit_on_error():
        entries = [without_read_only(entry) for entry in read_entries(read_text(file), file_format)]
    readable = [entry for entry in entries if entry.fault is None]
    imported = [ImportedEntry(entry, fault=entry.fault) for entry in entries if entry.fault is not None]
    if readable:
        importer = partial(_compare, replace=replace) if dry_run else _replace_each if replace else _add_batches
        imported += _import(connection, readable, importer)
    imported.sort(key=lambda each: each.entry.number)
    if dry_run:
        _print_dry_run(imported, as_json=connection.as_json)
    else:
        _print_result(imported, as_json=connection.as_json)


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
    except click.exceptions.Exit:
        created = [each for each in imported if each.fault is None]
        last = f", the last from line {created[-1].entry.number}" if created else ""
        click.echo(f"{counted(len(created), 'job')} of {len(entries):,} imported before the error{last}.", err=True)
        raise
    return imported


async def _compare(
    backend: Backend, entries: Sequence[ImportEntry], *, replace: bool
) -> AsyncIterator[list[ImportedEntry]]:
    """What an import would do."""
    for entry in entries:
        yield [await _compare_one(backend, entry, replace=replace)]


async def _compare_one(backend: Backend, entry: ImportEntry, *, replace: bool) -> ImportedEntry:
    try:
        spec = read_spec(entry.job)
        # Also what a schedule's text means.
        define(timing_of(spec), 0, datetime.now(UTC), datetime.now(UTC))
    except _REJECTIONS as rejection:
        return ImportedEntry(entry, fault=reason_of(rejection))
    if spec.name is None:
        return ImportedEntry(entry, fault="name: is needed to replace a job" if replace else None)
    try:
        known = await backend.get_job(spec.name)
    except (JobNotFound, NotFound):
        return ImportedEntry(entry)
    if not replace:
        return ImportedEntry(entry, fault=f"name: {spec.name!r} is the name of another job: use --replace")
    return ImportedEntry(entry, known.job_id, changes=changes_between(document_of(known), plain_document(spec)))


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
    except _REJECTIONS as rejection:
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
        raise click.exceptions.Exit(Exit.FAILED)


def _print_dry_run(compared: Sequence[ImportedEntry], *, as_json: bool) -> None:
    valid = [each for each in compared if each.fault is None]
    failed = [each for each in compared if each.fault is not None]
    if as_json:
        print_json(
            {
                "created": [each.name for each in valid if each.changes is None],
                "changed": {
                    str(each.name): {change.field: [change.before, change.after] for change in each.changes}
                    for each in valid
                    if each.changes
                },
                "unchanged": [each.name for each in valid if each.changes is not None and not each.changes],
                "failed": [{"line": each.entry.number, "reason": each.fault} for each in failed],
            }
        )
    else:
        for each in valid:
            if each.changes is None:
                print_line(f"+ {each.name or 'a job without a name'}: new")
            for change in each.changes or ():
                print_line(f"~ {each.name}: {change}")
        unchanged = sum(each.changes is not None and not each.changes for each in valid)
        click.echo(f"{counted(unchanged, 'job')} unchanged. Nothing was imported.")
        print_failed_lines([(each.entry.number, each.fault) for each in failed])
    if failed:
        raise click.exceptions.Exit(Exit.FAILED)


def print_failed_lines(faults: Sequence[tuple[int, str | None]]) -> None:
    for line, reason in faults:
        print_line(f"Error: line {line}: {reason}", err=True)
    if faults:
        click.echo(f"{counted(len(faults), 'line')} could not be imported.", err=True)
