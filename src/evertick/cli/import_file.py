"""`evertick jobs import FILE`: jobs out of a file, one JSON object on each line or a JSON array of them."""

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeAlias

import typer

from evertick.cli.errors import Exit
from evertick.cli.errors import REJECTIONS, fault_lines, error_lines
from evertick.cli.output import progress_bar
from evertick.cli.options import AsJson
from evertick.cli.output import print_json, print_rows, print_line
from evertick.cli.connection import ConnectionOptions, call, connection_options
from evertick.cli.backend import Backend
from evertick.contract.jobs import Verdict
from evertick.domain.schedule.describe.english import counted

BATCH = 250
"""Jobs in one request: few enough for the largest payloads, and for a bar that moves."""


class Line(NamedTuple):
    """A job to make, by its place in the file: its line, or its number in an array. A fault: it cannot be read."""

    number: int
    job: object
    fault: str | None = None


class Imported(NamedTuple):
    """What became of a line: a job, or why there is none."""

    line: Line
    job_id: str | None = None
    fault: str | None = None

    @property
    def name(self) -> str | None:
        """As the file has it: a generated one is not known here."""
        return self.line.job.get("name") if isinstance(self.line.job, Mapping) else None


Way: TypeAlias = Callable[[Backend, Sequence[Line]], AsyncIterator[list[Imported]]]


@connection_options
def import_file(
    place: ConnectionOptions,
    file: Annotated[
        typer.FileText, typer.Argument(metavar="FILE", encoding="utf-8", help="NDJSON or a JSON array; - is stdin.")
    ],
    *,
    replace: Annotated[bool, typer.Option("--replace", help="Replace jobs of the same names.")] = False,
    as_json: AsJson = False,
) -> None:
    """Add the jobs of a file: one JSON object on each line, or an array of them, with the API's fields.

    Lines that cannot be imported are told, and do not keep back the others.

    [bold]Examples[/bold]

      evertick jobs import jobs.ndjson

      evertick jobs list --json --limit 1000 | jq -c '.[] | {name, schedule, target}' | evertick jobs import - --replace
    """
    lines = read_lines(_text_of(file))
    readable = [line for line in lines if line.fault is None]
    imported = [Imported(line, fault=line.fault) for line in lines if line.fault is not None]
    if readable:
        imported += _bring_in(place, readable, _replace_each if replace else _add_batches)
    _report(sorted(imported, key=lambda each: each.line.number), as_json=as_json)


def _bring_in(place: ConnectionOptions, lines: Sequence[Line], way: Way) -> list[Imported]:
    """What became of the lines. If it breaks off, how far it came is told: to start anew might make jobs twice."""
    imported: list[Imported] = []

    async def work(service: Backend) -> None:
        with progress_bar(len(lines)) as advance:
            async for some in way(service, lines):
                imported.extend(some)
                advance(len(some))

    try:
        call(place, work)
    except typer.Exit:
        made = [each for each in imported if each.fault is None]
        where = f", the last from line {made[-1].line.number}" if made else ""
        typer.echo(f"{counted(len(made), 'job')} of {len(lines):,} came in before that{where}.", err=True)
        raise
    return imported


def read_lines(text: str) -> list[Line]:
    """The jobs of a file. A fault of an array as a whole is wrong usage; a line's is its own."""
    if text.lstrip("\ufeff \t\r\n").startswith("["):
        try:
            return [Line(number, job) for number, job in enumerate(json.loads(text.lstrip("\ufeff")), 1)]
        except ValueError as error:
            raise typer.BadParameter(f"the file is no JSON array: {error}") from None
    lines = enumerate(text.lstrip("\ufeff").split("\n"), 1)
    return [_read_line(number, line) for number, line in lines if line.strip()]


def _read_line(number: int, text: str) -> Line:
    try:
        return Line(number, json.loads(text))
    except ValueError as error:
        return Line(number, None, f"is no JSON: {error}")


async def _add_batches(service: Backend, lines: Sequence[Line]) -> AsyncIterator[list[Imported]]:
    for start in range(0, len(lines), BATCH):
        part = lines[start : start + BATCH]
        verdicts = await service.add_jobs([line.job for line in part])
        yield [_judged(line, verdict) for line, verdict in zip(part, verdicts, strict=True)]


def _judged(line: Line, verdict: Verdict) -> Imported:
    faults = fault_lines((error.pointer, error.detail) for error in verdict.errors)
    return Imported(line, verdict.job_id, "; ".join(faults) or None)


async def _replace_each(service: Backend, lines: Sequence[Line]) -> AsyncIterator[list[Imported]]:
    for line in lines:
        yield [await _replace_one(service, line)]


async def _replace_one(service: Backend, line: Line) -> Imported:
    fields: Any = line.job
    if not isinstance(fields, dict) or not isinstance(fields.get("name"), str) or not fields["name"]:
        return Imported(line, fault="name: is needed to replace a job")
    try:
        return Imported(line, (await service.put_job(fields["name"], fields)).job_id)
    except REJECTIONS as refused:
        return Imported(line, fault="; ".join(error_lines(refused)))


def _text_of(file: typer.FileText) -> str:
    try:
        return file.read()
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"{file.name} is not UTF-8: {error}") from None


def _report(imported: Sequence[Imported], *, as_json: bool) -> None:
    made = [each for each in imported if each.fault is None]
    failed = [each for each in imported if each.fault is not None]
    if as_json:
        print_json(
            {
                "imported": [{"line": each.line.number, "job_id": each.job_id, "name": each.name} for each in made],
                "failed": [{"line": each.line.number, "reason": each.fault} for each in failed],
            }
        )
    else:
        rows = [(each.line.number, each.name, each.job_id) for each in made]
        print_rows(("line", "name", "id"), rows, none="No jobs.")
        for each in failed:
            print_line(f"Error: line {each.line.number}: {each.fault}", err=True)
        if failed:
            typer.echo(f"{counted(len(failed), 'line')} could not be imported.", err=True)
    if failed:
        raise typer.Exit(Exit.FAILED)
