"""Rules, queues and tenants' weights: small things that roles read once and remember."""

from collections.abc import Iterable
from typing import NamedTuple

from evertick.store import statements
from evertick.store.statements import Connection

_SQL = statements.load("rules")


class Queue(NamedTuple):
    """One tenant's queue."""

    queue_id: int
    tenant_id: int
    name: str


async def rules(connection: Connection, rule_ids: Iterable[int]) -> dict[int, str]:
    """The canonical text of each rule."""
    rows = await _SQL["rules"].fetch(connection, rule_ids=list(rule_ids))
    return {row["rule_id"]: row["canonical"] for row in rows}


async def weights(connection: Connection, tenant_ids: Iterable[int]) -> dict[int, int]:
    rows = await _SQL["weights"].fetch(connection, tenant_ids=list(tenant_ids))
    return {row["tenant_id"]: row["weight"] for row in rows}


async def queues(connection: Connection, names: Iterable[str], tenant_id: int | None = None) -> list[Queue]:
    """The queues of these names; of every tenant if none is given."""
    rows = await _SQL["queues"].fetch(connection, names=list(names), tenant_id=tenant_id)
    return [Queue(*row) for row in rows]
