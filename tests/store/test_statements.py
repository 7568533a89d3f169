"""Statements: how they are read, that Postgres understands them, and that their columns are the declared rows."""

import importlib
import pkgutil
import re
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from importlib import resources
from types import NoneType, UnionType
from typing import Any, NamedTuple, get_args, get_origin

import asyncpg
import pytest

import evertick.bench
import evertick.store
from evertick.store import statements
from evertick.store.statements import Statement

COLUMN_TYPES: dict[type, set[str]] = {
    int: {"int2", "int4", "int8"},
    float: {"float8"},
    str: {"text"},
    bytes: {"bytea"},
    bool: {"bool"},
    datetime: {"timestamptz"},
    date: {"date"},
    timedelta: {"interval"},
}

# These are executed for what they do. The columns that they have are never read.
UNREAD = {
    "events.add_day",
    "events.drop_day",
    "keys.lock_tenant",
    "ledgers.drop_day",
    "measurements.hold_snapshot",
    "runs.lock_job",
    "runs.lock_timers",
    "wakeups.notify",
}


def parsed(body: str) -> statements.Statement:
    return statements.parse("things", f"-- name: verb\n{body}")["verb"]


FILES = [
    (package, file.name.removesuffix(".sql"))
    for package in ("evertick.store", "evertick.bench")
    for file in sorted(resources.files(package).joinpath("sql").iterdir(), key=lambda file: file.name)
    if file.name.endswith(".sql")
]


def declared() -> dict[str, type]:
    """What the modules of the store and the bench declare of their statements."""
    for package in (evertick.store, evertick.bench):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    return statements.DECLARED


async def test_postgres_understands_every_statement_and_returns_the_declared_rows(
    connection: asyncpg.Connection,
) -> None:
    rows = declared()
    wrong = {}
    for package, aggregate in FILES:
        for statement in statements.load(aggregate, package).values():
            try:
                prepared = await connection.prepare(statement.text)
            except asyncpg.PostgresError as error:
                wrong[statement.name] = str(error)
                continue
            columns = {column.name: column.type.name for column in prepared.get_attributes()}
            if fault := mismatch(statement.name, rows.get(statement.name), columns):
                wrong[statement.name] = fault
    assert wrong == {}


def mismatch(name: str, kind: type | None, columns: dict[str, str]) -> str | None:
    """How the columns of a statement, with their types, differ from the rows that are declared."""
    if kind is None:
        return f"returns {columns}, and declares no rows" if columns and name not in UNREAD else None
    fields = list(statements.columns_of(kind)) or [(next(iter(columns), "nothing"), kind)]
    names = [field for field, _ in fields]
    if names != list(columns):
        return f"returns {list(columns)}, declared are {names}"
    wrong = {field: columns[field] for field, hint in fields if columns[field] not in column_types(hint)}
    return f"{wrong} do not become {kind}" if wrong else None


def column_types(hint: Any) -> set[str]:
    if isinstance(hint, UnionType):
        return set().union(*(column_types(each) for each in get_args(hint) if each is not NoneType))
    if get_origin(hint) in {list, Sequence}:
        return {f"{each}[]" for each in column_types(get_args(hint)[0])}
    return COLUMN_TYPES[hint]


class Pair(NamedTuple):
    number: int
    names: list[str] | None


class Nested(NamedTuple):
    pair: Pair
    at: datetime


@pytest.mark.parametrize(
    ("kind", "columns"),
    [
        (None, {"number": "int8"}),
        (int, {"name": "text"}),
        (int, {"number": "int8", "other": "int8"}),
        (Pair, {"names": "text[]", "number": "int8"}),
        (Pair, {"number": "int8"}),
        (Pair, {"number": "int8", "names": "text"}),
        (Pair, {"number": "numeric", "names": "text[]"}),
        (Nested, {"pair": "int8", "at": "timestamptz"}),
    ],
)
def test_rows_that_differ_from_the_declared_ones_are_noticed(kind: type | None, columns: dict[str, str]) -> None:
    assert mismatch("things.verb", kind, columns) is not None


