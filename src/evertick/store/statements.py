"""Reads the statements in `sql/*.sql`: static text, named, with named parameters.

A statement begins with `-- name: verb` and runs to the next one. `:job_ids` in its text is the parameter `job_ids`,
numbered by first appearance; nothing else is ever put into the text. Indentation is left out: the driver keeps no
statement prepared that is longer than `LONGEST`, and would have it planned anew each time.
"""

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, TypeAlias

import asyncpg

from evertick.store.database import Pool, Session

Connection: TypeAlias = Session | Pool
"""Whatever runs one statement."""

LONGEST = 15 * 1024
"""Characters: asyncpg's `max_cacheable_statement_size`."""

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

    async def fetch(self, connection: Connection, **values: Any) -> list[asyncpg.Record]:
        return await connection.fetch(self.text, *self.arguments(values))

    async def fetchrow(self, connection: Connection, **values: Any) -> asyncpg.Record | None:
        return await connection.fetchrow(self.text, *self.arguments(values))

    async def fetchval(self, connection: Connection, **values: Any) -> Any:
        return await connection.fetchval(self.text, *self.arguments(values))

    async def execute(self, connection: Connection, **values: Any) -> str:
        return await connection.execute(self.text, *self.arguments(values))

    def arguments(self, values: dict[str, Any]) -> list[Any]:
        """The values in the order of the parameters: each of them, and no others."""
        if values.keys() != set(self.parameters):
            raise TypeError(f"{self.name} takes {sorted(self.parameters)}, was given {sorted(values)}")
        return [values[name] for name in self.parameters]


@functools.cache
def load(aggregate: str, package: str = "evertick.store") -> dict[str, Statement]:
    """The statements of a package's `sql/<aggregate>.sql` by name."""
    return parse(aggregate, resources.files(package).joinpath("sql", f"{aggregate}.sql").read_text("utf-8"))


def aggregates(package: str = "evertick.store") -> Sequence[str]:
    """The names of all files of statements of a package."""
    files = resources.files(package).joinpath("sql").iterdir()
    return sorted(file.name.removesuffix(".sql") for file in files if file.name.endswith(".sql"))


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
