"""The product as operators start it, one process with all roles, and what the kernel tells about it."""

import re
import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import httpx

from faults.processes import Process

FILES = 1024
"""Open files that a login shell gives a process; one that needs more raises its own limit."""
LOOPBACK_OPEN = {"EVERTICK_EGRESS_ALLOW": "127.0.0.0/8", "EVERTICK_EGRESS_ALLOW_HTTP": "true"}
SECRET = {"EVERTICK_SECRET_KEY": "a key of at least thirty-two characters"}
_BUCKET = re.compile(r'^evertick_event_loop_delay_seconds_bucket\{le="([^"]+)"\} (\S+)$', re.MULTILINE)
_CONNECTED = {"01", "08"}  # ESTABLISHED and CLOSE_WAIT, in /proc/net/tcp
Buckets = dict[float, float]


class Server:
    """One `evertick up`, and the key that it printed."""

    def __init__(self, process: Process) -> None:
        self.process = process
        log = process.log.read_text(encoding="utf-8", errors="replace")
        self.address = re.findall(r"^Evertick is ready at (\S+)$", log, re.MULTILINE)[0]
        self.port = int(self.address.rpartition(":")[2])
        self.admin_key = next(iter(re.findall(r"^API key: (\S+)$", log, re.MULTILINE)), "")

    def client(self, key: str | None = None, timeout: float = 60.0) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {key or self.admin_key}"}
        base_url = f"{self.address}/api/v1"
        return httpx.AsyncClient(base_url=base_url, headers=headers, trust_env=False, timeout=timeout)

    async def tenant(self, name: str, **limits: int) -> str:
        """The first key of a new tenant."""
        async with self.client() as client:
            answer = await client.post("/tenants", json={"name": name, **limits})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["api_key"])

    async def delays(self) -> Buckets:
        """How often the loop was late by how much at most, so far. Empty if it does not tell."""
        async with self.client() as client:
            answer = await client.get(f"{self.address}/metrics")
        return {float(bound): float(count) for bound, count in _BUCKET.findall(answer.text)}

    @property
    def log(self) -> str:
        return self.process.log.read_text(encoding="utf-8", errors="replace")

    def reset_peak(self) -> None:
        """Let the peak of its memory begin anew."""
        with suppress(OSError):
            Path(f"/proc/{self.process.pid}/clear_refs").write_text("5", encoding="ascii")

    def peak_mb(self) -> float:
        return self._memory_mb("VmHWM")

    def memory_mb(self) -> float:
        return self._memory_mb("VmRSS")

    def _memory_mb(self, name: str) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii", errors="replace")
        return int(next(re.finditer(rf"^{name}:\s+(\d+)", status, re.MULTILINE))[1]) / 1024

    def connections_from(self, address: str) -> int:
        """How many connections from an address it has not closed."""
        peer = "".join(f"{int(part):02X}" for part in reversed(address.split(".")))
        lines = (line.split() for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:])
        own = f":{self.port:04X}"
        return sum(f[1].endswith(own) and f[2].startswith(peer) and f[3] in _CONNECTED for f in lines)


def worst_delay(before: Buckets, after: Buckets) -> float | None:
    """The greatest bound that some delay between two looks was over; 0 if none was over any."""
    if not after:
        return None
    everything = after[float("inf")] - before.get(float("inf"), 0.0)
    return max((bound for bound, count in after.items() if count - before.get(bound, 0.0) < everything), default=0.0)


@asynccontextmanager
async def up(folder: Path, *arguments: str, name: str = "server", **environment: str) -> AsyncIterator[Server]:
    """A server on a free port; at the end it is killed."""
    with _usual_limits():
        process = Process(["up", "--port", "0", *arguments], folder / f"{name}.log", {**SECRET, **environment})
    try:
        process.wait_for("Evertick is ready at ")
        process.wait_for("\n")
        yield Server(process)
    finally:
        process.kill()


@contextmanager
def scheduler(log: Path, database_url: str) -> Iterator[None]:
    """One more scheduler on a database."""
    process = Process(["scheduler", "--database-url", database_url], log, SECRET)
    try:
        process.wait_for("Evertick is ready")
        yield
    finally:
        process.kill()


@contextmanager
def _usual_limits() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
