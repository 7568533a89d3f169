"""Sets a database back to what it was, under everybody who works with it: what an asynchronous fail-over or a restore
does to the newest commits.
"""

from urllib.parse import urlsplit

import asyncpg

from evertick.store.database import connect
from evertick.store.embedded import DATABASE

_CUT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1"


class Snapshot:
    """A copy of a database to which it can be set back, once."""

    def __init__(self, url: str) -> None:
        self._name = urlsplit(url).path.lstrip("/")
        self._admin_url = url.replace(f"/{self._name}?", f"/{DATABASE}?")

    async def take(self) -> None:
        await self._cut_and(f"CREATE DATABASE {self._name}_kept TEMPLATE {self._name}")

    async def rewind(self) -> None:
        """Cut all connections, and put the copy in the database's place: all that was committed since is lost."""
        await self._cut_and(f"ALTER DATABASE {self._name} RENAME TO {self._name}_lost")
        await self._cut_and(f"ALTER DATABASE {self._name}_kept RENAME TO {self._name}")
        await self._cut_and(f"DROP DATABASE {self._name}_lost")

    async def _cut_and(self, statement: str) -> None:
        admin = await connect(self._admin_url)
        try:
            while True:
                await admin.fetch(_CUT, self._name)
                try:
                    await admin.execute(statement)
                except asyncpg.ObjectInUseError:
                    continue  # someone has connected again in between
                else:
                    return
        finally:
            await admin.close()
