"""The metrics for Prometheus: how this process answers, and the current status of the engine."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from evertick.runtime.delivery_counts import DeliveryEvent, deliveries
from evertick.store.engine.fuse import runaways
from evertick.store.engine.outcomes import letters

if TYPE_CHECKING:
    from evertick.usecases.engine_status import EngineStatus

MEDIA_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class _Growth(Collector):
    """Counters that other parts of the process keep."""

    def collect(self) -> Iterator[CounterMetricFamily]:
        text = "Dead letters that this process recorded, by a role or for a pull worker"
        yield CounterMetricFamily("evertick_dead_letters_recorded", text, value=letters.recorded)
        text = "Jobs that this process paused because they fired more often than their schedule allows"
        yield CounterMetricFamily("evertick_runaway_jobs_paused", text, value=runaways.paused)
        text = "What circuit breakers and rate limits of target hosts did in this process, by event"
        events = CounterMetricFamily("evertick_target_host_events", text, labels=["event"])
        for event in DeliveryEvent:
            events.add_metric([event], deliveries[event])
        yield events


class Metrics:
    """A registry of this process's own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = self._counter("http_requests", "Requests by operation and status", "operation", "status")
        self._seconds = self._histogram(
            "http_request_seconds", "Time to answer, by operation; long polls wait on purpose", "operation"
        )
        self._refused = self._counter("http_refused_connections", "Connections closed for a limit, by reason", "reason")
        self._loop_delay = self._histogram(
            "event_loop_delay_seconds",
            "How late the event loop of this process comes to what is due, measured ten times a second",
        )
        self._polls = self._gauge("long_polls", "Long polls that wait here for work")
        self._ready = self._gauge("ready_attempts", "Attempts that wait for a worker")
        self._leased = self._gauge("leases", "Leases that workers hold")
        self._dead_letters = self._gauge("dead_letters", "Runs whose attempts are used up, up to 10,000")
        self._registry.register(_Growth())
        self._lag = self._gauge("oldest_due_seconds", "How late the oldest timer that should have fired is")
        self._circuits = self._gauge("open_circuits", "Target hosts of tenants whose deliveries are deferred")
        self._full = self._gauge("full_queues", "Queues whose timers wait, because as many attempts wait as may")
        self._alerts = self._gauge("open_alerts", "Alerts of jobs and tenants that are open, up to 10,000")
        self._failed_notices = self._gauge("failed_notices", "Alerts whose last notice could not be delivered")
        self._nodes = self._gauge("nodes", "Schedulers that are alive")
        self._unheld = self._gauge("unheld_partitions", "Partitions that no live scheduler holds")

    def count(self, operation: str, status: int, seconds: float) -> None:
        self._requests.labels(operation, str(status)).inc()
        self._seconds.labels(operation).observe(seconds)

    def refuse_connection(self, reason: str) -> None:
        self._refused.labels(reason).inc()

    def observe_loop_delay(self, seconds: float) -> None:
        self._loop_delay.observe(seconds)

    def page(self, status: "EngineStatus", polls: int) -> bytes:
        self._polls.set(polls)
        self._ready.set(status.ready)
        self._leased.set(status.leases)
        self._dead_letters.set(status.dead_letters)
        self._lag.set(status.cluster.lag_seconds)
        self._circuits.set(status.open_circuits)
        self._full.set(status.full_queues)
        self._alerts.set(status.alerts.open)
        self._failed_notices.set(status.alerts.failed)
        self._nodes.set(sum(node.is_alive for node in status.cluster.nodes))
        self._unheld.set(status.cluster.partitions.unheld)
        return generate_latest(self._registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"evertick_{name}", text, registry=self._registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"evertick_{name}", text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(f"evertick_{name}", text, labels, buckets=_SECONDS, registry=self._registry)
