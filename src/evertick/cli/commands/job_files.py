"""Files of jobs: NDJSON, a JSON array or YAML; the fields that they may have, and how two versions of a job differ."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib import import_module
from typing import Any, NamedTuple, assert_never

import click
import msgspec
from msgspec import NODEFAULT

from evertick.cli.options import FileFormat
from evertick.cli.output import encode_plain
from evertick.contract.job import Job, JobDocument, JobSpec, job_fields, timing_of
from evertick.domain.errors import EvertickError
from evertick.domain.job.timing import resolve_alone
from evertick.runtime.extras import MissingExtra

FIELDS = ("name", *JobDocument.__struct_fields__)
_SOME_KEY, _SOME_INSTANT = "job", datetime(2000, 1, 1, tzinfo=UTC)
"""How far apart the ticks of a schedule are does not depend on the job."""
READ_ONLY = frozenset(Job.__struct_fields__) - frozenset(FIELDS)
"""Fields of an answer that are no part of a definition: an import leaves them out."""


class FieldChange(NamedTuple):
    """What an import changes in a job."""

    field: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.field}: {_text(self.before)} → {_text(self.after)}"


class ImportEntry(NamedTuple):
    """A job of the file: by its line, or by its number in a list. `fault`: the line cannot be read."""

    number: int
    job: Any
    fault: str | None = None


def document_of(job: Job) -> dict[str, Any]:
    """The definition of a job, without fields that have their default: what `jobs import` takes.

    An answer also has what follows from other fields where nothing was set. That would stay if those changed.
    """
    return _without_defaults(job.name, job)


def plain_document(spec: JobSpec) -> dict[str, Any]:
    """The same of a definition that was read from a file."""
    return _without_defaults(spec.name, JobDocument(**job_fields(spec)))


def _without_defaults(name: str | None, job: JobDocument) -> dict[str, Any]:
    document: dict[str, Any] = {"name": name}
    derived = _derived(job)
    for field in msgspec.structs.fields(JobDocument):
        value = getattr(job, field.name)
        default = field.default if field.default_factory is NODEFAULT else field.default_factory()
        if value != default and value != derived.get(field.name):
            document[field.name] = value
    plain: dict[str, Any] = json.loads(json.dumps(document, default=encode_plain))
    return plain


def _derived(job: JobDocument) -> dict[str, Any]:
    """What fields are that follow from others, where nothing is set."""
    derived: dict[str, Any] = {} if job.concurrency_key is None else {"max_running": 1}
    if job.misfire_grace_seconds is not None:
        timing = timing_of(job)._replace(misfire_grace_seconds=None)
        # What is too costly to work out, or not valid, is written as it is.
        with suppress(EvertickError):
            grace = resolve_alone(timing, _SOME_KEY, _SOME_INSTANT).grace
            derived["misfire_grace_seconds"] = grace.total_seconds()
    return derived


def changes_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[FieldChange]:
    """The fields that differ between two definitions; None stands for the default."""
    return [
        FieldChange(field, before.get(field), after.get(field))
        for field in FIELDS
        if before.get(field) != after.get(field)
    ]


def write_documents(documents: list[dict[str, Any]], format: FileFormat) -> str:
    match format:
        case FileFormat.NDJSON:
            return "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in documents)
        case FileFormat.JSON:
            return json.dumps(documents, indent=2, ensure_ascii=False) + "\n"
        case FileFormat.YAML:
            text: str = _yaml().safe_dump(documents, sort_keys=False, allow_unicode=True)
            return text
        case _:
            assert_never(format)


def read_entries(text: str, format: FileFormat | None) -> list[ImportEntry]:
    """The jobs of a file. An invalid list is wrong usage. An invalid line is a fault of that line.

    Without a format, a file that begins with a bracket is an array, one whose first line is a brace is one job, as
    `jobs show --json` prints it, and others are NDJSON.
    """
    text = text.lstrip("\ufeff")
    if format is None:
        first_line, _, _ = text.lstrip().partition("\n")
        is_json = first_line.startswith("[") or first_line.rstrip() == "{"
        format = FileFormat.JSON if is_json else FileFormat.NDJSON  # noqa: A001
    match format:
        case FileFormat.NDJSON:
            lines = enumerate(text.split("\n"), 1)
            return [_parse_line(number, line) for number, line in lines if line.strip()]
        case FileFormat.JSON:
            return _numbered(_parse_array(text))
        case FileFormat.YAML:
            return _numbered(_parse_yaml(text))
        case _:
            assert_never(format)


def without_read_only(entry: ImportEntry) -> ImportEntry:
    """The entry without what an answer has beside the definition, so that answers can be imported."""
    if not isinstance(entry.job, Mapping):
        return entry
    return entry._replace(job={name: value for name, value in entry.job.items() if name not in READ_ONLY})


def _numbered(jobs: Any) -> list[ImportEntry]:
    return [ImportEntry(number, job) for number, job in enumerate(jobs, 1)]


def _parse_array(text: str) -> Any:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"the file is not a JSON array: {error}") from None
    return found if isinstance(found, list) else [found]


def _parse_yaml(text: str) -> list[Any]:
    yaml = _yaml()
    try:
        documents = list(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        raise click.BadParameter(f"the file is not YAML: {error}") from None
    return [json.loads(json.dumps(job, default=encode_plain)) for job in _flat(documents)]


def _flat(documents: list[Any]) -> Iterator[Any]:
    for document in documents:
        if isinstance(document, list):
            yield from document
        elif document is not None:
            yield document


def _yaml() -> Any:
    try:
        return import_module("yaml")
    except ModuleNotFoundError as error:
        raise MissingExtra("YAML needs a package: pip install 'evertick[yaml]'") from error


def _parse_line(number: int, text: str) -> ImportEntry:
    try:
        return ImportEntry(number, json.loads(text))
    except ValueError as error:
        return ImportEntry(number, None, f"is not JSON: {error}")


def _text(value: Any) -> str:
    return "default" if value is None else json.dumps(value, ensure_ascii=False)
