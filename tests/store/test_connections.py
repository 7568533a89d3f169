"""A line that falls silent costs a statement its own time-out, and no other statement anything."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator

import asyncpg
import pytest

from evertick.store import database
from evertick.store.database import Pool, Session, Timeouts, is_transient, was_rolled_back
from evertick.store.errors import DatabaseUnreachable
from faults.proxy import Proxy

SHORT = Timeouts(connection_seconds=20, command_seconds=3, lock_seconds=0.2)
"""So long that a statement that is answered is answered in time, on a machine that stands still for a moment."""
GENEROUS_SECONDS = 45.0
"""Far more than a slow machine needs for such a time-out, and less than the driver's minute."""


@pytest.fixture
def proxy(database_url: str) -> Iterator[Proxy]:
    proxy = Proxy(database_url)
    yield proxy
    proxy.stop()


@pytest.fixture
async def pool(proxy: Proxy) -> AsyncIterator[Pool]:
    pool = await database.open_pool(proxy.url, max_size=4, timeouts=SHORT)
    yield pool
    pool.terminate()


async def _fill(pool: Pool) -> list[int]:
    """Open all connections of the pool; they are idle afterwards."""
    connections = [await pool.acquire() for _ in range(4)]
    pids = [connection.get_server_pid() for connection in connections]
    for connection in connections:
        await pool.release(connection)
    return pids


@pytest.mark.parametrize("fault", [Proxy.silence, Proxy.lose_replies])
async def test_after_one_statement_timed_out_the_next_uses_a_new_connection(
    pool: Pool, proxy: Proxy, fault: Callable[[Proxy], None]
) -> None:
    before = await _fill(pool)
    fault(proxy)
    began = time.monotonic()
    with pytest.raises(TimeoutError) as caught:
        await pool.fetchval("SELECT 1")
    assert is_transient(caught.value)
    assert not was_rolled_back(caught.value)
    assert await pool.fetchval("SELECT pg_backend_pid()") not in before
    assert time.monotonic() - began < GENEROUS_SECONDS


async def test_an_idle_connection_is_taken_and_given_back_within_one_turn_of_the_event_loop(pool: Pool) -> None:
    await pool.fetchval("SELECT 1")
    turns: list[None] = []
    asyncio.get_running_loop().call_soon(turns.append, None)
    async with pool.acquire():
        pass
    assert turns == []
    assert pool.get_idle_size() == 1


async def test_who_waits_for_a_connection_comes_before_who_asks_later(proxy: Proxy) -> None:
    pool = await database.open_pool(proxy.url, max_size=1, timeouts=SHORT)
    connection = await pool.acquire()
    waiting = asyncio.create_task(pool.fetchval("SELECT 1"))
    for _ in range(5):
        await asyncio.sleep(0)  # until it waits
    await pool.release(connection)
    await pool.fetchval("SELECT 2")
    assert waiting.done()
    await waiting
    await pool.close()


async def test_a_connection_with_an_open_transaction_is_given_back_without_it(pool: Pool) -> None:
    connection = await pool.acquire()
    await connection.execute("BEGIN")
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context["message"]))
    await pool.release(connection)
    assert len(failures) == 1, "the driver reports it"
    async with pool.acquire() as again:
        assert not again.is_in_transaction()


async def test_a_statement_that_is_abandoned_ends_its_connection_at_once(pool: Pool, proxy: Proxy) -> None:
    await pool.fetchval("SELECT 1")
    proxy.silence()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05), pool.acquire() as connection, connection.transaction():
            await connection.fetchval("SELECT 1")
    assert pool.get_size() == 0


async def test_a_transaction_on_a_silent_line_fails_with_the_time_out_itself(pool: Pool, proxy: Proxy) -> None:
    async with pool.acquire() as connection:
        with pytest.raises(TimeoutError):
            await _ask_in_transaction(connection, proxy.silence)
    assert await pool.fetchval("SELECT 1") == 1


