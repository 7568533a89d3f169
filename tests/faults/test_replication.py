"""The pair of servers itself: what it is asked to do to commits, it does."""

from pathlib import Path

import asyncpg
import pytest

from faults.replication import replicated

pytestmark = pytest.mark.slow

COUNT = "SELECT count(*) FROM written"


async def test_what_a_standby_has_received_survives_and_what_came_after_it_was_parted_is_lost(data_dir: Path) -> None:
    async with replicated(data_dir) as pair:
        await pair.make_synchronous()
        await pair.primary.ask("CREATE TABLE written (number int)")
        await pair.primary.ask("INSERT INTO written VALUES (1)")
        await pair.primary.ask("ALTER SYSTEM RESET synchronous_standby_names")
        await pair.primary.ask("SELECT pg_reload_conf()")
        await pair.part()
        await pair.primary.ask("INSERT INTO written VALUES (2)")
        assert await pair.primary.ask(COUNT) == 2
        pair.primary.kill()
        await pair.promote()
        assert await pair.standby.ask(COUNT) == 1


@pytest.mark.parametrize("standby_first", [False, True])
async def test_a_url_with_both_hosts_leads_to_the_one_that_is_the_primary(
    data_dir: Path, *, standby_first: bool
) -> None:
    async with replicated(data_dir) as pair:
        for server in (pair.primary, pair.standby):
            connection = await asyncpg.connect(pair.url(standby_first=standby_first))
            assert await connection.fetchval("SELECT inet_server_port()") == server.port
            await connection.close()
            pair.primary.kill()
            if server is pair.primary:
                await pair.promote()
