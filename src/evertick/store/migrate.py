"""Brings a database's schema to the one this version needs: forward only, named, one at a time under a lock.

And creates and drops temporary databases, beside the others of a server.
"""

import asyncio
import hashlib
import logging
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import NamedTuple
from urllib.parse import urlsplit

import asyncpg

from evertick.domain.errors import EvertickError
from evertick.domain.ids import Prefix, format_id
from evertick.store.database import Session, connect
from evertick.store.statements import Connection

logger = logging.getLogger("evertick")

OLDEST_POSTGRES = 15
LOCK_MS = 3000
"""Longer than deadlock_timeout: autovacuum, which has the lock of a table, gives way after that."""
PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 60.0
# A large table may take long, and so may the wait for another process that migrates.
_MIGRATION_SECONDS = 24 * 60 * 60
_LOCK = int.from_bytes(b"evertick", "big")
_LOCK_SCHEMA = """
SELECT pg_advisory_xact_lock(
           $1 # CASE schema WHEN 'evertick' THEN 0 ELSE hashtextextended(schema, 0) END)
  FROM current_setting('search_path') AS schema
"""
"""Of one schema, which may not exist yet; that of the default one is as in earlier versions."""
_FILE = re.compile(r"\d{4}_\w+\.sql")
_HAS_NEEDS = "SELECT true FROM pg_attribute WHERE attrelid = 'migrations'::regclass AND attname = 'needs'"
"""Older versions made the table without this column."""
MAX_NAMED = 10
# 0004_brokers refuses while there are any, but cannot say which, and is released.
_JOBS_IN_QUEUES_OF_BROKERS = f"""
SELECT job.job_id, job.name, tenant.name AS tenant, job.queue, count(*) OVER () AS total
  FROM jobs job
  JOIN tenants tenant USING (tenant_id)
  JOIN queues queue ON queue.tenant_id = job.tenant_id AND queue.name = job.queue
 WHERE job.queue IN ('kafka', 'rabbitmq', 'redis_stream', 'nats', 'sqs') AND job.status <> 'deleted'
 ORDER BY tenant.name, job.name, job.job_id
 LIMIT {MAX_NAMED}
"""  # noqa: S608 - constants
_NEEDS = re.compile(r"^-- needs: (\d{4}_\w+)$", re.MULTILINE)


class SchemaMismatch(EvertickError):  # noqa: N818 - says what is wrong
    """The database's schema is not the one this version works with; the message says what to do."""


class Obstacle(NamedTuple):
    """What keeps a migration from being applied, and what to do about it."""

    what: str
    todo: str


class CannotCreateDatabase(EvertickError):  # noqa: N818 - says what is wrong
    """The server does not let this user make a database; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One step, by name; the digest tells whether the text is still the one that was applied."""

    name: str
    text: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def needs(self) -> str | None:
        """What a version must know to run on the schema after this step; None: any version can.

        The text says it in a comment of its own line, such as `-- needs: 0005_labels`: the step removes or changes what
        versions before 0005_labels use.
        """
        found = _NEEDS.search(self.text)
        return found and found[1]


class Applied(NamedTuple):
    """A step that the database has."""

    name: str
    digest: str
    needs: str | None


def migrations() -> list[Migration]:
    """All steps, oldest first."""
    files = resources.files("evertick.store").joinpath("migrations").iterdir()
    named = sorted((file for file in files if _FILE.fullmatch(file.name)), key=lambda file: file.name)
    return [Migration(file.name.removesuffix(".sql"), file.read_text(encoding="utf-8")) for file in named]


