"""Sets a database back to what it was, under everybody who works with it: what an asynchronous fail-over or a restore
does to the newest commits.
"""

from urllib.parse import urlsplit

from evertick.store.database import connect
from evertick.store.server.embedded import DATABASE
from evertick.usecases import cluster
from evertick.usecases.context import TenantContext


class Snapshot:
    """A copy of a database to which it can be set back, once."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._name = urlsplit(url).path.lstrip("/")
        self._admin_url = url.replace(f"/{self._name}?", f"/{DATABASE}?")

    async def take(self) -> None:
        await self._alone(f"CREATE DATABASE {self._name}_kept TEMPLATE {self._name}")
        await self._execute(f"ALTER DATABASE {self._name} ALLOW_CONNECTIONS true")

    async def rewind(self) -> None:
        """Cut all connections, and put the copy in the database's place: all that was committed since is lost.

        An operator confirms that the cluster shall go on with it.
        """
        await self._alone(f"ALTER DATABASE {self._name} RENAME TO {self._name}_lost")
        await self._execute(f"ALTER DATABASE {self._name}_kept RENAME TO {self._name}")
        await self._execute(f"DROP DATABASE {self._name}_lost")
        restored = await connect(self._url)
        try:
            await cluster.confirm(TenantContext(restored, 1), None)
        finally:
            await restored.close()

    async def _alone(self, statement: str) -> None:
        """Do what needs a database without connections. Nobody gets in any more."""
        await self._execute(f"ALTER DATABASE {self._name} ALLOW_CONNECTIONS false")
        await self._execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{self._name}'")
        await self._execute(statement)

    async def _execute(self, statement: str) -> None:
        admin = await connect(self._admin_url)
        try:
            await admin.execute(statement)
        finally:
            await admin.close()
