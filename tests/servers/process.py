"""A server of a test's own: a child process on free ports in a directory, which can be killed and started again.

The calls block, so that fixtures of a session can use them; a test with an event loop calls them in a thread.
Subclasses say which command starts the server and when it answers.
"""

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn, Self

import pytest

from ports import free_ports

SERVERS = Path(__file__).parents[2] / ".servers"
"""Where `make servers` puts what is no package of the system."""

START_SECONDS = 180
STOP_SECONDS = 60


def program(name: str, server: str) -> str:
    """The path of a program of `.servers`; the test is skipped where it is not installed. One of the system is not
    taken: it may have any version, and fail where the pinned one does not.
    """
    found = SERVERS / "python" / "bin" / name
    if not found.exists():
        missing(server, f"there is no {name}; run `make servers`")
    return str(found)


def missing(server: str, why: str) -> NoReturn:
    pytest.skip(f"NOT TESTED WITH {server.upper()}: {why}")


class ServerProcess:
    """Keeps its port and its directory over a stop or a kill."""

    def __init__(self, directory: Path, ports: int = 1) -> None:
        self.directory = directory
        self.ports = free_ports(ports)
        self.port = self.ports[0]
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> tuple[Sequence[str], Mapping[str, str]]:
        """The words that start the server, and its variables beside those of the test."""
        raise NotImplementedError

    def answers(self) -> bool:
        """Whether a client can use it; OSError counts as no."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5):
            return True

    def start(self) -> None:
        words, variables = self.command()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                words,
                env={**os.environ, **variables},
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # its children end with it
            )
        try:
            self._wait()
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """As kill -9: nothing is written any more."""
        self._end(signal.SIGKILL)

    def close(self) -> None:
        """It is not started again."""
        self.kill()

    def suspend(self) -> None:
        """The server hangs: its connections stay open, and nobody answers."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)  # until the last thread has stopped

    def resume(self) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGCONT)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> Path:
        return self.directory / "output.log"

    def _wait(self) -> None:
        assert self._process is not None
        give_up_at = time.monotonic() + START_SECONDS
        while time.monotonic() < give_up_at:
            if self._process.poll() is not None:
                break
            with suppress(OSError):
                if self.answers():
                    return
            time.sleep(0.02)  # between two looks
        raise AssertionError(f"it did not start: {self.log.read_text(errors='replace')[-4000:]}")

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(STOP_SECONDS)

    @classmethod
    @contextmanager
    def running(cls, **settings: Any) -> Iterator[Self]:
        """A server that has started, in a temporary directory."""
        with tempfile.TemporaryDirectory(prefix="evertick-server-", ignore_cleanup_errors=True) as directory:
            server = cls(Path(directory), **settings)
            server.start()
            try:
                yield server
            finally:
                server.close()
