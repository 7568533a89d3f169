"""Connections through a pooler, such as PgBouncer in transaction mode: each transaction may get another session.

A pooler refuses the settings that our sessions are opened with, or ignores them, and a session is shared with others.
So nothing is kept in a session:

- Each transaction begins with its settings (`SET LOCAL`), sent together with `BEGIN`.
- A statement outside of a transaction gets one of its own, within the time that the statement has.
- Statements are not prepared by name. The descriptions of their parameters and rows are kept here, and the text is sent
  with each execution.

That costs two round trips for a statement, and its planning each time. The methods of the driver that are replaced here
are not public: dependencies are pinned, and the tests with a PgBouncer fail if one of them changes.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from evertick.store.connections import FailFastConnection

IDLE_SECONDS = 2
"""A statement's own transaction is idle while its answer is on the way. A process that freezes then holds its locks no
longer than this."""


class PooledConnection(FailFastConnection):
    """A connection to a pooler."""

    is_pooled = True
    _server_caps: Any
    _stmt_cache: Any
    _settings = ""
    _command_seconds: float | None = None

    def use_settings(self, settings: Mapping[str, str], command_seconds: float) -> None:
        """Begin all transactions with these settings."""
        self._settings = " ".join(f"SET LOCAL {name} = '{value}';" for name, value in settings.items())
        self._command_seconds = command_seconds
        # Otherwise the driver turns it off for a moment, in a session that is not ours.
        self._server_caps = self._server_caps._replace(jit=False)

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> str:  # noqa: ASYNC109 - the driver's signature
        if self.is_in_transaction():
            return await super().execute(query, *args, timeout=timeout)
        if query.startswith("BEGIN"):  # as the driver's transactions do
            return await super().execute(f"{query}; {self._settings}", timeout=timeout)
        async with self._own_transaction(timeout):
            return await super().execute(query, *args, timeout=timeout)

    async def _execute(  # the driver's way to execute anything that has parameters or rows
        self,
        query: str,
        args: Any,
        limit: int,
        timeout: float | None,  # noqa: ASYNC109 - the driver's signature
        **options: Any,
    ) -> Any:
        if self.is_in_transaction():
            return await super()._execute(query, args, limit, timeout, **options)  # type: ignore[misc]
        async with self._own_transaction(timeout):
            return await super()._execute(query, args, limit, timeout, **options)  # type: ignore[misc]

    @asynccontextmanager
    async def _own_transaction(self, seconds: float | None) -> AsyncIterator[None]:
        """A transaction for one statement, which has no more time than the statement alone would have."""
        idle = f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_SECONDS}s';"
        async with asyncio.timeout(self._command_seconds if seconds is None else seconds):
            try:
                await super().execute(f"BEGIN; {self._settings} {idle}")
                yield
            except BaseException:
                if not self.is_closed():
                    await super().execute("ROLLBACK")
                raise
            await super().execute("COMMIT")

    def _get_unique_id(self, prefix: str) -> str:
        """The driver's hook for the names of statements and cursors. A statement without a name is not kept."""
        name: str = "" if prefix == "stmt" else super()._get_unique_id(prefix)  # type: ignore[misc]
        return name

    async def _get_statement(self, *args: Any, **options: Any) -> Any:
        """The driver's hook for the description of a statement."""
        statement = await super()._get_statement(*args, **options)  # type: ignore[misc]
        statement.mark_unprepared()  # its text is sent again with each execution
        return statement


async def is_pooled(connection: FailFastConnection) -> bool:
    """Whether there is a pooler in between: it names a process of its own, not the one that executes statements."""
    # As a simple query, because a prepared one would stay in the session.
    return await connection.execute(f"SELECT WHERE pg_backend_pid() = {connection.get_server_pid()}") == "SELECT 0"
