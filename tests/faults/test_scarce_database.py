"""The database has no connection left, or no space: the API says 503, nothing is lost, and all go on by themselves."""

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import asyncpg
import pytest

from evertick.store.database import connect
from evertick.store.errors import DatabaseUnreachable
from evertick.store.migrate import migrate
from evertick.store.server.embedded import EmbeddedServer
from faults.proxied_cluster import JOBS, ProxiedCluster, proxied_cluster
from faults.proxy import Proxy
from faults.watch import Watch
from postgres import SETTINGS

pytestmark = pytest.mark.slow

ATTEMPTS = "SELECT count(*) FROM attempts"
ROLE = "plain"
OURS = f"SELECT count(*) FROM pg_stat_activity WHERE usename = '{ROLE}'"
CROWDED = SETTINGS | {"max_connections": "60", "superuser_reserved_connections": "10"}
SMALL_LOG = SETTINGS | {"max_wal_size": "'64MB'", "min_wal_size": "'32MB'"}
DISK_MEGABYTES = 300
WASTE = "SELECT pg_logical_emit_message(false, 'waste', repeat('x', 8 << 20))"

timed_in_the_campaign = pytest.mark.parametrize("is_timed", [False, pytest.param(True, marks=pytest.mark.campaign)])
"""The lag is judged where nothing else uses the machine."""


@asynccontextmanager
async def _server(data_dir: Path, settings: dict[str, str]) -> AsyncIterator[EmbeddedServer]:
    server = EmbeddedServer(data_dir, settings)
    server.start()
    try:
        yield server
    finally:
        server.stop()


