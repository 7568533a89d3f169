"""A cluster of real processes on one database, and the judgement of its history once all faults are healed."""

import asyncio
import itertools
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from evertick.domain.schedule.instants import to_us
from evertick.store import database
from evertick.store.engine import lanes
from evertick.usecases.context import TenantContext
from evertick.usecases.jobs.create_many import create_many
from faults.checkers import Verdict, check_all
from faults.checkers.summary import summarise
from faults.ledger import Ledger, read_deliveries, read_ledger
from faults.processes import Process

HEARTBEAT_TIMEOUT = 2.0
LEASE_SECONDS = 3.0
PATIENCE_SECONDS = 300.0
"""On a machine of any speed: reaching it means that something hangs."""
BOUND_US = 60_000_000
"""How late a start may be in the campaign."""
PATIENT_US = 600_000_000
"""How late it may be elsewhere: faults last for as long as the machine needs."""
LONG_LEASES = {"EVERTICK_LEASE_SECONDS": "60"}
"""For tests in which no worker dies: a machine that stands still for some seconds must not start anything twice."""
PATIENT_GRACE: dict[str, Any] = {"misfire_grace_seconds": 600}
"""For tests that allow no gap: the first processes may take long to start."""

_SETTINGS = {
    "EVERTICK_HEARTBEAT_SECONDS": "0.2",
    "EVERTICK_HEARTBEAT_TIMEOUT_SECONDS": str(HEARTBEAT_TIMEOUT),
    "EVERTICK_LEASE_SECONDS": str(LEASE_SECONDS),
    "EVERTICK_SECRET_KEY": "a key of at least thirty-two characters",
    "EVERTICK_EGRESS_ALLOW": "127.0.0.0/8",
    "EVERTICK_EGRESS_ALLOW_HTTP": "true",
}
_IS_QUIET = """
SELECT NOT EXISTS (SELECT FROM timers WHERE kind <> 'tick') AND NOT EXISTS (
    SELECT FROM attempts LEFT JOIN outcomes USING (lane_id, seq) WHERE outcomes.seq IS NULL
)
"""


