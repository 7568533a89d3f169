"""Real processes of the product for fault tests: started as users start them, killed and stopped by their id."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

EVERTICK = Path(sys.executable).parent / "evertick"
TESTS = Path(__file__).parents[1]


class Process:
    """One `evertick` process and the file with all that it says.

    `source` is the directory of another version's source, with `src` and `tests`, for a process of that version.
    """

    def __init__(
        self, arguments: list[str], log: Path, environment: Mapping[str, str], source: Path | None = None
    ) -> None:
        self.log = log
        tests = TESTS if source is None else source / "tests"
        paths = [tests] if source is None else [source / "src", tests]
        with log.open("wb") as output:
            self._popen = subprocess.Popen(
                [str(EVERTICK), *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **environment, "PYTHONPATH": ":".join(map(str, paths))},
                cwd=tests,
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def is_running(self) -> bool:
        return self._popen.poll() is None

    def wait_for(self, *texts: str, seconds: float = 300) -> None:
        """Wait until the process has said one of these."""
        deadline = time.monotonic() + seconds
        while not any(map((said := self.log.read_text(encoding="utf-8", errors="replace")).__contains__, texts)):
            assert self.is_running, f"it ended with {self._popen.returncode}:\n{said}"
            assert time.monotonic() < deadline, f"never said {texts}:\n{said}"
            time.sleep(0.01)

    def send(self, number: signal.Signals) -> None:
        if self.is_running:
            self._popen.send_signal(number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self._popen.wait(120)

    def wait(self, seconds: float = 600) -> int:
        """Wait until it ends by itself, and return the exit code."""
        return self._popen.wait(seconds)

    def terminate(self, seconds: float = 120) -> int:
        """Ask to stop, and return the exit code."""
        self.send(signal.SIGTERM)
        return self._popen.wait(seconds)
