"""The files of the archive: writes, checks, reads and removes them. The one module that uses pyarrow.

All calls block: callers make them in threads (`runtime.archive`). A file is written under its name at once where an
upload is invisible until it is complete, as in S3; in a directory it is renamed when it is on the disk.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from evertick.domain.archiving import FileKind
from evertick.domain.ids import Prefix, format_id, format_run_id, partition_of
from evertick.domain.schedule.instants import from_us, to_us
from evertick.domain.states import OpenAttempt, Outcome, run_status
from evertick.store.archive.days import AttemptLine, Extent, GapLine
from evertick.store.errors import ArchiveDamaged, ArchiveUnavailable

CONNECT_SECONDS = 10.0
REQUEST_SECONDS = 60.0
TRIES = 3
CHUNK_BYTES = 1 << 20
_SEPARATOR, _NULL = "\x1f", "\x1e"
_QUEUE_BITS = 11
_AT = pa.timestamp("us", tz="UTC")

_ATTEMPT_COLUMNS = (
    ("lane_id", pa.int64()),
    ("seq", pa.int64()),
    ("job_key", pa.int64()),
    ("attempt", pa.int16()),
    ("is_last", pa.bool_()),
    ("is_withdrawn", pa.bool_()),
    ("scheduled_at", _AT),
    ("due_at", _AT),
    ("started_at", _AT),
    ("finished_at", _AT),
    ("reason", pa.string()),
    ("spec_version", pa.int32()),
    ("result", pa.string()),
    ("result_code", pa.int32()),
    ("worker", pa.string()),
    ("error", pa.string()),
    ("excerpt", pa.string()),
    ("job_name", pa.string()),
    ("queue", pa.string()),
    ("handler", pa.string()),
    ("target", pa.string()),
)
"""In the order of `AttemptLine`, and of the lines that the database makes digests of."""
_GAP_COLUMNS = (
    ("job_key", pa.int64()),
    ("scheduled_at", _AT),
    ("until", _AT),
    ("count", pa.int64()),
    ("spec_version", pa.int32()),
    ("reason", pa.string()),
    ("job_name", pa.string()),
)
_RUN_SCHEMA = pa.schema([("run_id", pa.string()), ("job_id", pa.string()), ("status", pa.string()), *_ATTEMPT_COLUMNS])
_GAP_SCHEMA = pa.schema([("job_id", pa.string()), *_GAP_COLUMNS])
_SCHEMAS = {FileKind.RUNS: _RUN_SCHEMA, FileKind.GAPS: _GAP_SCHEMA}
_DIGESTED = {
    FileKind.RUNS: [name for name, _ in _ATTEMPT_COLUMNS],
    FileKind.GAPS: [name for name, _ in _GAP_COLUMNS if name != "job_name"],
}
_LAST_AT = {FileKind.RUNS: "scheduled_at", FileKind.GAPS: "until"}


class Checked(NamedTuple):
    """What a file holds, as it was read back. `outcomes`: rows with a result, but for withdrawals."""

    rows: int
    outcomes: int
    bytes: int
    digest: int
    sha256: str
    extent: Extent


class Access(NamedTuple):
    """How S3-compatible storage is reached; None: as the standard variables of AWS say."""

    endpoint: str | None = None
    region: str | None = None
    access_key: str | None = None
    secret_key: str | None = None


class ParquetArchive:
    """Files below a root. `filesystem` is pyarrow's, or acts as one."""

    def __init__(self, filesystem: Any, root: str, *, is_local: bool) -> None:
        self._filesystem = filesystem
        self._root = root.rstrip("/")
        self._is_local = is_local

    @classmethod
    def open(cls, url: str, access: Access) -> "ParquetArchive":
        """A directory, as `file:///path` or a path, or `s3://bucket/prefix`."""
        parts = urlsplit(url)
        if parts.scheme != "s3":
            root = str(Path(parts.path if parts.scheme == "file" else url).expanduser().absolute())
            return cls(pafs.LocalFileSystem(), root, is_local=True)
        options: dict[str, Any] = {"connect_timeout": CONNECT_SECONDS, "request_timeout": REQUEST_SECONDS}
        if access.endpoint is not None:
            options["endpoint_override"] = access.endpoint
        if access.region is not None:
            options["region"] = access.region
        if access.access_key is not None:
            options |= {"access_key": access.access_key, "secret_key": access.secret_key}
        with _explained(url):
            filesystem = pafs.S3FileSystem(
                retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=TRIES), **options
            )
        return cls(filesystem, f"{parts.netloc}{parts.path}", is_local=False)

    def writer(self, path: str, kind: FileKind) -> "FileWriter":
        place = self._place(path)
        with _explained(path):
            if self._is_local:
                self._filesystem.create_dir(place.rpartition("/")[0], recursive=True)
            stream = self._filesystem.open_output_stream(place + ".part" if self._is_local else place)
            return FileWriter(stream, path, kind, lambda: self._settle(place))

    def write_bytes(self, path: str, content: bytes) -> None:
        """A small file as a whole, in place of one of that name."""
        place = self._place(path)
        with _explained(path):
            if self._is_local:
                self._filesystem.create_dir(place.rpartition("/")[0], recursive=True)
            with self._filesystem.open_output_stream(place + ".part" if self._is_local else place) as stream:
                stream.write(content)
            self._settle(place)

    def delete(self, path: str) -> None:
        """Remove a file, finished or not, if there is one."""
        place = self._place(path)
        with _explained(path):
            for name in (place, place + ".part") if self._is_local else (place,):
                with suppress(FileNotFoundError):
                    self._filesystem.delete_file(name)

    def check(self, path: str, kind: FileKind) -> Checked:
        """Read a whole file, twice: its bytes, and its rows a row group at a time."""
        sha, size = hashlib.sha256(), 0
        with _explained(path), self._filesystem.open_input_stream(self._place(path)) as stream:
            while chunk := stream.read(CHUNK_BYTES):
                sha.update(chunk)
                size += len(chunk)
        rows = outcomes = digest = 0
        seqs: list[int] = []
        ats: list[datetime] = []
        with self._groups(path) as groups:
            for group in groups:
                table = group.read()
                rows += table.num_rows
                digest += _digest_of(table, kind)
                ats += [pc.min(table["scheduled_at"]).as_py(), pc.max(table[_LAST_AT[kind]]).as_py()]
                if kind is FileKind.RUNS:
                    attempted = table.filter(pc.greater(table["attempt"], 0))
                    outcomes += attempted.num_rows - attempted["result"].null_count
                    seqs += [pc.min(table["seq"]).as_py(), pc.max(table["seq"]).as_py()]
        never_at = datetime(1970, 1, 1, tzinfo=UTC)
        extent = Extent(
            min(seqs, default=0), max(seqs, default=0), min(ats, default=never_at), max(ats, default=never_at)
        )
        return Checked(rows, outcomes, size, digest, sha.hexdigest(), extent)

    def newest_runs(
        self, path: str, from_at: datetime, before_at: datetime, before: tuple[int, int], most: int
    ) -> list[AttemptLine]:
        """The last runs of a tenant before a place (seq, lane), newest first; only those that were attempted."""
        found: list[AttemptLine] = []

        def is_wanted(rows: Any) -> Any:
            return _all_of(
                rows["is_last"],
                pc.greater(rows["attempt"], 0),
                pc.less_equal(rows["seq"], before[0]),
                *_within(rows["scheduled_at"], from_at, before_at),
            )

        with self._groups(path) as groups:
            for group in sorted(groups, key=lambda group: group.last("seq"), reverse=True):
                if len(found) == most and group.last("seq") < found[-1].seq:
                    break
                if group.first("seq") <= before[0] and group.may_have(scheduled_at=(from_at, before_at)):
                    lines = _lines(group.read(is_wanted))
                    found += [line for line in lines if (line.seq, line.lane_id) < before]
                    found = sorted(found, key=lambda line: (-line.seq, -line.lane_id))[:most]
        return found

    def runs_of_job(
        self, path: str, job_id: int, from_at: datetime, before_at: datetime, most: int
    ) -> list[AttemptLine]:
        """The last runs of a job in a range of fire times, newest first, by their last attempts."""
        found = self._attempts_of_job(path, job_id, from_at, before_at, only_last=True)
        return sorted(found, key=lambda line: (line.fire_at, line.attempt), reverse=True)[:most]

    def attempts_of_run(self, path: str, job_id: int, fire_at: datetime) -> list[AttemptLine]:
        """All attempts of a run in a file."""
        end_at = from_us(to_us(fire_at) + 1)
        return list(self._attempts_of_job(path, job_id, fire_at, end_at, only_last=False))

    def gaps_of_job(self, path: str, job_id: int, from_at: datetime, before_at: datetime) -> list[GapLine]:
        """The gaps of a job that reach into a range."""
        found: list[GapLine] = []

        def is_wanted(rows: Any) -> Any:
            return _all_of(
                pc.equal(rows["job_key"], job_id),
                pc.greater_equal(rows["until"], pa.scalar(from_at, _AT)),
                pc.less(rows["scheduled_at"], pa.scalar(before_at, _AT)),
            )

        with self._groups(path) as groups:
            for group in groups:
                if group.may_have(job_key=(job_id, job_id + 1)):
                    table = group.read(is_wanted)
                    columns = [table[name].to_pylist() for name, _ in _GAP_COLUMNS]
                    found += [GapLine._make((*values, 0)) for values in zip(*columns, strict=True)]
        return found

    def _attempts_of_job(
        self, path: str, job_id: int, from_at: datetime, before_at: datetime, *, only_last: bool
    ) -> Iterator[AttemptLine]:
        def is_wanted(rows: Any) -> Any:
            return _all_of(
                pc.equal(rows["job_key"], job_id),
                *_within(rows["scheduled_at"], from_at, before_at),
                *([rows["is_last"]] if only_last else []),
            )

        with self._groups(path) as groups:
            for group in groups:
                lanes = group.first("lane_id"), group.last("lane_id")
                if group.may_have(
                    job_key=(job_id, job_id + 1), scheduled_at=(from_at, before_at)
                ) and _may_have_partition(*lanes, partition_of(job_id)):
                    yield from _lines(group.read(is_wanted))

    @contextmanager
    def _groups(self, path: str) -> Iterator[list["_RowGroup"]]:
        """The row groups of a file, which can be read inside the context."""
        with _explained(path), self._filesystem.open_input_file(self._place(path)) as source:
            file = pq.ParquetFile(source)
            yield [_RowGroup(file, number) for number in range(file.metadata.num_row_groups)]

    def _settle(self, place: str) -> None:
        """Put a file in its place, once it is on the disk: after that its rows leave the database."""
        if not self._is_local:
            return
        _sync(place + ".part")
        self._filesystem.move(place + ".part", place)
        _sync(place.rpartition("/")[0])

    def _place(self, path: str) -> str:
        return f"{self._root}/{path}"