class Cluster:
    """Schedulers and workers, each with a log of what it says; workers with one of what they were told to do."""

    def __init__(self, url: str, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        self.url = url
        self.own_url = url
        """Where the test itself connects; another than that of the processes when one of its hosts hangs."""
        self.folder = folder
        self.settings = dict(settings or {})
        """Of the processes, before those of all fault tests."""
        self.source: Path | None = None
        """Of another version, whose processes are started from now on."""
        self.processes: list[Process] = []
        self._starting: list[Process] = []
        self._numbers = itertools.count(1)

    async def open(self) -> None:
        self.pool = await database.open_pool(self.own_url, max_size=8)
        self.tenant = TenantContext(self.pool, 1)

    async def close(self) -> None:
        for process in self.processes:
            process.kill()
        await self.close_connections()

    async def close_connections(self) -> None:
        """Let go of the database, which may be gone."""
        self.pool.terminate()

    def scheduler(self, *, url: str | None = None) -> Process:
        return self.launch("scheduler", url=url)

    def worker(self, *options: str, url: str | None = None, app: str = "app") -> Process:
        return self.launch("worker", f"faults.worker_app:{app}", *options, url=url)

    def dispatcher(self, *, url: str | None = None) -> Process:
        return self.launch("up", "--roles", "dispatcher", url=url)

    def janitor(self, *, archive: Path) -> Process:
        return self.launch("up", "--roles", "janitor", EVERTICK_ARCHIVE_URL=str(archive))

    def api(self, *, url: str | None = None, port: int = 0) -> Process:
        process = self.launch("up", "--roles", "api", "--port", str(port), url=url)
        self.wait_until_ready()
        return process

    def run(self, *arguments: str) -> str:
        """Run a command to its end, and return what it says."""
        log = self.folder / f"command-{next(self._numbers)}.log"
        settings = _SETTINGS | self.settings | {"EVERTICK_DATABASE_URL": self.url}
        process = Process([*arguments], log, settings, self.source)
        code, said = process.wait(), log.read_text(encoding="utf-8")
        assert code == 0, said
        return said

    def all_roles(self, *, url: str | None = None) -> Process:
        process = self.launch("up", "--port", "0", url=url)
        self.wait_until_ready()
        return process

    def wait_until_ready(self) -> None:
        """Wait for all that were started, which begin beside each other. Whatever asks the database does so first."""
        starting, self._starting = self._starting, []
        for process in starting:
            process.wait_for("Evertick is ready")

    def launch(self, command: str, *arguments: str, url: str | None = None, **environment: str) -> Process:
        name = f"{command}-{next(self._numbers)}"
        own = {"EVERTICK_DATABASE_URL": url or self.url, "FAULTS_LOG": str(self._receipts(name))}
        settings = _SETTINGS | self.settings | own | environment
        process = Process([command, *arguments], self.folder / f"{name}.log", settings, self.source)
        self.processes.append(process)
        self._starting.append(process)
        return process

    def _receipts(self, name: str) -> Path:
        return self.folder / f"{name}.receipts"

    async def jobs(self, count: int, prefix: str = "job", **fields: Any) -> list[str]:
        """Jobs that tell the receiver, unless the fields say otherwise."""
        self.wait_until_ready()
        target = {"type": "worker", "queue": "faults", "handler": "note"}
        plain = {"target": target, "misfire_grace_seconds": 60, "max_retries": 20, "retry_delay_seconds": 0.2}
        batch = [{**plain, **fields, "name": f"{prefix}-{number}"} for number in range(count)]
        verdicts = await create_many(self.tenant, batch)
        assert not [verdict.faults for verdict in verdicts if verdict.faults]
        return [verdict.job_id for verdict in verdicts if verdict.job_id]

    async def value(self, query: str, *arguments: Any) -> Any:
        self.wait_until_ready()
        return await self.pool.fetchval(query, *arguments)

    async def until(self, holds: Callable[[], Awaitable[bool]], what: str, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait for something in the database."""
        self.wait_until_ready()
        deadline = time.monotonic() + seconds
        while not await holds():
            assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
            await asyncio.sleep(0.02)

    async def until_count(self, query: str, count: int, seconds: float = PATIENCE_SECONDS) -> None:
        async def holds() -> bool:
            return bool(await self.value(query) >= count)

        await self.until(holds, f"{query} >= {count}", seconds)

    async def wait_until_idle(self, seconds: float = PATIENCE_SECONDS) -> None:
        """Stop all ticks, and wait until every run has ended."""
        await self.pool.execute("UPDATE timers SET due_at = 'infinity' WHERE kind = 'tick'")

        async def is_quiet() -> bool:
            # In one snapshot: an attempt that ends between two queries leaves a retry that neither of them sees.
            return bool(await self.value(_IS_QUIET))

        await self.until(is_quiet, "every run has ended", seconds)

    async def check(
        self, *, allow_gaps: bool = True, receipts: bool = True, bound_us: int = PATIENT_US
    ) -> dict[str, Verdict]:
        """Run all checkers on the whole history up to the last handled tick. `bound_us`: how late a start may be."""
        now_at = await lanes.clock(self.pool)
        ledger = await self.ledger()
        deliveries = read_deliveries(self.folder.glob("*.receipts"))
        verdicts = check_all(
            ledger.jobs,
            now_us=to_us(now_at + timedelta(days=1)),
            start_bound_us=bound_us,
            end_bound_us=bound_us,
            allow_gaps=allow_gaps,
            allow_cancelled=True,
            timers=(),
            deliveries=deliveries if receipts else None,
            writes=ledger.writes,
        )
        for verdict in verdicts:
            sys.stdout.write(f"{verdict}\n")
            assert verdict.ok, verdict
        sys.stdout.write(f"{summarise(verdicts, ledger.jobs, deliveries, ledger.starts_us())}\n")
        return {verdict.name[:2]: verdict for verdict in verdicts}

    async def ledger(self) -> Ledger:
        """The history of each job up to its timer: later ticks are not due."""
        async with self.pool.acquire() as connection:
            return await read_ledger(connection)
