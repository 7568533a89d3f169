"""Every table of the schema is on the page that says what bounds it."""

import re
from pathlib import Path

import asyncpg

PAGE = Path(__file__).parents[2] / "docs" / "retention.md"
_TABLES = """
SELECT relname::text FROM pg_class
 WHERE relkind IN ('r', 'p') AND NOT relispartition AND relnamespace = 'evertick'::regnamespace
"""


async def test_what_bounds_each_table_is_documented(connection: asyncpg.Connection) -> None:
    cells = [line.split("|")[1] for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    documented = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(documented) == sorted(row["relname"] for row in await connection.fetch(_TABLES))