class FileWriter:
    """A file that is being written, a row group at a time."""

    def __init__(self, stream: Any, path: str, kind: FileKind, settle: Callable[[], None]) -> None:
        self._stream = stream
        self._path = path
        self._kind = kind
        self._settle = settle
        self._writer = pq.ParquetWriter(stream, _SCHEMAS[kind], compression="zstd")

    def add(self, lines: Sequence[AttemptLine] | Sequence[GapLine]) -> None:
        """Write lines as one row group."""
        with _explained(self._path):
            self._writer.write_table(_table_of(self._kind, lines), row_group_size=len(lines))

    def close(self) -> None:
        with _explained(self._path):
            self._writer.close()
            self._stream.close()
            self._settle()


class _RowGroup:
    """A row group of an open file, and what its statistics say."""

    def __init__(self, file: Any, number: int) -> None:
        self._file = file
        self._number = number
        self._metadata = file.metadata.row_group(number)
        self._columns = {name: place for place, name in enumerate(file.schema_arrow.names)}

    def first(self, name: str) -> Any:
        return self._statistics(name).min

    def last(self, name: str) -> Any:
        return self._statistics(name).max

    def may_have(self, **ranges: tuple[Any, Any]) -> bool:
        """Whether it may have rows with each of these columns in its range, from the first on and before the end."""
        return all(self.last(name) >= first and self.first(name) < end for name, (first, end) in ranges.items())

    def read(self, wanted: Callable[[Any], Any] | None = None) -> Any:
        """Its rows, those alone that are wanted."""
        table = self._file.read_row_group(self._number)
        return table if wanted is None else table.filter(wanted(table))

    def _statistics(self, name: str) -> Any:
        return self._metadata.column(self._columns[name]).statistics


