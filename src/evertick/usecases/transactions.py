"""Transactions that are repeated: after a conflict with others, and when something must be computed outside of them.

A transaction that needs a costly result ends, so that neither locks nor a connection wait. The result is computed in
the background thread, and the transaction runs again with it. So nothing in it may leave traces outside the database.
"""

import time
from collections.abc import Awaitable, Callable, Hashable
from contextvars import ContextVar
from datetime import datetime
from typing import Any, Generic, NamedTuple, TypeVar

from evertick.runtime import background
from evertick.store.database import was_conflict

_T = TypeVar("_T")
_TRIES = 5
_COMPUTATIONS = 10
"""How often a transaction is begun anew because a result was missing, or had expired when it was computed."""
LONG_SECONDS = 1.5
"""A deadlock is found within a second. A transaction that took longer has waited for a lock, and might do so again."""


class Computed(NamedTuple, Generic[_T]):
    """A result that was computed for an instant. It is valid for later ones too, before `until_at`; None: for all."""

    value: _T
    until_at: datetime | None = None


class NotComputed(Exception):  # noqa: N818 - a request, not an error
    """A transaction needs a result that may take long. It ends, so that neither locks nor a connection wait."""

    def __init__(self, tenant_id: int, key: Hashable, work: Callable[[], Computed[Any]]) -> None:
        super().__init__()
        self.tenant_id = tenant_id
        self.key = key
        self.work = work


# The results for the current transaction, computed before it began. None: there is no transaction.
_results: ContextVar[dict[Hashable, Computed[Any]] | None] = ContextVar("results", default=None)


async def compute_outside(
    tenant_id: int, key: Hashable, work: Callable[[], Computed[_T]], now_at: datetime | None = None
) -> _T:
    """Compute in the background thread: inside `retry_transaction` with no transaction open, before the next try.

    `key` has all that the result depends on, except the time: a result that is not valid at `now_at` is not used.
    """
    results = _results.get()
    if results is None:
        return (await background.run(tenant_id, work)).value
    found: Computed[_T] | None = results.get(key)
    if found is None or (now_at is not None and found.until_at is not None and now_at >= found.until_at):
        raise NotComputed(tenant_id, key, work)
    return found.value


def forget_computed(key: Hashable) -> None:
    """Compute it anew next time."""
    (_results.get() or {}).pop(key, None)


async def retry_transaction(work: Callable[[], Awaitable[_T]]) -> _T:
    """Do a transaction, again after a conflict with others, and after computing a result that it needs.

    A conflict after a long wait is raised. One transaction within another leaves computing to the outer one.
    """
    return await retry_with_results(lambda: retry_conflicts(work))


async def retry_with_results(work: Callable[[], Awaitable[_T]]) -> _T:
    """Do work, again after computing a result that it needs. It must hold nothing when it raises `NotComputed`."""
    if _results.get() is not None:
        return await work()
    results: dict[Hashable, Computed[Any]] = {}
    token = _results.set(results)
    try:
        for _ in range(_COMPUTATIONS):
            try:
                return await work()
            except NotComputed as needed:
                results[needed.key] = await background.run(needed.tenant_id, needed.work)
        raise background.TooBusy  # what it depends on changes faster than it can be computed
    finally:
        _results.reset(token)


async def retry_conflicts(work: Callable[[], Awaitable[_T]]) -> _T:
    """Do a transaction, again after a conflict with others, unless it has waited long for them."""
    began = time.monotonic()
    for _ in range(_TRIES - 1):
        try:
            return await work()
        except Exception as error:
            if not was_conflict(error) or time.monotonic() - began > LONG_SECONDS:
                raise
    return await work()
