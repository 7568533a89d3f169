"""Effects that happen once, however often a message or a webhook arrives: an inbox, a table in the consumer's database.

    with psycopg.connect(url) as connection, connection.transaction():
        with inbox.once(run.idempotency_key, run.fencing_token, connection) as is_first:
            if is_first:
                connection.execute("UPDATE accounts …")

The row of a key is written in the consumer's own transaction: it is committed with the effect, or rolled back with it.

| earlier, committed | now | result |
|---|---|---|
| nothing | any token | first: do it |
| the key | the same token, or a larger one: a message that came twice, a retry whose outcome was lost | done already |
| the key | a smaller token: a message of an earlier attempt that comes late | `StaleToken` |

Two transactions with one key at the same time wait for each other: if the first commits, the second is told that it is
done; if the first rolls back, the second does it. Where the database cannot wait (SQLite after its timeout, PostgreSQL
with REPEATABLE READ, a deadlock) the second fails with an error of its own, and may be tried again.

Connections: those that `sdk.connections` knows. None of their libraries is needed to import this module.
"""

import re
import time
from collections.abc import Generator
from datetime import timedelta
from types import TracebackType
from typing import Any, TypeAlias

from evertick.domain.errors import InvalidInput
from evertick.sdk.connections import Database, database_of
from evertick.sdk.webhooks import StaleToken

__all__ = ["TABLE", "Inbox", "Once", "StaleToken", "create_table", "once", "prune", "schema"]

TABLE = "evertick_inbox"
_TABLE = re.compile("[a-z_][a-z0-9_]{0,62}([.][a-z_][a-z0-9_]{0,62})?")
_MAX_ROUNDS = 5
"""A row that was there for one statement may be pruned before the next."""

_SCHEMA = """CREATE TABLE IF NOT EXISTS {table} (
    key     text   NOT NULL PRIMARY KEY,
    token   bigint NOT NULL,
    done_at bigint NOT NULL
)"""
_ADD = """INSERT INTO {table} (key, token, done_at) VALUES (:key, CAST(:token AS bigint), CAST(:now AS bigint))
ON CONFLICT (key) DO NOTHING RETURNING token"""
_SEE = """UPDATE {table} SET token = CASE WHEN token < CAST(:token AS bigint) THEN CAST(:token AS bigint) ELSE token END
WHERE key = :key RETURNING token"""
_PRUNE = "DELETE FROM {table} WHERE done_at < CAST(:before AS bigint)"

Steps: TypeAlias = Generator[tuple[str, dict[str, Any]], int | None, bool]


class Once:
    """The block in which an effect happens once. Its value: whether this is the first time."""

    def __init__(self, database: Database, steps: Steps) -> None:
        self._database = database
        self._steps = steps

    def __enter__(self) -> bool:
        if self._database.is_async:
            raise InvalidInput("connection", "is async: use `async with`")
        self._database.check()
        found: int | None = None
        while True:
            try:
                statement = self._steps.send(found)
            except StopIteration as end:
                return bool(end.value)
            found = self._database.run(*statement)

    async def __aenter__(self) -> bool:
        if not self._database.is_async:
            raise InvalidInput("connection", "is not async: use `with`")
        self._database.check()
        found: int | None = None
        while True:
            try:
                statement = self._steps.send(found)
            except StopIteration as end:
                return bool(end.value)
            found = await self._database.run(*statement)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing: the consumer's transaction commits or rolls back all of it."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """As `__exit__`."""


class Inbox:
    """A table of keys that are done; `table` may have a schema in front."""

    def __init__(self, table: str = TABLE) -> None:
        if not _TABLE.fullmatch(table):
            raise InvalidInput("table", "must be a name of a-z, 0-9 and _, perhaps with a schema before it")
        self._table = table

    @property
    def schema(self) -> str:
        """The statement that makes the table, for a tool that migrates."""
        return _SCHEMA.format(table=self._table)

    def once(self, key: str, token: int, connection: Any) -> Once:
        """Find out whether the effect under a key is to happen now, in the transaction that the connection is in.

        An exception in the block has to end the transaction too: whoever catches it inside and commits has said that
        the effect is done. StaleToken: a later attempt has been here.
        """
        return Once(database_of(connection), self._steps(key, token))

    def create_table(self, connection: Any) -> Any:
        """Make the table if it is not there. With an async connection: to be awaited."""
        return database_of(connection).run(self.schema, {})

    def prune(self, connection: Any, older_than: timedelta) -> Any:
        """Forget the keys that were done before, and return how many. With an async connection: to be awaited.

        What is forgotten would happen again: keep keys for longer than messages are delivered again and runs replayed.
        """
        before = int(time.time() - older_than.total_seconds())
        return database_of(connection).run(_PRUNE.format(table=self._table), {"before": before})

    def _steps(self, key: str, token: int) -> Steps:
        """The statements, each with its parameters; in the end, whether it is the first time."""
        for _ in range(_MAX_ROUNDS):
            now = int(time.time())
            # Waits for a transaction that has added the key and is not over.
            if (yield _ADD.format(table=self._table), {"key": key, "token": token, "now": now}) is not None:
                return True
            largest = yield _SEE.format(table=self._table), {"key": key, "token": token}
            if largest is not None:
                if largest > token:
                    raise StaleToken(f"{key}: a later attempt was here, with the token {largest}")
                return False
        raise TimeoutError(f"{key} is added and removed again and again")


_DEFAULT = Inbox()
once = _DEFAULT.once
create_table = _DEFAULT.create_table
prune = _DEFAULT.prune
schema = _DEFAULT.schema
