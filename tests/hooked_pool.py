"""A pool on which a test acts around one statement: lets it fail, or lets others act before or after it.

Faults happen where real ones do, between the code and the server; the code under test stays as it is.
"""

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import asyncpg
import pytest

from evertick.store.database import Pool
from evertick.store.statements import load

Run: TypeAlias = Callable[[], Awaitable[Any]]
Hook: TypeAlias = Callable[[Run, Mapping[str, Any]], Awaitable[Any]]
"""Gets the statement, to be run or not, and its parameters; returns or raises what the caller sees."""
_MARKED = re.compile(r"/\* (\w+\.\w+) \*/")


class _HookedPool(asyncpg.Pool):
    def __init__(self, pool: Pool, statement: str, hook: Hook) -> None:  # it has no connections of its own
        aggregate, _, name = statement.partition(".")
        self._parameters = load(aggregate)[name].parameters
        self._mark = f"/* {statement} */"
        self._pool = pool
        self._hook = hook

    def acquire(self, **options: Any) -> Any:
        return self._pool.acquire(**options)

    async def execute(self, query: str, *args: object, **options: Any) -> Any:
        return await self._run(partial(self._pool.execute, query, *args, **options), query, args)

    async def fetch(self, query: str, *args: object, **options: Any) -> Any:
        return await self._run(partial(self._pool.fetch, query, *args, **options), query, args)

    async def fetchrow(self, query: str, *args: object, **options: Any) -> Any:
        return await self._run(partial(self._pool.fetchrow, query, *args, **options), query, args)

    async def fetchval(self, query: str, *args: object, **options: Any) -> Any:
        return await self._run(partial(self._pool.fetchval, query, *args, **options), query, args)

    async def _run(self, run: Run, query: str, args: tuple[object, ...]) -> Any:
        if not query.startswith(self._mark):
            return await run()
        return await self._hook(run, dict(zip(self._parameters, args, strict=True)))


def hooked(pool: Pool, statement: str, hook: Hook) -> Pool:
    """The pool, with `hook` around each run of `aggregate.statement`."""
    return _HookedPool(pool, statement, hook)


def hook_every_pool(monkeypatch: pytest.MonkeyPatch, statement: str, hook: Hook) -> None:
    """As `hooked`, on each pool of this process: for code that opens its own."""
    aggregate, _, name = statement.partition(".")
    parameters, mark = load(aggregate)[name].parameters, f"/* {statement} */"

    def around(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def run(pool: Pool, query: str, *args: object, **options: Any) -> Any:
            if not query.startswith(mark):
                return await method(pool, query, *args, **options)
            return await hook(partial(method, pool, query, *args, **options), dict(zip(parameters, args, strict=True)))

        return run

    for method in ("fetch", "fetchrow", "fetchval"):
        monkeypatch.setattr(asyncpg.Pool, method, around(getattr(asyncpg.Pool, method)))


def count_statements(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each statement is run from now on, on any connection of this process."""
    counts: Counter[str] = Counter()

    def counting(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def run(connection: asyncpg.Connection, query: str, *args: object, **options: Any) -> Any:
            if marked := _MARKED.match(query):
                counts[marked[1]] += 1
            return await method(connection, query, *args, **options)

        return run

    for method in ("fetch", "fetchrow", "fetchval"):
        monkeypatch.setattr(asyncpg.Connection, method, counting(getattr(asyncpg.Connection, method)))
    return counts