async def test_rows_become_what_is_declared(connection: asyncpg.Connection) -> None:
    columns = {"number": "int2", "names": "text[]", "at": "timestamptz"}
    assert mismatch("things.verb", Nested, columns) is None
    one = Statement("things.one", "SELECT 1::smallint AS number, ARRAY['a'] AS names, 'epoch'::timestamptz AS at", ())
    (row,) = await one.rows(Nested).all(connection)
    assert row == Nested(Pair(1, ["a"]), datetime.fromisoformat("1970-01-01T00:00:00Z"))


def test_the_driver_keeps_every_statement_prepared() -> None:
    found = [statement for package, aggregate in FILES for statement in statements.load(aggregate, package).values()]
    assert [statement.name for statement in found if len(statement.text) > statements.LONGEST] == []


def test_every_file_has_statements() -> None:
    assert FILES
    assert all(statements.load(aggregate, package) for package, aggregate in FILES)


async def test_a_statement_runs_on_a_connection_and_on_a_pool(
    connection: asyncpg.Connection, pool: asyncpg.Pool
) -> None:
    double = parsed("SELECT :number::integer * 2 AS twice")
    twice = double.values(int)
    for whatever in (connection, pool):
        assert await twice.all(whatever, number=4) == [8]
        assert await twice.one(whatever, number=4) == 8
        assert await double.execute(whatever, number=4) == "SELECT 1"


def test_parameters_are_numbered_by_first_appearance() -> None:
    statement = parsed("SELECT :b, :a::integer[], :b, :c2")
    assert statement.text == "/* things.verb */ SELECT $1, $2::integer[], $1, $3"
    assert statement.parameters == ("b", "a", "c2")


@pytest.mark.parametrize(
    "text",
    [
        "SELECT now()::date",
        "SELECT '12:30', 'it''s :not'",
        "SELECT '{\"a\":true}'::jsonb",
        'SELECT 1 AS "odd:name"',
        "DO $$ BEGIN x :not; END $$",
        "DO $tag$ :not $$ :not $tag$",
        "SELECT a[1:2], a[b:c]",
        "SELECT f(a := 1)",
    ],
)
def test_a_colon_that_is_no_parameter_stays(text: str) -> None:
    statement = parsed(text)
    assert statement.text == f"/* things.verb */ {text}"
    assert statement.parameters == ()


def test_comments_and_the_last_semicolon_go() -> None:
    statement = parsed("-- of the :caller's\nSELECT /* not :this */ '--', :x -- nor 'that\n;\n")
    assert re.sub(r"\s+", " ", statement.text) == "/* things.verb */ SELECT '--', $1 "
    assert statement.parameters == ("x",)


def test_statements_of_a_file_are_told_apart_by_name() -> None:
    both = statements.parse("things", "-- About the file.\n\n-- name: one\nSELECT 1;\n\n-- name: two \nSELECT 2;\n")
    assert {name: statement.text for name, statement in both.items()} == {
        "one": "/* things.one */ SELECT 1",
        "two": "/* things.two */ SELECT 2",
    }


def test_two_statements_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match=r"things\.sql has two statements named one"):
        statements.parse("things", "-- name: one\nSELECT 1;\n-- name: one\nSELECT 2;\n")


@pytest.mark.parametrize("values", [{}, {"a": 1}, {"a": 1, "b": 2, "c": 3}])
def test_a_missing_or_unknown_value_is_refused(values: dict[str, int]) -> None:
    with pytest.raises(TypeError, match=r"things\.verb takes \['a', 'b'\]"):
        parsed("SELECT :b, :a").arguments(values)


def test_values_go_in_the_order_of_the_parameters() -> None:
    assert parsed("SELECT :b, :a").arguments({"a": 1, "b": 2}) == [2, 1]
