"""What processes cost, as the kernel tells: CPU time and memory. Nothing where there is no /proc."""

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


def cpu_seconds(pid: int) -> float | None:
    """CPU time of a process so far."""
    fields = _stat(pid)
    return None if fields is None else (int(fields[11]) + int(fields[12])) / _TICKS


def family_cpu_seconds(pid: int) -> float | None:
    """CPU time of a process and its children so far, also of those that have ended: a server with its backends."""
    fields = _stat(pid)
    if fields is None:
        return None
    own = sum(int(field) for field in fields[11:15]) / _TICKS
    return own + sum(cpu_seconds(child) or 0.0 for child in _children(pid))


def peak_memory_mb(pid: int) -> float | None:
    """The most memory that a process had at any time."""
    try:
        status = (_PROC / str(pid) / "status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return round(int(line.split()[1]) / 1024, 1)
    return None


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat after the name, which may hold anything; the first is the state."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def _children(pid: int) -> list[int]:
    running = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]
    return [each for each in running if (fields := _stat(each)) is not None and int(fields[1]) == pid]
