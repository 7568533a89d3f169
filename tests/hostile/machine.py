"""How much of the machine others use meanwhile: what is slow because of them is no fault of the server."""

import os
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from evertick.bench.processes import stat_fields

_PROC = Path("/proc")
_HERTZ = os.sysconf("SC_CLK_TCK")
_BUSY = (0, 1, 2, 5, 6, 7)  # user, nice, system, irq, softirq, steal, in /proc/stat
LEAST_SHARE = 0.1
"""What is left to us at least: who is to evaluate anything on less cannot."""


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU time so far: of everybody, and of the families of some processes."""

    at: float
    everybody: float
    own: float

    def slowdown_since(self, before: "Usage") -> float:
        """How much longer things took than on a machine of their own: by what share of it others left."""
        capacity = (self.at - before.at) * (os.cpu_count() or 1)
        foreign = (self.everybody - before.everybody) - (self.own - before.own)
        return 1 / max(LEAST_SHARE, 1 - max(0.0, foreign) / max(capacity, 0.01))


def usage(parents: Collection[int]) -> Usage:
    """The usage as of now; these processes and their children are our own, those that ended included."""
    line = (_PROC / "stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
    everybody = sum(int(line[place]) for place in _BUSY) / _HERTZ
    own = 0.0
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (fields := stat_fields(int(entry.name))):
            is_parent = int(entry.name) in parents
            if is_parent or int(fields[1]) in parents:
                own += sum(int(field) for field in fields[11 : 15 if is_parent else 13]) / _HERTZ
    return Usage(time.monotonic(), everybody, own)


def parent_of(pid: int) -> int:
    fields = stat_fields(pid)
    assert fields is not None
    return int(fields[1])
