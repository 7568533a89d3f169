"""An app's way to the database leaves nothing open when it cannot be made."""

import asyncpg
import pytest

from engine import until
from evertick.config.settings import Settings
from evertick.sdk.process import AppServer, open_connection

OTHERS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


async def test_a_link_that_cannot_be_made_leaves_no_connection(
    database_url: str, connection: asyncpg.Connection
) -> None:
    await connection.execute("UPDATE tenants SET name = 'renamed' WHERE name = 'default'")
    before = await connection.fetchval(OTHERS)
    with pytest.raises(AssertionError, match="a migration made it"):
        await open_connection(AppServer(Settings(database_url=database_url)))

    async def is_as_before() -> bool:
        return bool(await connection.fetchval(OTHERS) == before)

    await until(is_as_before)  # the server ends a session a moment after its client has gone
