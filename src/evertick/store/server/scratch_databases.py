"""Temporary databases on any server, beside its others."""

from urllib.parse import urlsplit

import asyncpg

from evertick.domain.errors import EvertickError
from evertick.store.database import Session, connect


class CannotCreateDatabase(EvertickError):  # noqa: N818 - says what is wrong
    """The server does not let this user make a database; the message says what to do."""


def url_of(server_url: str, name: str) -> str:
    """The URL of another database on the same server."""
    parts = urlsplit(server_url)
    # Not urlunsplit, which drops the slashes before an empty host.
    return f"{parts.scheme}://{parts.netloc}/{name}" + (f"?{parts.query}" if parts.query else "")


async def create(server_url: str, name: str) -> str:
    """Make a database unless it is there, and return its URL."""
    connection = await connect(server_url)
    try:
        if not await connection.fetchval("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name):
            await connection.execute(f"CREATE DATABASE {await _quoted(connection, name)} TEMPLATE template0")
    except asyncpg.InsufficientPrivilegeError as error:
        raise CannotCreateDatabase(f"the user may not create a database: ALTER ROLE … CREATEDB ({error})") from error
    finally:
        await connection.close()
    return url_of(server_url, name)


async def drop(server_url: str, name: str) -> None:
    """Drop a database, and end its connections."""
    connection = await connect(server_url)
    try:
        await connection.execute(f"DROP DATABASE IF EXISTS {await _quoted(connection, name)} WITH (FORCE)")
    finally:
        await connection.close()


async def _quoted(connection: Session, name: str) -> str:
    quoted: str = await connection.fetchval("SELECT quote_ident($1)", name)
    return quoted
