import re

import asyncpg
import pytest

from evertick.store import statements


def parsed(body: str) -> statements.Statement:
    return statements.parse("things", f"-- name: verb\n{body}")["verb"]


FILES = [
    (package, aggregate)
    for package in ("evertick.store", "evertick.bench")
    for aggregate in statements.aggregates(package)
]


async def test_postgres_understands_every_statement(connection: asyncpg.Connection) -> None:
    refused = {}
    for package, aggregate in FILES:
        for statement in statements.load(aggregate, package).values():
            try:
                await connection.prepare(statement.text)
            except asyncpg.PostgresError as error:
                refused[statement.name] = str(error)
    assert refused == {}


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
    for whatever in (connection, pool):
        assert await double.fetchval(whatever, number=4) == 8
        assert [row["twice"] for row in await double.fetch(whatever, number=4)] == [8]
        row = await double.fetchrow(whatever, number=4)
        assert row is not None
        assert row["twice"] == 8
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
