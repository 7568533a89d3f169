"""Reads the statements in `sql/*.sql`: static text, named, with named parameters and declared rows.

A statement begins with `-- name: verb` and runs to the next one. `:job_ids` in its text is the parameter `job_ids`,
numbered by first appearance; nothing else is ever put into the text. Indentation is left out: the driver keeps no
statement prepared that is longer than `LONGEST`, and would have it planned anew each time.

A statement whose rows are read declares their type: `rows` a named tuple, `values` the type of its one column. A test
prepares every statement and compares names, order and types of its columns with the declaration. So rows are mapped by
name in effect, at the price of mapping them by position: `_make` takes the values of a record as they come. For 100,000
attempts that takes 0.34 s, `Row(*record)` 0.44 s, and fetching the fields by their names 0.62 s.
"""

import functools
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from itertools import islice
from operator import itemgetter
from typing import Any, Generic, TypeAlias, TypeVar, get_type_hints

import asyncpg

from evertick.metrics.catalog import STATEMENT_ERRORS, STATEMENT_SECONDS
from evertick.store.database import Pool, Session

Connection: TypeAlias = Session | Pool
"""Whatever runs one statement."""

_R = TypeVar("_R", bound=tuple[Any, ...])
_T = TypeVar("_T")

LONGEST = 15 * 1024
"""Characters: asyncpg's `max_cacheable_statement_size`."""

DECLARED: dict[str, type] = {}
"""The type of the rows of each statement that is read, or of its one value, by the statement's name."""

