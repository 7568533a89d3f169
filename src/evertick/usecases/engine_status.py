"""The status of the engine: its nodes and partitions, its lag, its throughput."""

import asyncio
import hashlib
from dataclasses import dataclass
from datetime import timedelta

from evertick import tzdb
from evertick.contract.server import Cluster, Lag, Node, Partitions, Stats
from evertick.domain.ids import PARTITIONS
from evertick.runtime.timeouts import STATUS_SECONDS
from evertick.store.database import Pool
from evertick.store.engine import members, ready
from evertick.store.maintenance import diagnostics
from evertick.store.tenants import alerts, target_hosts, tenants
from evertick.store.tenants.alerts import AlertCounts
from evertick.usecases.diagnosis import MAX_LETTERS
from evertick.version import __version__

WINDOW_SECONDS = 60.0
MAX_PER_LANE = 10_000
MAX_PER_PARTITION = 10_000
"""Timers that are overdue there, of all tenants, among which a tenant's own is looked for."""


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """The whole engine, for its operators."""

    cluster: Cluster
    ready: int
    leases: int
    dead_letters: int
    open_circuits: int
    full_queues: int
    alerts: AlertCounts


async def engine_status(pool: Pool, lifetime: timedelta) -> EngineStatus:
    """`lifetime`: for so long after its last heartbeat a node counts as alive. Raises TimeoutError if it takes long."""
    async with asyncio.timeout(STATUS_SECONDS):
        cluster = Cluster(
            version=__version__,
            tzdb=tzdb.VERSION,
            nodes=tuple(Node(**row._asdict()) for row in await members.members(pool, lifetime)),
            partitions=Partitions(PARTITIONS, await members.unheld(pool, lifetime)),
            lag_seconds=_late_seconds(await diagnostics.oldest_due(pool)),
        )
        return EngineStatus(
            cluster,
            ready=sum(queue.attempts for queue in await diagnostics.ready_queues(pool, MAX_PER_LANE)),
            leases=await diagnostics.leases(pool),
            dead_letters=await diagnostics.dead_letters(pool, MAX_LETTERS),
            open_circuits=await target_hosts.count_open(pool),
            full_queues=sum(depth.is_full for depth in await ready.depths(pool)),
            alerts=await alerts.count(pool),
        )


def opaque_name(node: str) -> str:
    """A stable name for a node that reveals nothing about its machine."""
    # A node's name has random digits, and this is too short to find out the rest by trying.
    return f"node-{hashlib.sha256(node.encode()).hexdigest()[:6]}"


async def tenant_stats(pool: Pool, tenant_id: int) -> Stats:
    recent = await tenants.recent(pool, tenant_id, WINDOW_SECONDS, MAX_PER_LANE)
    activity = await tenants.activity(pool, tenant_id, MAX_PER_LANE)
    oldest = await tenants.oldest_due(pool, tenant_id, MAX_PER_PARTITION)
    return Stats(
        window_seconds=WINDOW_SECONDS,
        fired_per_second=recent.fired / WINDOW_SECONDS,
        finished_per_second=recent.finished / WINDOW_SECONDS,
        succeeded_per_second=recent.succeeded / WINDOW_SECONDS,
        lag_ms=Lag(*recent.lags_ms),
        ready=activity.ready,
        running=activity.running,
        oldest_due_at=None if oldest is None else oldest.due_at,
        oldest_due_seconds=_late_seconds(oldest),
    )


def _late_seconds(oldest: diagnostics.OldestDueTimer | tenants.OldestDue | None) -> float:
    return 0.0 if oldest is None else (oldest.now_at - oldest.due_at).total_seconds()
