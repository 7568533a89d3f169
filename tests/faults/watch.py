"""Watches a cluster before, during and after a fault, for the checkers that compare: C6 to C8.

The database runs on this machine, so this machine's clock is the database's.
"""

import asyncio
import sys
import time
from collections.abc import Collection, Mapping
from contextlib import suppress

import psutil

from faults.checkers import Verdict, Window, lag_recovers, neighbours_unaffected, resources_bounded
from faults.checkers.lags import ENOUGH, FLOOR_US
from faults.cluster import Cluster

CALM_RUNS = 3 * ENOUGH
CALM_SECONDS = 300
"""So long processes may take from their start until runs are in time: machines are slow."""
RECOVERY_SECONDS = 240
"""So long after healing the lag may take to come back, besides three times as long as the fault."""
ANY_LAG_US = 3_600_000_000
"""No lag that a test could have is over it."""
# What was due some seconds ago has started by now.
LATE = """
SELECT count(*)
  FROM attempts LEFT JOIN outcomes USING (lane_id, seq)
 WHERE fire_at > to_timestamp($1) AND fire_at < clock_at() - $2::float * interval '1 second'
   AND (outcomes.seq IS NULL OR started_at - fire_at > $2::float * interval '1 second')
"""
FIRED = "SELECT count(*) FROM outcomes JOIN attempts USING (lane_id, seq) WHERE fire_at >= to_timestamp($1)"
USED = """
SELECT (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')::integer AS connections,
       (SELECT sum(n_dead_tup) FROM pg_stat_user_tables)::integer AS dead_tuples
"""


class Watch:
    """Call `calm`, break something, call `broken` when it is broken and `heal` when it is repaired, then `judge`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._before: dict[str, int] = {}
        self._calm_us = self._broken_us = self._healed_us = 0

    async def calm(self, runs: int = CALM_RUNS) -> None:
        """See how so many runs are served while nothing is broken."""
        self._calm_us = await self._settle(runs, CALM_SECONDS)
        self._before = await self._used()

    def broken(self) -> None:
        self._broken_us = _now_us()

    def heal(self) -> None:
        self._healed_us = _now_us()

    async def judge(
        self, neighbours: Mapping[str, Collection[int]] | None = None, *, is_timed: bool = False
    ) -> dict[str, Verdict]:
        """Wait until runs start in time again, and check resources; and C7 for the jobs of other tenants, by their ids.

        `is_timed`: and how late runs started, which depends on the machine.
        """
        broken_seconds = (self._healed_us - self._broken_us) / 1e6
        settled_us = await self._settle(ENOUGH, RECOVERY_SECONDS + 3 * broken_seconds)
        used = await self._until_given_back()
        await self._cluster.wait_until_idle()
        ledger = await self._cluster.ledger()
        calm, floor_us = Window(self._calm_us, self._broken_us), FLOOR_US if is_timed else ANY_LAG_US
        within_us = settled_us - self._healed_us
        verdicts = [
            lag_recovers(ledger.jobs, before=calm, healed_us=self._healed_us, within_us=within_us, floor_us=floor_us),
            resources_bounded(self._before, used),
        ]
        if neighbours:
            of = {name: [job for job in ledger.jobs if job.job_id in ids] for name, ids in neighbours.items()}
            fault = Window(self._broken_us, self._healed_us)
            verdicts.append(neighbours_unaffected(of, calm=calm, fault=fault, floor_us=floor_us))
        for verdict in verdicts:
            sys.stdout.write(f"{verdict}\n")
            assert verdict.ok, verdict
        return {verdict.name[:2]: verdict for verdict in verdicts}

    async def _settle(self, runs: int, seconds: float) -> int:
        """Wait until so many successive runs started in time. Returns since when they do."""
        deadline = time.monotonic() + seconds
        while True:
            since = time.time()

            async def has_fired(since: float = since) -> bool:
                return bool(await self._cluster.value(FIRED, since) >= runs)

            await self._cluster.until(has_fired, f"{runs} more runs", seconds)
            if not await self._cluster.value(LATE, since, FLOOR_US / 1e6):
                return int(since * 1e6)
            assert time.monotonic() < deadline, f"runs are late for more than {seconds:.0f} s"

    async def _until_given_back(self) -> dict[str, int]:
        """Pools close what they do not need and vacuum runs a little later."""
        deadline = time.monotonic() + RECOVERY_SECONDS
        while True:
            used = await self._used()
            if resources_bounded(self._before, used).ok or time.monotonic() > deadline:
                return used
            await asyncio.sleep(0.5)

    async def _used(self) -> dict[str, int]:
        """What each command's processes use at most, and the database."""
        row = await self._cluster.pool.fetchrow(USED)
        assert row is not None
        used: dict[str, int] = dict(row)
        for process in self._cluster.processes:
            with suppress(psutil.NoSuchProcess):
                if not process.is_running:
                    continue
                command, alive = process.log.stem.partition("-")[0], psutil.Process(process.pid)
                for what, much in (
                    ("memory_kb", alive.memory_info().rss // 1024),
                    ("descriptors", alive.num_fds()),
                ):
                    used[f"{command} {what}"] = max(used.get(f"{command} {what}", 0), much)
        return used


def _now_us() -> int:
    return time.time_ns() // 1000