_NAME = re.compile(r"^-- name:[ \t]*(\w+)[ \t]*$", re.MULTILINE)
# What may hold a colon that is no parameter comes first, so that the scan passes over it whole.
_TOKEN = re.compile(
    r"""
      (?P<comment> --[^\n]* | /\*.*?\*/ )
    | '(?:[^']|'')*' | "(?:[^"]|"")*" | (?P<tag>\$\w*\$).*?(?P=tag)
    | ::
    | (?<!\w):(?P<parameter>[a-z_][a-z0-9_]*)
    | (?P<space>\s+)
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement, as Postgres wants it, and the names of its parameters in order."""

    name: str
    text: str
    parameters: tuple[str, ...]

    def rows(self, kind: type[_R]) -> "Query[_R]":
        """Declare that its columns are the fields of a named tuple, and of those in it, in their order."""
        DECLARED[self.name] = kind
        return Query(self, _maker(kind))

    def values(self, kind: type[_T]) -> "Query[_T]":
        """Declare that it has one column of this type."""
        DECLARED[self.name] = kind
        return Query(self, itemgetter(0))

    async def execute(self, connection: Connection, **values: Any) -> str:
        with self.timed():
            return await connection.execute(self.text, *self.arguments(values))

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Observe how long the statement takes, or that it failed."""
        began = time.perf_counter()
        try:
            yield
        except BaseException:
            STATEMENT_ERRORS.add(1, self.name)
            raise
        STATEMENT_SECONDS.of(self.name).observe(time.perf_counter() - began)

    def arguments(self, values: dict[str, Any]) -> list[Any]:
        """The values in the order of the parameters: each of them, and no others."""
        if values.keys() != set(self.parameters):
            raise TypeError(f"{self.name} takes {sorted(self.parameters)}, was given {sorted(values)}")
        return [values[name] for name in self.parameters]


@dataclass(frozen=True, slots=True)
class Query(Generic[_T]):
    """A statement whose rows are read, each as one value that `make` makes of it."""

    statement: Statement
    make: Callable[[asyncpg.Record], _T]

    async def all(self, connection: Connection, **values: Any) -> list[_T]:
        arguments = self.statement.arguments(values)
        with self.statement.timed():
            records = await connection.fetch(self.statement.text, *arguments)
        return list(map(self.make, records))

    async def lazily(self, connection: Connection, within_seconds: float, /, **values: Any) -> Iterator[_T]:
        """The rows, each made when it is asked for: a thread may do so, and the event loop need not stop for it."""
        arguments = self.statement.arguments(values)
        with self.statement.timed():
            records = await connection.fetch(self.statement.text, *arguments, timeout=within_seconds)
        return map(self.make, records)

    async def one(self, connection: Connection, within_seconds: float | None = None, /, **values: Any) -> _T:
        row = await self.one_or_none(connection, within_seconds, **values)
        assert row is not None
        return row

    async def one_or_none(
        self, connection: Connection, within_seconds: float | None = None, /, **values: Any
    ) -> _T | None:
        """None: there is no row, or its one value is null."""
        arguments = self.statement.arguments(values)
        with self.statement.timed():
            record = await connection.fetchrow(self.statement.text, *arguments, timeout=within_seconds)
        return None if record is None else self.make(record)


def columns(names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> dict[str, Sequence[Any]]:
    """Rows as columns by the names of parameters, for statements that take arrays."""
    values = zip(*rows, strict=True) if rows else [()] * len(names)
    return dict(zip(names, values, strict=True))


def row_count(tag: str) -> int:
    """The number of rows in a command's tag, such as `DELETE 10`."""
    return int(tag.rpartition(" ")[2])


def columns_of(kind: type) -> Iterator[tuple[str, Any]]:
    """The names and types of the columns that become a named tuple. Those of a tuple in it stand in its place."""
    hints = get_type_hints(kind) if _fields(kind) else {}
    for name in _fields(kind):
        if _fields(hints[name]):
            yield from columns_of(hints[name])
        else:
            yield name, hints[name]


def _maker(kind: type[_R]) -> Callable[[asyncpg.Record], _R]:
    hints = get_type_hints(kind)
    if not any(_fields(hints[name]) for name in _fields(kind)):
        make: Callable[[asyncpg.Record], _R] = kind._make  # type: ignore[attr-defined]
        return make
    parts = [(hints[name], len(list(columns_of(hints[name])))) for name in _fields(kind)]
    return functools.partial(_nested, kind, parts)


def _nested(kind: type[_R], parts: list[tuple[Any, int]], record: asyncpg.Record) -> _R:
    values = iter(record)
    return kind(*(part._make(islice(values, width)) if width else next(values) for part, width in parts))


def _fields(kind: Any) -> tuple[str, ...]:
    fields: tuple[str, ...] = getattr(kind, "_fields", ())
    return fields


@functools.cache
def load(aggregate: str, package: str = "evertick.store") -> dict[str, Statement]:
    """The statements of a package's `sql/<aggregate>.sql` by name."""
    return parse(aggregate, resources.files(package).joinpath("sql", f"{aggregate}.sql").read_text("utf-8"))


def parse(aggregate: str, text: str) -> dict[str, Statement]:
    """The statements in a file's text. What stands above the first is about the file."""
    _, *parts = _NAME.split(text)
    statements: dict[str, Statement] = {}
    for name, body in zip(parts[::2], parts[1::2], strict=True):
        if name in statements:
            raise ValueError(f"{aggregate}.sql has two statements named {name}")
        statements[name] = _statement(f"{aggregate}.{name}", body)
    return statements


def _statement(name: str, body: str) -> Statement:
    parameters: list[str] = []

    def rewrite(match: re.Match[str]) -> str:
        if match["comment"]:
            return ""
        if match["space"]:
            return " "
        parameter = match["parameter"]
        if parameter is None:
            return match[0]
        if parameter not in parameters:
            parameters.append(parameter)
        return f"${parameters.index(parameter) + 1}"

    text = _TOKEN.sub(rewrite, body).strip().removesuffix(";")
    # The name leads the text, so that pg_stat_activity, pg_stat_statements and the server's log tell it.
    return Statement(name, f"/* {name} */ {text}", tuple(parameters))
