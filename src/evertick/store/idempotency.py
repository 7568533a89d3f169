"""Answers that are kept for who asks twice. Called by the use cases, in the transaction of what they answer."""

from datetime import timedelta
from typing import NamedTuple

from evertick.store import statements
from evertick.store.database import Session
from evertick.store.statements import Connection

_SQL = statements.load("idempotency")


class Kept(NamedTuple):
    """An answer, and the digest of what it answers; `headers` is JSON."""

    request: bytes
    status: int
    headers: str
    body: bytes


async def begin(connection: Session, tenant_id: int, key: str) -> bool:
    """Claim a key until the transaction ends. False: someone else is at it."""
    is_ours: bool = await _SQL["begin"].fetchval(connection, tenant_id=tenant_id, key=key)
    return is_ours


async def find(connection: Connection, tenant_id: int, key: str) -> Kept | None:
    row = await _SQL["find"].fetchrow(connection, tenant_id=tenant_id, key=key)
    return None if row is None else Kept(*row)


async def keep(connection: Session, tenant_id: int, key: str, answer: Kept) -> None:
    await _SQL["keep"].execute(connection, tenant_id=tenant_id, key=key, **answer._asdict())


async def prune(connection: Connection, age: timedelta) -> None:
    """Forget answers older than this."""
    await _SQL["prune"].execute(connection, seconds=age.total_seconds())
