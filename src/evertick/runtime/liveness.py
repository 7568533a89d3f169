"""Tells others that this process is alive: a file for health checks (`EVERTICK_HEALTH_FILE`), and systemd.

The event loop does it, from the moment the process is ready. So a process that hangs is found, and one that waits for
its database is not: a restart would not help it. The remote worker uses this module without the server's dependencies.
"""

import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from evertick.runtime.loop import Loop

BEAT_SECONDS = 5.0
STALE_SECONDS = 30.0
"""Several beats: a process on a busy machine is late, not dead."""
SYSTEMD_VARIABLE = "NOTIFY_SOCKET"


@asynccontextmanager
async def reporting_liveness(health_file: Path | None) -> AsyncIterator[None]:
    """Report for as long as the block lasts. The file is removed at the end; after a crash it only gets old."""
    systemd = os.environ.get(SYSTEMD_VARIABLE)

    async def beat() -> float:
        _tell(systemd, "WATCHDOG=1")
        if health_file is not None:
            health_file.touch()  # noqa: ASYNC240 - a local file, and not even a byte
        return BEAT_SECONDS

    beating = Loop("liveness", beat)
    _tell(systemd, "READY=1")
    beating.start()
    try:
        yield
    finally:
        _tell(systemd, "STOPPING=1")
        await beating.stop()
        if health_file is not None:
            health_file.unlink(missing_ok=True)  # noqa: ASYNC240 - as above


def age_seconds(health_file: Path) -> float | None:
    """How long ago a process reported here, or None if none does. A clock that was set back makes no report newer."""
    try:
        return abs(time.time() - health_file.stat().st_mtime)
    except FileNotFoundError:
        return None


def _tell(address: str | None, message: str) -> None:
    """As sd_notify(3) describes it. Nobody may listen."""
    if address is None:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.setblocking(False)
        sender.sendto(message.encode(), f"\0{address[1:]}" if address.startswith("@") else address)
