"""Answers that are kept for who asks twice. Called by the use cases, in the transaction of what they answer."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from evertick.store import statements
from evertick.store.statements import Connection


class Kept(NamedTuple):
    """An answer, and the digest of what it answers; `headers` is JSON."""

    request: bytes
    status: int
    headers: str
    body: bytes


class _KeptRow(NamedTuple):
    key: str
    kept: Kept


_SQL = statements.load("idempotency")
_BEGIN = _SQL["begin"].values(str)
_FIND = _SQL["find"].rows(_KeptRow)


async def begin(connection: Connection, tenant_id: int, keys: Sequence[str]) -> set[str]:
    """Claim keys until the transaction ends, and return those that nobody else is at."""
    return set(await _BEGIN.all(connection, tenant_id=tenant_id, keys=keys))


async def find(connection: Connection, tenant_id: int, keys: Sequence[str]) -> dict[str, Kept]:
    """Answers by key, of those keys that have one."""
    return dict(await _FIND.all(connection, tenant_id=tenant_id, keys=keys))


async def keep(connection: Connection, tenant_id: int, answers: Mapping[str, Kept]) -> None:
    names = ("requests", "statuses", "headers", "bodies")
    columns = dict(zip(names, zip(*answers.values(), strict=True), strict=True))
    await _SQL["keep"].execute(connection, tenant_id=tenant_id, keys=list(answers), **columns)
