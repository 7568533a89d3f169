"""Stored answers to requests with an Idempotency-Key. Called by the use cases, in the transaction of the request."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from evertick.store import statements
from evertick.store.statements import Connection, columns


class StoredAnswer(NamedTuple):
    """An answer, and the digest of its request; `headers` is JSON."""

    request: bytes
    status: int
    headers: str
    body: bytes


class _AnswerRow(NamedTuple):
    key: str
    answer: StoredAnswer


_SQL = statements.load("idempotency")
_BEGIN = _SQL["begin"].values(str)
_FIND = _SQL["find"].rows(_AnswerRow)


async def begin(connection: Connection, tenant_id: int, keys: Sequence[str]) -> set[str]:
    """Claim keys until the transaction ends, and return those that no other transaction has claimed."""
    return set(await _BEGIN.all(connection, tenant_id=tenant_id, keys=keys))


async def find(connection: Connection, tenant_id: int, keys: Sequence[str]) -> dict[str, StoredAnswer]:
    """Answers by key, of those keys that have one."""
    return dict(await _FIND.all(connection, tenant_id=tenant_id, keys=keys))


async def store(connection: Connection, tenant_id: int, answers: Mapping[str, StoredAnswer]) -> None:
    names = ("requests", "statuses", "headers", "bodies")
    values = columns(names, list(answers.values()))
    await _SQL["store"].execute(connection, tenant_id=tenant_id, keys=list(answers), **values)
