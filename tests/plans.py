"""The generic plans of statements, as production has them."""

import json
from collections.abc import Iterator
from typing import Any

import asyncpg

from evertick.store.statements import Statement


async def plan_of(connection: asyncpg.Connection, statement: Statement) -> dict[str, Any]:
    """The root of a statement's plan. Where partitions are chosen by its parameters alone, none is left."""
    name = statement.name.replace(".", "_")
    await connection.execute(f"PREPARE {name} AS {statement.text}")
    values = ", ".join(["NULL"] * len(statement.parameters))
    try:
        text = await connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE {name}{values and f'({values})'}")
    finally:
        await connection.execute(f"DEALLOCATE {name}")
    root: dict[str, Any] = json.loads(text)[0]["Plan"]
    return root


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All nodes of a plan."""
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)
