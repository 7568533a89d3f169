"""Listeners and notifiers on lines that break."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from engine import PATIENCE_SECONDS, until
from evertick.runtime import timeouts, wakeups
from evertick.runtime.wakeups import Listener, Notifier
from evertick.store.database import Pool, Timeouts, open_pool
from evertick.store.engine.wakeups import TIMERS
from evertick.store.location import Location
from faults.proxy import Proxy
from pgbouncer import pgbouncer

QUICK = Timeouts(connection_seconds=20, command_seconds=0.3, lock_seconds=0.2)


@pytest.fixture
def proxy(database_url: str) -> Iterator[Proxy]:
    proxy = Proxy(database_url)
    yield proxy
    proxy.stop()


class Heard:
    """What a listener was told."""

    def __init__(self) -> None:
        self._ids: list[frozenset[int] | None] = []
        self._more = asyncio.Event()

    def __call__(self, _: str, ids: frozenset[int] | None) -> None:
        self._ids.append(ids)
        self._more.set()

    def count(self, ids: frozenset[int] | None) -> int:
        return self._ids.count(ids)

    async def wait_for(self, ids: frozenset[int] | None, times: int = 1) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self._ids.count(ids) < times:
                self._more.clear()
                await self._more.wait()


@pytest.fixture
async def heard(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Heard]:
    monkeypatch.setattr(wakeups, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(wakeups, "PROBE_SECONDS", 0.1)
    monkeypatch.setattr(timeouts, "LISTEN", QUICK)
    heard = Heard()
    listener = Listener(proxy.url, heard, TIMERS)
    listener.start()
    await heard.wait_for(None)
    yield heard
    await listener.stop()


async def _tell(pool: Pool, ids: set[int]) -> None:
    notifier = Notifier(pool)
    notifier.timers(ids)
    await notifier.stop()


async def _is_heard(pool: Pool, heard: Heard, ids: set[int]) -> bool:
    """Tell it, for all that a listener may miss that takes a slow machine for a silent line; whether it was heard."""
    await _tell(pool, ids)
    return heard.count(frozenset(ids)) > 0


@pytest.mark.parametrize("fault", [Proxy.silence, Proxy.lose_replies, Proxy.cut])
async def test_a_listener_whose_line_broke_hears_again(
    pool: Pool, proxy: Proxy, heard: Heard, fault: Callable[[Proxy], None]
) -> None:
    await until(lambda: _is_heard(pool, heard, {7}))
    before = heard.count(None)
    fault(proxy)
    await heard.wait_for(None, before + 1)  # it connected anew, and says that it may have missed something
    await until(lambda: _is_heard(pool, heard, {8}))


async def test_a_notifier_stops_on_a_line_that_does_not_answer(proxy: Proxy) -> None:
    pool = await open_pool(proxy.url, max_size=1, timeouts=QUICK)
    notifier = Notifier(pool)
    notifier.start()
    proxy.freeze()
    notifier.timers({1})
    async with asyncio.timeout(PATIENCE_SECONDS):
        await notifier.stop()
    pool.terminate()


async def test_wake_ups_go_around_a_pooler(database_url: str) -> None:
    async with pgbouncer(database_url) as pooler, await open_pool(pooler.url) as pool:
        heard = Heard()
        listener = Listener(Location(pooler.url, direct_url=database_url), heard, TIMERS)
        listener.start()
        await heard.wait_for(None)
        await _tell(pool, {7})
        await heard.wait_for(frozenset({7}))
        await listener.stop()


async def test_behind_a_pooler_nobody_listens_in_sessions_of_others(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="evertick")
    async with pgbouncer(database_url, default_pool_size="1") as pooler, await open_pool(pooler.url) as pool:
        heard = Heard()
        listener = Listener(pooler.url, heard, TIMERS)
        listener.start()

        async def is_told() -> bool:
            return "set EVERTICK_DATABASE_DIRECT_URL" in caplog.text

        await until(is_told)
        assert await pool.fetchval("SELECT count(*) FROM pg_listening_channels()") == 0
        await listener.stop()
