"""The status of the engine: its nodes and partitions, its lag, its throughput."""

import asyncio
import hashlib
import time
from dataclasses import dataclass
from datetime import timedelta

from msgspec.structs import replace

from evertick import tzdb
from evertick.contract.server import Cluster, Lag, Node, Partitions, Stats
from evertick.domain.cluster_identity import explain
from evertick.domain.ids import PARTITIONS
from evertick.metrics.queue_labels import MAX_QUEUES, queue_labels
from evertick.runtime.timeouts import STATUS_SECONDS
from evertick.store.database import Pool
from evertick.store.engine import identity, lanes, members, ready, timers
from evertick.store.engine.members import PartitionHolder
from evertick.store.engine.ready import QueueDepth
from evertick.store.maintenance import diagnostics
from evertick.store.maintenance.diagnostics import OldestSnapshot
from evertick.store.statements import Connection
from evertick.store.tenants import alerts, events, target_hosts, tenants
from evertick.store.tenants.alerts import AlertCounts
from evertick.store.tenants.events import Lag as EventLag
from evertick.usecases.diagnosis import MAX_LETTERS
from evertick.version import __version__

WINDOW_SECONDS = 60.0
STUCK_SECONDS = 60.0
"""A lease that ran out is taken over after a grace of half the lease time."""
MAX_PER_LANE = 10_000
MAX_PER_PARTITION = 10_000
"""Timers that are overdue there, of all tenants, among which a tenant's own is looked for."""
MAX_LEFT = 1_000
"""Timers left from an outage that are counted in each partition."""


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """The whole engine, for its operators."""

    cluster: Cluster
    queues: list[QueueDepth]
    leases: int
    stuck_leases: int
    snapshot: OldestSnapshot | None
    dead_letters: int
    open_circuits: dict[str, int]
    full_queues: int
    catch_up: int
    clock_skew_seconds: float
    alerts: AlertCounts
    events: EventLag


async def engine_status(pool: Pool, lifetime: timedelta) -> EngineStatus:
    """`lifetime`: for so long after its last heartbeat a node counts as alive. Raises TimeoutError if it takes long."""
    async with asyncio.timeout(STATUS_SECONDS):
        cluster = await cluster_status(pool, lifetime)
        outages = await members.outages(pool, range(PARTITIONS))
        return EngineStatus(
            cluster,
            queues=await ready.queue_depths(pool, queue_labels.known, MAX_QUEUES),
            leases=await diagnostics.leases(pool),
            stuck_leases=(await diagnostics.stuck_leases(pool, STUCK_SECONDS)).leases,
            snapshot=await diagnostics.oldest_snapshot(pool),
            dead_letters=await diagnostics.dead_letters(pool, MAX_LETTERS),
            open_circuits=await target_hosts.count_open(pool),
            full_queues=sum(depth.is_full for depth in await ready.depths(pool)),
            catch_up=sum((await timers.count_due(pool, outages, MAX_LEFT)).values()) if outages else 0,
            clock_skew_seconds=await _clock_skew(pool),
            alerts=await alerts.count(pool),
            events=await events.lag(pool),
        )


async def cluster_status(pool: Pool, lifetime: timedelta) -> Cluster:
    """The nodes and partitions, and their lag."""
    suspicion = await identity.suspicion(pool)
    return Cluster(
        version=__version__,
        tzdb=tzdb.VERSION,
        nodes=tuple(Node(**row._asdict()) for row in await members.members(pool, lifetime)),
        partitions=Partitions(PARTITIONS, await members.unheld(pool, lifetime)),
        lag_seconds=_late_seconds(await diagnostics.oldest_due(pool)),
        suspicion=None if suspicion is None else explain(suspicion),
    )


async def _clock_skew(pool: Pool) -> float:
    """How far this machine's clock is from the database's, at least: the question takes a while."""
    asked = time.time()
    read = (await lanes.clock(pool)).timestamp()
    return max(asked - read, read - time.time(), 0.0)


async def replica_lag(replica: Pool, primary: Pool) -> float | None:
    """How many seconds a standby is behind, at most; None: it has no heartbeat of a scheduler."""
    now_at = await lanes.clock(primary)
    seen_at = await members.last_seen(replica, now_at)
    return None if seen_at is None else (now_at - seen_at).total_seconds()


def opaque_name(node: str) -> str:
    """A stable name for a node that reveals nothing about its machine."""
    # A node's name has random digits, and this is too short to find out the rest by trying.
    return f"node-{hashlib.sha256(node.encode()).hexdigest()[:6]}"


def opaque(node: Node) -> Node:
    """A node as tenants see it: without its name, and without what it does for others."""
    return replace(node, node=opaque_name(node.node), fired_per_second=None)


async def partition_holders(pool: Pool) -> list[PartitionHolder]:
    """Who holds each partition, for operators."""
    async with asyncio.timeout(STATUS_SECONDS):
        return await members.partition_holders(pool)


async def tenant_stats(pool: Connection, tenant_id: int) -> Stats:
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
