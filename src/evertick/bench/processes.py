"""Starts and stops real `evertick` processes, and reads their CPU time and memory from /proc, where that exists."""

import asyncio
import itertools
import os
import secrets
import signal
import sys
from asyncio.subprocess import PIPE, Process as Child
from collections.abc import Callable
from pathlib import Path

from evertick.domain.errors import EvertickError
from evertick.store.tenants.secrets import Seal


class BenchFailed(EvertickError):  # noqa: N818 - says what happened
    """A measurement failed. The message says why."""


_TICKS = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


def cpu_seconds(pid: int) -> float | None:
    """CPU time of a process so far."""
    fields = stat_fields(pid)
    return None if fields is None else (int(fields[11]) + int(fields[12])) / _TICKS


def family_cpu_seconds(pid: int) -> float | None:
    """CPU time so far of a process and its children, including ended ones: a server with its backends."""
    fields = stat_fields(pid)
    if fields is None:
        return None
    own = sum(int(field) for field in fields[11:15]) / _TICKS
    return own + sum(cpu_seconds(child) or 0.0 for child in _children(pid))


def peak_memory_mb(pid: int) -> float | None:
    """The peak memory of a process."""
    return _status_mb(pid, "VmHWM:")


def memory_mb(pid: int) -> float | None:
    """The memory of a process now."""
    return _status_mb(pid, "VmRSS:")


def _status_mb(pid: int, name: str) -> float | None:
    try:
        status = (_PROC / str(pid) / "status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith(name):
            return round(int(line.split()[1]) / 1024, 1)
    return None


def stat_fields(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat after the name, which may hold anything; the first is the state."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def _children(pid: int) -> list[int]:
    running = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]
    return [each for each in running if (fields := stat_fields(each)) is not None and int(fields[1]) == pid]


READY = "Evertick is ready"
READY_SECONDS = 120.0
STOP_SECONDS = 60.0
_LINE_BYTES = 2**20
_TAIL_LINES = 12


class Process:
    """One process and the file with its log."""

    def __init__(self, name: str, child: Child, log: Path) -> None:
        self.name = name
        self.pid = child.pid
        self._child = child
        self._log = log

    async def line(self, seconds: float = READY_SECONDS) -> str:
        """The next line that it prints."""
        assert self._child.stdout is not None
        try:
            raw = await asyncio.wait_for(self._child.stdout.readline(), seconds)
        except TimeoutError:
            raise BenchFailed(f"{self.name} printed nothing for {seconds:.0f} s:\n{self._tail()}") from None
        if not raw:
            raise BenchFailed(f"{self.name} ended too early:\n{self._tail()}")
        return raw.decode().rstrip("\n")

    async def ask(self) -> str:
        """Send an empty line, and return the line that it answers with."""
        assert self._child.stdin is not None
        self._child.stdin.write(b"\n")
        return await self.line()

    def check(self) -> None:
        """Raise BenchFailed if the process has ended."""
        if self._child.returncode is not None:
            raise BenchFailed(f"{self.name} ended with {self._child.returncode}:\n{self._tail()}")

    async def stop(self) -> None:
        """Stop it by SIGTERM. Kill it if it does not stop in time."""
        if self._child.returncode is None:
            self._child.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(self._child.wait(), STOP_SECONDS)
            except TimeoutError:
                await self.kill()

    async def kill(self) -> None:
        if self._child.returncode is None:
            self._child.kill()
            await self._child.wait()

    def _tail(self) -> str:
        return "\n".join(self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:])


class Fleet:
    """The processes of one measurement, on one database."""

    def __init__(self, url: str, folder: Path) -> None:
        self._folder = folder
        # Settings of the user must not change what is measured.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("EVERTICK_")}
        key = secrets.token_hex(32)
        self.seal = Seal(key)
        """As the processes have it."""
        own = {
            "EVERTICK_DATABASE_URL": url,
            "EVERTICK_SECRET_KEY": key,
            "EVERTICK_PORT": "0",
            "EVERTICK_EGRESS_ALLOW": "127.0.0.0/8",  # the addresses of the receivers
            "EVERTICK_EGRESS_ALLOW_HTTP": "true",
        }
        self._environment = inherited | own
        self._processes: list[Process] = []
        self._starting: list[asyncio.Task[Process]] = []
        self._numbers = itertools.count(1)

    async def scheduler(self, roles: str = "scheduler,janitor") -> Process:
        name, *_ = roles.split(",")
        return await self._evertick(name, "scheduler", "--roles", roles)

    async def worker(self, concurrency: int | None = None) -> Process:
        options = () if concurrency is None else ("--concurrency", str(concurrency))
        return await self._evertick("worker", "worker", "evertick.bench.workload:app", *options)

    async def server(self) -> tuple[Process, str]:
        """A process with the HTTP API alone, and its address."""
        process = await self.start("api", "evertick.cli", "up", "--roles", "api")
        return process, (await process.line()).rpartition(" ")[2]

    async def start(self, name: str, module: str, *arguments: str, **environment: str) -> Process:
        """Start a module as a process."""
        starting = asyncio.create_task(self._start(name, module, *arguments, **environment))
        self._starting.append(starting)
        # If the caller is cancelled, the start completes all the same, so that `kill` knows the process.
        return await asyncio.shield(starting)

    async def _start(self, name: str, module: str, *arguments: str, **environment: str) -> Process:
        log = self._folder / f"{name}-{next(self._numbers)}.log"
        with log.open("wb") as errors:
            child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", module, *arguments),
                stdin=PIPE,
                stdout=PIPE,
                stderr=errors,
                env=self._environment | environment,
                cwd=self._folder,  # without an evertick.toml of the user
                start_new_session=True,  # Ctrl-C reaches only the bench, which then stops its processes
                limit=_LINE_BYTES,
            )
        process = Process(name, child, log)
        self._processes.append(process)
        return process

    def check(self) -> None:
        """Raise BenchFailed if any process has ended."""
        for process in self._processes:
            process.check()

    def cpu_seconds(self) -> dict[str, float]:
        """CPU time so far of each kind of process, where /proc exists."""
        return self._by_kind(cpu_seconds)

    def memory_mb(self) -> dict[str, float]:
        """Memory now of each kind of process, where /proc exists."""
        return self._by_kind(memory_mb)

    def _by_kind(self, read: Callable[[int], float | None]) -> dict[str, float]:
        totals: dict[str, float] = {}
        for process in self._processes:
            if (value := read(process.pid)) is not None:
                totals[process.name] = totals.get(process.name, 0.0) + value
        return totals

    async def stop(self, *processes: Process) -> None:
        """Stop these, or all."""
        stopping = processes or tuple(self._processes)
        await asyncio.gather(*(process.stop() for process in stopping))
        self._processes = [process for process in self._processes if process not in stopping]

    async def kill(self) -> None:
        """Kill all remaining processes."""
        await asyncio.gather(*self._starting, return_exceptions=True)
        await asyncio.gather(*(process.kill() for process in self._processes))

    async def _evertick(self, name: str, *arguments: str) -> Process:
        process = await self.start(name, "evertick.cli", *arguments)
        line = await process.line()
        if not line.startswith(READY):
            raise BenchFailed(f"{name} did not become ready, it printed {line!r}")
        return process