def _table_of(kind: FileKind, lines: Sequence[AttemptLine] | Sequence[GapLine]) -> Any:
    *columns, _ = zip(*lines, strict=True)  # without the digests
    if kind is FileKind.GAPS:
        job_ids = [format_id(Prefix.JOB, line.job_id) for line in lines]
        arrays = [job_ids, *columns]
    else:
        arrays = [
            [format_run_id(line.job_id, to_us(line.fire_at)) for line in lines if isinstance(line, AttemptLine)],
            [format_id(Prefix.JOB, line.job_id) for line in lines],
            [_status_of(line) for line in lines if isinstance(line, AttemptLine)],
            *columns,
        ]
    schema = _SCHEMAS[kind]
    typed = [pa.array(values, field.type) for values, field in zip(arrays, schema, strict=True)]
    return pa.Table.from_arrays(typed, schema=schema)


def _status_of(line: AttemptLine) -> str | None:
    """The status of the run, at its last attempt."""
    if not line.is_last:
        return None
    latest = None if line.attempt == 0 else OpenAttempt.READY if line.result is None else Outcome(line.result)
    return str(run_status(latest, timer_pending=False, withdrawn=line.is_withdrawn))


def _digest_of(table: Any, kind: FileKind) -> int:
    """The sum of the digests of rows, as the database's `row_digest` has them."""
    texts = []
    for name in _DIGESTED[kind]:
        column = table[name]
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        texts.append(pc.fill_null(column.cast(pa.string()), _NULL))
    lines = pc.binary_join_element_wise(*texts, _SEPARATOR).to_pylist()
    digests = (hashlib.md5(line.encode(), usedforsecurity=False).digest() for line in lines)
    return sum(int.from_bytes(digest[:8], "big") >> 4 for digest in digests)


