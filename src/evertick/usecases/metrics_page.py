"""The figures of the whole cluster beside those of a process, on one page.

They are read from the database when the page is asked for, at most once a second, in bounded statements and a bounded
time. Without an answer the page has the figures of the process alone.
"""

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from functools import partial

from evertick.metrics import catalog
from evertick.metrics.exposition import page
from evertick.metrics.instruments import Gauge, Labels
from evertick.metrics.queue_labels import OTHER, queue_labels
from evertick.runtime.concurrency import Cached
from evertick.store.database import Pool, is_transient, was_too_slow
from evertick.usecases.engine_status import EngineStatus, engine_status

CACHE_SECONDS = 1.0

Values = Mapping[Gauge, Mapping[Labels, float]]


def page_with_cluster(pool: Pool, lifetime: timedelta) -> Callable[[], Awaitable[bytes]]:
    """Makes the page of a process without the API."""
    status = Cached(lambda: engine_status(pool, lifetime), CACHE_SECONDS)
    return partial(metrics_page, status.get, "status")


async def metrics_page(status: Callable[[], Awaitable[EngineStatus]], role: str) -> bytes:
    """The page of a process. `role`: under which the difference of the clocks is shown."""
    try:
        cluster = _values(await status(), role)
    except Exception as error:
        if not (is_transient(error) or was_too_slow(error)):
            raise
        cluster = {catalog.DATABASE_UP: {(): 0}}
    return page(cluster)


def _values(status: EngineStatus, role: str) -> Values:
    cluster = status.cluster
    single = {
        catalog.DATABASE_UP: 1,
        catalog.OLDEST_DUE: cluster.lag_seconds,
        catalog.LEASES: status.leases,
        catalog.STUCK_LEASES: status.stuck_leases,
        catalog.OLDEST_SNAPSHOT: (status.snapshot and status.snapshot.seconds) or 0.0,
        catalog.SNAPSHOT_AGE: status.snapshot.transactions if status.snapshot else 0,
        catalog.DEAD_LETTERS: status.dead_letters,
        catalog.CATCH_UP: status.catch_up,
        catalog.FULL_QUEUES: status.full_queues,
        catalog.OPEN_ALERTS: status.alerts.open,
        catalog.FAILED_NOTICES: status.alerts.failed,
        catalog.FAILING_SINKS: status.events.sinks_failing,
        catalog.UNPLACED_EVENTS: status.events.unplaced_seconds,
        catalog.NODES: sum(node.is_alive for node in cluster.nodes),
        catalog.UNHELD: cluster.partitions.unheld,
        catalog.SUSPECTED: cluster.suspicion is not None,
    }
    ready, oldest = _queues(status)
    skew: Mapping[Labels, float] = {(role,): status.clock_skew_seconds}
    return {
        **{gauge: {(): value} for gauge, value in single.items()},
        catalog.OPEN_CIRCUITS: {(state,): status.open_circuits.get(state, 0) for state in catalog.OPEN_STATES},
        catalog.READY: ready,
        catalog.OLDEST_READY: oldest,
        catalog.CLOCK_SKEW: skew,
    }


def _queues(status: EngineStatus) -> tuple[Mapping[Labels, float], Mapping[Labels, float]]:
    """By label. A queue that has a label is shown when it is empty too: autoscalers need the 0."""
    labelled = [(OTHER if queue.name is None else queue_labels.of(queue.name), queue) for queue in status.queues]
    ready: dict[Labels, float] = {(label,): 0 for label in (*queue_labels.known, OTHER)}
    oldest = dict(ready)
    for label, queue in labelled:
        ready[label,] += queue.attempts
        oldest[label,] = max(oldest[label,], queue.oldest_seconds)
    return ready, oldest
