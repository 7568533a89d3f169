"""Answers that are kept for who asks twice. Called by the use cases, in the transaction of what they answer."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from evertick.store import statements
from evertick.store.statements import Connection

_SQL = statements.load("idempotency")


class Kept(NamedTuple):
    """An answer, and the digest of what it answers; `headers` is JSON."""

    request: bytes
    status: int
    headers: str
    body: bytes


async def begin(connection: Connection, tenant_id: int, keys: Sequence[str]) -> set[str]:
    """Claim keys until the transaction ends, and return those that nobody else is at."""
    rows = await _SQL["begin"].fetch(connection, tenant_id=tenant_id, keys=keys)
    return {row["key"] for row in rows}


async def find(connection: Connection, tenant_id: int, keys: Sequence[str]) -> dict[str, Kept]:
    """Answers by key, of those keys that have one."""
    rows = await _SQL["find"].fetch(connection, tenant_id=tenant_id, keys=keys)
    return {row["key"]: Kept(*row[1:]) for row in rows}


async def keep(connection: Connection, tenant_id: int, answers: Mapping[str, Kept]) -> None:
    names = ("requests", "statuses", "headers", "bodies")
    columns = dict(zip(names, zip(*answers.values(), strict=True), strict=True))
    await _SQL["keep"].execute(connection, tenant_id=tenant_id, keys=list(answers), **columns)