async def _ask_in_transaction(connection: Session, fault: Callable[[], None]) -> None:
    async with connection.transaction():
        fault()
        await connection.fetchval("SELECT 1")


async def test_a_statement_that_takes_too_long_is_given_up_by_the_server_and_the_connection_kept(pool: Pool) -> None:
    (before,) = {await pool.fetchval("SELECT pg_backend_pid()")}
    with pytest.raises(asyncpg.QueryCanceledError) as caught:
        await pool.fetchval("SELECT pg_sleep(60)")
    assert was_rolled_back(caught.value)
    assert await pool.fetchval("SELECT pg_backend_pid()") == before


async def test_a_pool_closes_on_a_silent_line(pool: Pool, proxy: Proxy) -> None:
    await _fill(pool)
    proxy.silence()
    async with asyncio.timeout(GENEROUS_SECONDS):
        await pool.close()


async def test_the_kernel_watches_every_connection(proxy: Proxy, pool: Pool) -> None:
    async with pool.acquire() as connection:
        link: socket.socket = getattr(connection, "_transport").get_extra_info("socket")  # noqa: B009 - the stubs hide it
        assert link.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert link.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 5
        assert link.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 10_000


async def test_a_database_that_is_away_leaves_no_traceback_of_the_pool(
    pool: Pool, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    await _fill(pool)
    proxy.refuse()
    proxy.cut()
    for _ in range(3):
        with pytest.raises((DatabaseUnreachable, asyncpg.PostgresError, OSError)):
            await pool.fetchval("SELECT 1")
    assert not caplog.records


def _mute() -> socket.socket:
    """A host that hangs: its kernel accepts, and nobody ever answers."""
    return socket.create_server(("127.0.0.1", 0))


async def test_a_first_host_that_hangs_does_not_hide_the_second(proxy: Proxy) -> None:
    with _mute() as mute:
        url = proxy.url.replace("@", f"@127.0.0.1:{mute.getsockname()[1]},")
        for _ in range(2):  # the second time, the one that answered comes first
            async with asyncio.timeout(GENEROUS_SECONDS):
                connection = await database.connect(url)
            assert await connection.fetchval("SELECT 1") == 1
            await connection.close()


async def test_hosts_named_in_the_query_are_tried_alike(proxy: Proxy) -> None:
    with _mute() as mute:
        port = mute.getsockname()[1]
        url = proxy.url.replace(f"127.0.0.1:{proxy.port}", "") + f"?host=127.0.0.1,127.0.0.1&port={port},{proxy.port}"
        async with asyncio.timeout(GENEROUS_SECONDS):
            connection = await database.connect(url)
        assert await connection.fetchval("SELECT 1") == 1
        await connection.close()


async def test_without_any_host_the_error_names_each_with_its_reason(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "CONNECT_SECONDS", 0.3)
    proxy.refuse()
    with _mute() as mute:
        port = mute.getsockname()[1]
        url = f"postgresql://jane:s3cret@127.0.0.1:{port},127.0.0.1:{proxy.port}/jobs"
        with pytest.raises(DatabaseUnreachable) as caught:
            await database.connect(url)
    said = str(caught.value)
    assert f"127.0.0.1:{port}: no answer in 0.3 seconds" in said
    assert f"127.0.0.1:{proxy.port}: [Errno 111]" in said
    assert "s3cret" not in said
    assert is_transient(caught.value)
    assert was_rolled_back(caught.value)


async def test_of_several_hosts_one_that_cannot_write_is_not_chosen(
    proxy: Proxy, connection: asyncpg.Connection, database_url: str
) -> None:
    other = Proxy(database_url)
    try:
        await connection.execute("CREATE ROLE reader LOGIN; ALTER ROLE reader SET default_transaction_read_only = on")
        url = other.url.replace("postgres@", f"reader@127.0.0.1:{proxy.port},")
        with pytest.raises(DatabaseUnreachable, match=r"standby.*standby"):
            await database.connect(url)
    finally:
        await connection.execute("DROP ROLE reader")
        other.stop()