def _lines(table: Any) -> Iterator[AttemptLine]:
    columns = [table[name].to_pylist() for name, _ in _ATTEMPT_COLUMNS]
    for values in zip(*columns, strict=True):
        yield AttemptLine._make((*values, 0))


def _within(column: Any, from_at: datetime, before_at: datetime) -> list[Any]:
    return [
        pc.greater_equal(column, pa.scalar(from_at, _AT)),
        pc.less(column, pa.scalar(before_at, _AT)),
    ]


def _all_of(first: Any, *others: Any) -> Any:
    for other in others:
        first = pc.and_(first, other)
    return first


def _may_have_partition(first_lane: int, last_lane: int, partition: int) -> bool:
    """Whether there may be a lane of a partition between two lanes. Withdrawn runs have the lane 0."""
    if first_lane == 0 or first_lane >> _QUEUE_BITS != last_lane >> _QUEUE_BITS:
        return True
    return (first_lane >> 3) & 255 <= partition <= (last_lane >> 3) & 255


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _explained(path: str) -> Iterator[None]:
    """Turn whatever keeps the storage from doing its work into one error that explains it."""
    try:
        yield
    except OSError as error:  # a file that is no Parquet file raises this too, for some faults
        raise ArchiveUnavailable(f"the archive cannot be used: {path}: {_first_line(error)}") from error
    except pa.ArrowException as error:
        raise ArchiveDamaged(f"a file of the archive is damaged: {path}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:300]