async def migrate(
    connection: Session, applied: Callable[[str], None] = lambda _: None, known: Sequence[Migration] | None = None
) -> int:
    """Apply what is missing, all or nothing, and say how many. Another process that migrates waits and finds it done.

    `applied` is called with the name of each; `known` are the migrations to apply, all of this version unless given.
    While a lock cannot be had soon, all is undone and tried again later: whatever uses the table waits behind it.
    """
    await _refuse_old_server(connection)
    pause = PAUSE_SECONDS
    while True:
        try:
            names = await _migrate_once(connection, known or migrations())
        except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError) as error:
            logger.warning("the migration could not lock a table, and is tried again in %.0f s: %s", pause, error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            continue
        for name in names:
            applied(name)
        return len(names)


async def _migrate_once(connection: Session, known: Sequence[Migration]) -> list[str]:
    async with connection.transaction():
        await connection.execute("SET LOCAL lock_timeout = 0")
        await connection.execute(_LOCK_SCHEMA, _LOCK, timeout=_MIGRATION_SECONDS)
        await connection.execute(f"SET LOCAL lock_timeout = {LOCK_MS}")
        await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {await _schema_of(connection)}")
        await connection.execute(
            "CREATE TABLE IF NOT EXISTS migrations (name text PRIMARY KEY, digest text NOT NULL,"
            " applied_at timestamptz NOT NULL DEFAULT clock_timestamp(), needs text)"
        )
        waiting = pending(known, await _applied(connection))
        if (obstacle := await find_obstacle(connection, waiting)) is not None:
            raise SchemaMismatch(f"{obstacle.what}: {obstacle.todo} first; nothing was changed")
        for migration in waiting:
            await connection.execute(migration.text, timeout=_MIGRATION_SECONDS)
        await _note(connection, waiting)
    return [migration.name for migration in waiting]


async def waiting_migrations(connection: Connection) -> list[Migration]:
    """What `migrate` would apply. Changes nothing."""
    await _refuse_old_server(connection)
    # With the schema's name: a role that may not use the schema gets an error that says so.
    exists = await connection.fetchval(
        "SELECT to_regclass(current_setting('search_path') || '.migrations') IS NOT NULL"
    )
    return pending(migrations(), await _applied(connection) if exists else [])


async def check_schema(connection: Connection) -> None:
    """Refuse a database whose schema does not fit this version. That of a newer one fits unless it says otherwise."""
    waiting = await waiting_migrations(connection)
    if not waiting:
        return
    names = ", ".join(migration.name for migration in waiting)
    if (obstacle := await find_obstacle(connection, waiting)) is not None:
        raise SchemaMismatch(
            f"the database lacks {names}, and {obstacle.what}: {obstacle.todo}, then run `evertick migrate`"
        )
    raise SchemaMismatch(f"the database lacks {names}: run `evertick migrate`")


async def find_obstacle(connection: Connection, waiting: Sequence[Migration]) -> Obstacle | None:
    """What keeps migrations that wait from being applied to the rows that are there."""
    exists = await connection.fetchval("SELECT to_regclass($1) IS NOT NULL", "jobs")
    if not exists or "0004_brokers" not in {migration.name for migration in waiting}:
        return None
    rows = await connection.fetch(_JOBS_IN_QUEUES_OF_BROKERS)
    if not rows:
        return None
    named = [
        f"{format_id(Prefix.JOB, row['job_id'])} {row['name']!r} of tenant {row['tenant']!r} in {row['queue']!r}"
        for row in rows
    ]
    more = rows[0]["total"] - len(rows)
    return Obstacle(
        "0004_brokers cannot be applied while jobs are in queues with the names of message brokers"
        f" ({'; '.join([*named, *([f'and {more} more'] if more else [])])})",
        "give these jobs and their workers other queues",
    )


def pending(known: Sequence[Migration], applied: Collection[Applied]) -> list[Migration]:
    """Which of the known are not among the applied. Refuses a schema that neither this version nor a newer one has.

    Steps of a newer version are no obstacle while the old one runs beside it, unless they need what this one lacks.
    """
    names = {migration.name for migration in known}
    digests = {step.name: step.digest for step in applied}
    for migration in known:
        if digests.get(migration.name, migration.digest) != migration.digest:
            raise SchemaMismatch(
                f"{migration.name} was applied to the database with another text than this Evertick's:"
                " run the version that applied it, or start with an empty database"
            )
    waiting = [migration for migration in known if migration.name not in digests]
    newer = sorted(step.name for step in applied if step.name not in names)
    needed = {step.needs for step in applied if step.needs is not None}
    if newer and (waiting or not needed <= names):
        raise SchemaMismatch(f"the database has {', '.join(newer)} of a newer Evertick: upgrade this one")
    return waiting


def refuse_old(version: int) -> None:
    """Refuse a server older than all that Evertick is tested on. `version` is its `server_version_num`."""
    if version // 10_000 < OLDEST_POSTGRES:
        raise SchemaMismatch(f"PostgreSQL {version // 10_000} is too old: Evertick needs {OLDEST_POSTGRES} or newer")


async def create_database(server_url: str, name: str) -> str:
    """Make a database unless it is there, and return its URL."""
    connection = await connect(server_url)
    try:
        if connection.is_pooled:
            raise CannotCreateDatabase("a pooler creates no database: give the URL of the server itself")
        if not await connection.fetchval("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name):
            await connection.execute(f"CREATE DATABASE {await _quoted(connection, name)} TEMPLATE template0")
    except asyncpg.InsufficientPrivilegeError as error:
        raise CannotCreateDatabase(f"the user may not create a database: ALTER ROLE … CREATEDB ({error})") from error
    finally:
        await connection.close()
    return _url_of(server_url, name)


async def drop_database(server_url: str, name: str) -> None:
    """Drop a database, and end its connections."""
    connection = await connect(server_url)
    try:
        await connection.execute(f"DROP DATABASE IF EXISTS {await _quoted(connection, name)} WITH (FORCE)")
    finally:
        await connection.close()


async def _refuse_old_server(connection: Connection) -> None:
    refuse_old(await connection.fetchval("SELECT current_setting('server_version_num')::integer"))


async def _note(connection: Session, done: Sequence[Migration]) -> None:
    """Add what was applied to the table, at the end: processes that start read it, and wait for its lock."""
    if not done:
        return
    if not await connection.fetchval(_HAS_NEEDS):
        await connection.execute("ALTER TABLE migrations ADD COLUMN needs text")
    await connection.executemany(
        "INSERT INTO migrations (name, digest, needs) VALUES ($1, $2, $3)",
        [(migration.name, migration.digest, migration.needs) for migration in done],
    )


async def _applied(connection: Connection) -> list[Applied]:
    # By way of JSON, because the column `needs` may be missing.
    rows = await connection.fetch("SELECT name, digest, to_jsonb(step) ->> 'needs' AS needs FROM migrations AS step")
    return [Applied(*row) for row in rows]


async def _schema_of(connection: Session) -> str:
    """The schema of the tables, which our sessions have as their search path. Quoted where it is a reserved word."""
    schema: str = await connection.fetchval("SELECT quote_ident(current_setting('search_path'))")
    return schema


def _url_of(server_url: str, name: str) -> str:
    """The URL of another database on the same server."""
    parts = urlsplit(server_url)
    # Not urlunsplit, which drops the slashes before an empty host.
    return f"{parts.scheme}://{parts.netloc}/{name}" + (f"?{parts.query}" if parts.query else "")


async def _quoted(connection: Session, name: str) -> str:
    quoted: str = await connection.fetchval("SELECT quote_ident($1)", name)
    return quoted
