"""Fixtures for every test that needs PostgreSQL, and the end of all servers that tests started."""

import itertools
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest
from hypothesis import HealthCheck, settings

import postgres
from evertick.store import database
from missing_servers import pytest_terminal_summary as pytest_terminal_summary  # noqa: PLC0414 - a hook

_ROOT = "EVERTICK_TEST_SERVERS"
_MEMORY = Path("/dev/shm")
_ROOM_BYTES = 8 << 30
_numbers = itertools.count(1)

# A busy machine is no fault of what is tested.
settings.register_profile("any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-machine")
# Nor is a test that holds a lock for as long as what it waits for takes there.
database.IDLE_SECONDS = database.LOCK_SECONDS = 300


def pytest_configure(config: pytest.Config) -> None:
    # Tests start hundreds of processes: without bytecode, each compiles all that it imports.
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # Not below pytest's own temporary directory: that is private, and root's servers run as another user.
    if not hasattr(config, "workerinput"):
        root = Path(tempfile.mkdtemp(prefix="evertick-tests-", dir=_folder()))
        root.chmod(0o711)
        os.environ[_ROOT] = str(root)  # xdist's workers inherit it


def _folder() -> Path | None:
    """In memory where there is room: a database of 500 files is copied for most tests, which takes a disk ten times as
    long. None: where temporary files go, which TMPDIR chooses.
    """
    has_room = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _ROOM_BYTES
    return _MEMORY if has_room and "TMPDIR" not in os.environ else None


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        postgres.remove(Path(os.environ.pop(_ROOT)))


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """A command that runs in this process sets up its logs; the next test must not inherit them."""
    root, ours = logging.getLogger(), logging.getLogger("evertick")
    handlers, levels = list(root.handlers), (root.level, ours.level)
    yield
    root.handlers[:] = [handler for handler in root.handlers if handler in handlers]
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


@pytest.fixture(scope="session")
def postgres_servers() -> Iterator[postgres.Servers]:
    servers = postgres.Servers(Path(os.environ[_ROOT]))
    yield servers
    servers.stop()


@pytest.fixture(scope="session")
def postgres_server(postgres_servers: postgres.Servers) -> postgres.Server:
    """The embedded server. The tests of the store put both versions in its place."""
    return postgres_servers.get(postgres.EMBEDDED)


@pytest.fixture
def data_dir() -> Path:
    """For an embedded server of the test's own; whatever still runs there at the end is stopped, and all removed."""
    return Path(os.environ[_ROOT]) / f"{postgres.EMBEDDED}-{os.getpid()}-{next(_numbers)}"


@pytest.fixture
async def database_url(postgres_server: postgres.Server) -> AsyncIterator[str]:
    """A database of this test's own, with the current schema."""
    async with postgres_server.database() as url:
        yield url


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await database.connect(database_url)
    yield connection
    await connection.close()


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[database.Pool]:
    async with await database.open_pool(database_url) as pool:
        yield pool
