"""Several processes of one worker command, and their restart when sources change. The command itself runs in them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

from evertick.config.reading import read_settings

MAX_PROCESSES = 256
LOOK_SECONDS = 0.25
"""Between two looks at the processes and at their sources."""
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})
"""Folders without sources of the user. Hidden ones are skipped too."""


class WorkerProcesses:
    """Starts `count` processes with the same arguments. `sources`: restart them when a file below it changes."""

    def __init__(self, arguments: Sequence[str], count: int, sources: Path | None) -> None:
        self._arguments = arguments
        self._count = count
        self._sources = sources
        self._processes: list[subprocess.Popen[bytes]] = []
        self._stopped_by: int | None = None

    def run(self) -> int:
        """Run until a signal, or until a process ends by itself; returns the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup does
                signal.signal(number, self._pass_on)
        seen = self._modified()
        self._start()
        while True:
            time.sleep(LOOK_SECONDS)
            codes = [process.poll() for process in self._processes]
            if self._stopped_by is not None:
                if None not in codes:
                    return max((abs(code) for code in codes if code is not None), default=0)
                continue
            if (now := self._modified()) != seen:
                seen = now
                click.echo("Sources changed: restarting.", err=True)
                self._stop()
                self._start()
            elif self._sources is None and any(code is not None for code in codes):
                self._stop()
                return next(abs(code) for code in codes if code is not None)

    def _start(self) -> None:
        """In process groups of their own: a Ctrl-C in the terminal is passed on, once, instead of arriving twice."""
        if self._stopped_by is not None:
            return
        command = [sys.executable, "-m", "evertick.cli", *self._arguments]
        self._processes = [
            subprocess.Popen(command, env=_environment(number), process_group=0)  # noqa: S603 - our own
            for number in range(self._count)
        ]
        if self._stopped_by is not None:  # while they were started
            self._send(self._stopped_by)

    def _stop(self) -> None:
        self._send(signal.SIGTERM)
        for process in self._processes:
            process.wait()

    def _pass_on(self, number: int, _: object) -> None:
        """In their groups of their own they do not notice that the terminal hangs up: they end as by SIGTERM."""
        self._stopped_by = signal.SIGTERM if number == signal.SIGHUP else number
        self._send(self._stopped_by)

    def _send(self, number: int) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(number)

    def _modified(self) -> Mapping[Path, int]:
        """When each source was changed."""
        return {} if self._sources is None else dict(_sources_in(self._sources))


def _environment(number: int) -> dict[str, str]:
    """A process has a metrics port and a health file of its own, also where the config file names them."""
    own, settings = dict(os.environ), read_settings()
    if number and settings.metrics_port:
        own["EVERTICK_METRICS_PORT"] = str(settings.metrics_port + number)
    if number and settings.health_file is not None:
        own["EVERTICK_HEALTH_FILE"] = f"{settings.health_file}.{number}"
    return own


def _sources_in(folder: Path) -> Iterator[tuple[Path, int]]:
    for path, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _SKIPPED and not name.startswith(".")]
        for name in files:
            if name.endswith(".py"):
                file = Path(path, name)
                try:
                    yield file, file.stat().st_mtime_ns
                except FileNotFoundError:  # an editor replaces it at this moment
                    continue