class Hog:
    """A client that takes every connection of a server it can get, and keeps it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._taken: list[asyncpg.Connection] = []

    async def take_all(self) -> None:
        with suppress(asyncpg.TooManyConnectionsError):
            while True:
                self._taken.append(await asyncpg.connect(self._url))

    def release(self) -> None:
        for each in self._taken:
            each.terminate()
        self._taken.clear()


async def _plain_role(server: EmbeddedServer) -> str:
    """The URL of a role without privileges, as Evertick should have one: it has no share in what is reserved."""
    admin = await connect(server.url)
    await admin.execute(f"CREATE ROLE {ROLE} LOGIN; CREATE ROLE hog LOGIN; ALTER DATABASE evertick OWNER TO {ROLE}")
    await admin.close()
    url = server.url.replace("postgres@", f"{ROLE}@")
    connection = await connect(url)
    await migrate(connection)
    await connection.close()
    return url


@pytest.mark.parametrize("rounds", [1, pytest.param(10, marks=pytest.mark.campaign)])
async def test_a_server_without_free_connections_stops_nothing_for_longer_than_that(
    data_dir: Path, tmp_path: Path, rounds: int
) -> None:
    async with _server(data_dir, CROWDED) as server:
        url = await _plain_role(server)
        hog = Hog(server.url.replace("postgres@", "hog@"))
        own_url = f"{server.url}&options=-csearch_path%3Devertick"
        async with proxied_cluster(url, tmp_path, own_url=own_url) as roles:
            watch = Watch(roles.cluster)
            await watch.calm()
            watch.broken()
            try:
                for _ in range(rounds):
                    await _crowd_out(roles, hog)
            finally:
                hog.release()
            watch.heal()
            await roles.works()
            await watch.judge(is_timed=rounds > 1)
            await roles.end()


async def _crowd_out(roles: ProxiedCluster, hog: Hog) -> None:
    """First take what is free: those with connections work on. Then take these away, too."""
    hog.release()
    await roles.works()
    await hog.take_all()
    fired = await roles.cluster.value(ATTEMPTS)
    await roles.cluster.until_count(ATTEMPTS, fired + 6 * JOBS)

    async def are_out() -> bool:
        roles.inject(Proxy.cut)
        await hog.take_all()
        return bool(await roles.cluster.value(OURS) == 0)

    await roles.cluster.until(are_out, "Evertick has no connection left")
    assert await roles.submit() == 503

    async def is_unready() -> bool:
        return await roles.ready() == 503

    await roles.cluster.until(is_unready, "the API says that it is not ready")
    assert await roles.alive() == 200


@contextmanager
def _small_disk(folder: Path) -> Iterator[None]:
    """A file system of its own for what is in a folder; skips the test where none can be mounted."""
    kept = folder.with_name(f"{folder.name}.kept")
    folder.rename(kept)
    shutil.copytree(kept, folder, ignore=lambda _, names: names)  # the folder alone, with its permissions
    shutil.chown(folder, kept.stat().st_uid, kept.stat().st_gid)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MEGABYTES}m", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(mount, check=False, capture_output=True, text=True)
    except OSError as error:
        pytest.skip(f"NOT TESTED: A FULL DISK, because nothing can be mounted: {error}")
    if mounted.returncode:
        folder.rmdir()
        kept.rename(folder)
        pytest.skip(f"NOT TESTED: A FULL DISK, because nothing can be mounted: {mounted.stderr.strip()}")
    try:
        subprocess.run(["cp", "-a", f"{kept}/.", str(folder)], check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _fill(disk: Path) -> Path:
    """Write until there is no space left."""
    ballast = disk / "ballast"
    with ballast.open("ab") as file, suppress(OSError):
        while True:
            file.write(b"\0" * 65536)
            file.flush()
    return ballast


@asynccontextmanager
async def _server_on_small_disk(data_dir: Path, part: str) -> AsyncIterator[tuple[EmbeddedServer, Path]]:
    """A server of which a part, or all, is on a small disk."""
    server = EmbeddedServer(data_dir, SMALL_LOG)
    connection = await connect(server.start())
    await migrate(connection)
    await connection.close()
    server.stop()
    disk = server.cluster / part
    with _small_disk(disk):
        server.start()
        try:
            yield server, disk
        finally:
            server.stop()


@timed_in_the_campaign
async def test_a_disk_too_full_for_tables_stops_nothing_for_longer_than_that(
    data_dir: Path, tmp_path: Path, *, is_timed: bool
) -> None:
    async with (
        _server_on_small_disk(data_dir, "base") as (server, disk),
        proxied_cluster(server.url, tmp_path) as roles,
    ):
        watch = Watch(roles.cluster)
        await watch.calm()
        ballast = _fill(disk)
        watch.broken()

        async def is_refused() -> bool:
            return await roles.submit("x" * 60_000) == 503

        async def scheduler_tells() -> bool:
            return "the disk is full" in roles.processes["scheduler"].log.read_text(encoding="utf-8")

        await roles.cluster.until(is_refused, "the API says 503")
        await roles.cluster.until(scheduler_tells, "the scheduler says why")
        ballast.unlink()
        watch.heal()
        await roles.works()
        await watch.judge(is_timed=is_timed)
        await roles.end()


@timed_in_the_campaign
async def test_a_disk_too_full_for_the_log_stops_nothing_for_longer_than_that(
    data_dir: Path, tmp_path: Path, *, is_timed: bool
) -> None:
    async with (
        _server_on_small_disk(data_dir, "pg_wal") as (server, disk),
        proxied_cluster(server.url, tmp_path) as roles,
    ):
        watch = Watch(roles.cluster)
        await watch.calm()
        ballast = _fill(disk)
        watch.broken()
        with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, DatabaseUnreachable, OSError):
            async with asyncio.timeout(60):
                while True:
                    await roles.cluster.value(WASTE)
        await roles.cluster.close_connections()

        async def is_refused() -> bool:
            return await roles.submit() == 503

        await roles.cluster.until(is_refused, "the API says 503")
        assert await roles.alive() == 200
        ballast.unlink()
        server.start()  # as an operator does: a server without its log gives up
        await roles.cluster.open()
        watch.heal()
        await roles.works()
        await watch.judge(is_timed=is_timed)
        await roles.end()
