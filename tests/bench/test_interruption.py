"""A bench that gets a signal, at whichever moment: it ends in order, and nothing of it is left."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import postgres
from bench.commands import databases, fetched

pytestmark = pytest.mark.slow

TIMEOUT_SECONDS = 300
"""On a machine of any speed: reaching it means that something hangs."""
INTERRUPTED = 130
IDLE = ("idle", "--jobs", "100", "--seconds", "3600")

FIRST_FILE = "*"
SERVER_IS_MADE = "*/data/making-*"
SERVER_STARTS = "*/data/postgres/postmaster.pid"
PROCESSES_START = "*/worker-*.log"


@pytest.fixture
def folder(data_dir: Path) -> Path:
    """Where the bench keeps what is temporary."""
    data_dir.mkdir()
    data_dir.chmod(0o711)
    return data_dir


@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (signal.SIGINT, FIRST_FILE),
        (signal.SIGTERM, SERVER_IS_MADE),
        (signal.SIGINT, SERVER_STARTS),
        (signal.SIGTERM, PROCESSES_START),
    ],
)
def test_a_signal_ends_it_without_leaving_anything(number: signal.Signals, moment: str, folder: Path) -> None:
    with _bench(folder) as process:
        _wait_for(lambda: bool(list(folder.glob(moment))), process)
        process.send_signal(number)
        assert process.wait(TIMEOUT_SECONDS) == INTERRUPTED
        _assert_empty(folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_while_it_clears_away_change_nothing(
    number: signal.Signals, folder: Path, postgres_server: postgres.Server
) -> None:
    url = postgres_server.embedded.url
    with _database_removed(url) as made, _bench(folder, "--database-url", url) as process:
        _wait_for(lambda: bool(made()), process)
        _wait_for(lambda: bool(list(folder.glob(PROCESSES_START))), process)
        deadline = time.monotonic() + TIMEOUT_SECONDS
        # Until the program has left `main`: a signal that it gets while Python itself ends is not its own to handle.
        while list(folder.iterdir()):
            process.send_signal(number)
            assert time.monotonic() < deadline
            time.sleep(0.001)
        process.wait(TIMEOUT_SECONDS)
        assert made() == set()
        _assert_empty(folder)


def test_an_interrupt_ends_it_even_where_it_was_started_to_ignore_that(folder: Path) -> None:
    """As shells start what they run in the background."""
    with _bench(folder, ignoring=signal.SIGINT) as process:
        _wait_for(lambda: bool(list(folder.glob(PROCESSES_START))), process)
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT_SECONDS) == INTERRUPTED
        _assert_empty(folder)


@contextmanager
def _bench(folder: Path, *options: str, ignoring: signal.Signals | None = None) -> Iterator["subprocess.Popen[bytes]"]:
    """A bench that would take an hour. Whatever a failed test leaves of it is ended, so that only that test fails."""
    process = subprocess.Popen(
        [sys.executable, "-m", "evertick.cli", "bench", *IDLE, *options],
        env={**os.environ, "TMPDIR": str(folder)},
        stderr=subprocess.DEVNULL,
        preexec_fn=None if ignoring is None else lambda: signal.signal(ignoring, signal.SIG_IGN),  # noqa: PLW1509
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(TIMEOUT_SECONDS)
        for pid in _processes_in(folder):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def _database_removed(url: str) -> Iterator[Callable[[], set[str]]]:
    """Tells which databases benches have made since; they are removed at the end."""
    before = set(databases(url))

    def made() -> set[str]:
        return set(databases(url)) - before

    try:
        yield made
    finally:
        for name in made():
            fetched(url, f"DROP DATABASE {name} WITH (FORCE)")


def _wait_for(holds: Callable[[], bool], process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not holds():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.002)


def _assert_empty(folder: Path) -> None:
    assert list(folder.iterdir()) == []
    assert _processes_in(folder) == []


def _processes_in(folder: Path) -> list[int]:
    """Those that were started below a folder; it may be gone since."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # ended meanwhile
            if folder in (entry / "cwd").readlink().parents:
                found.append(int(entry.name))
    return found
