"""Every metric, with its labels and bounds. `docs/metrics.md` is generated from here.

Times are in seconds. Labels have few values: names of queues are bounded by `queue_labels`, all others are closed sets.
"""

from enum import StrEnum

from evertick.domain.breaker import CircuitState
from evertick.domain.states import GapReason, Outcome
from evertick.metrics.instruments import Counter, Gauge, Histogram, Instrument

LAG_BOUNDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 1.5, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0),
)
"""Of lags. Narrow up to a second, where objectives are, so that an estimated p999 is off by a third at most there."""
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
STATEMENT_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10.0)

TIMER_KINDS = ("tick", "queued", "retry", "manual", "replay")
REFUSALS = ("fence", "changed", "stale", "lease")
WEBHOOK_CLASSES = ("2xx", "3xx", "4xx", "5xx", "timeout", "failed")
OPEN_STATES = tuple(state.value for state in CircuitState if state is not CircuitState.CLOSED)
LEGS = ("due_to_fired", "fired_to_leased", "leased_to_started", "started_to_finished")


class HostEvent(StrEnum):
    """What happens to the deliveries to a host. Counted by dispatchers."""

    CIRCUIT_OPENED = "circuit_opened"  # the host failed too often
    CIRCUIT_CLOSED = "circuit_closed"  # a probe succeeded
    PROBE = "probe"  # a delivery to a host that fails, to find out whether it works again
    CIRCUIT_DEFERRED = "circuit_deferred"  # put back because the circuit is open
    RATE_DEFERRED = "rate_deferred"  # put back because the host's rate is used up


# Firing: schedulers.
FIRED = Counter(
    "fired", "Attempts that schedulers fired, by kind of timer", "kind", known=[(kind,) for kind in TIMER_KINDS]
)
FIRE_LAG = Histogram("fire_lag_seconds", "From due time to firing, for each attempt that was fired", bounds=LAG_BOUNDS)
SKIPPED = Counter(
    "skipped_ticks", "Ticks that became gaps, by reason", "reason", known=[(reason.value,) for reason in GapReason]
)
REFUSED = Counter(
    "refused_writes",
    "Writes that were refused: the partition is lost (fence), the timer has changed (changed), the attempt has ended"
    " already (stale), the lease is not held any more (lease)",
    "reason",
    known=[(reason,) for reason in REFUSALS],
)
REAPED = Counter("reaped_leases", "Leases that ran out and were taken over")
RUNAWAYS = Counter(
    "runaway_jobs_paused", "Jobs that were paused because they fired more often than their schedule allows"
)
PARTITIONS_HELD = Gauge("partitions_held", "Partitions that the schedulers of this process hold")
PENDING_TIMERS = Gauge("pending_timers", "Timers in memory: due, or due within the load horizon")
PARKED_TIMERS = Gauge("parked_timers", "Due timers in memory that wait because their queue is full")
CAUGHT_UP = Counter("caught_up_timers", "Timers left from an outage that schedulers of this process fired")

# Attempts: workers, dispatchers, and the API for pull workers.
LAG = Histogram(
    "lag_seconds", "From due time to start, for each attempt, by role and queue", "role", "queue", bounds=LAG_BOUNDS
)
LEG = Histogram(
    "leg_seconds",
    "Each leg of an attempt: due_to_fired, fired_to_leased, leased_to_started, started_to_finished",
    *("leg", "role", "queue"),
    bounds=LAG_BOUNDS,
)
OUTCOMES = Counter(
    "outcomes",
    "Outcomes of attempts that this process recorded, by result; runs that users or REPLACE cancel are not counted",
    "result",
    known=[(result.value,) for result in Outcome if result is not Outcome.CANCELLED],
)
RETRIES = Counter("retries", "Attempts that are followed by a retry")
DEAD_LETTERS_RECORDED = Counter("dead_letters_recorded", "Dead letters that this process recorded")
PUT_BACK = Counter("put_back", "Attempts that were put back before they were started, by role", "role")
HANDED_OVER = Counter(
    "handed_over", "Attempts that a broker accepted and whose outcome a consumer reports, by role", "role"
)
DEFERRALS = Counter(
    "deferrals", "Attempts that were put back to wait: without a handler, slot, token or working host, by role", "role"
)
RUNNING = Gauge("running_attempts", "Attempts that run in this process, by role", "role")
HELD = Gauge("held_attempts", "Attempts that this process has leased, running or not, by role", "role")
UNRECORDED = Gauge("unrecorded_outcomes", "Outcomes that this process has not recorded yet, by role", "role")

# Webhooks: dispatchers.
WEBHOOKS = Counter(
    "webhook_results",
    "Webhooks that were sent, by class of the response; timeout and failed are without a response",
    "class",
    known=[(each,) for each in WEBHOOK_CLASSES],
)
EVENTS_SENT = Counter("events_sent", "Events that were sent to sinks, by result: accepted or failed", "result")
BROKER_MESSAGES = Counter(
    "broker_messages",
    "Messages that were published to brokers, by type and result: acknowledged, timeout, failed",
    "type",
    "result",
)
HOST_EVENTS = Counter(
    "target_host_events",
    "What circuit breakers and rate limits of target hosts did",
    "event",
    known=[(event.value,) for event in HostEvent],
)

# The API.
HTTP_REQUESTS = Counter("http_requests", "Requests by operation and status", "operation", "status")
HTTP_SECONDS = Histogram(
    "http_request_seconds", "Time to answer, by operation; long polls wait on purpose", "operation", bounds=SECONDS
)
HTTP_REFUSED = Counter("http_refused_connections", "Connections closed for a limit, by reason", "reason")
LONG_POLLS = Gauge("long_polls", "Long polls that wait here for work")
REPLICA_LAG = Gauge(
    "replica_lag_seconds", "How far the replica is behind, at most; not shown while that is not known", is_largest=True
)
REPLICA_READS = Counter(
    "replica_reads",
    "Lists and figures that a replica may answer, by the server that did",
    "server",
    known=[("replica",), ("primary",)],
)
EVENT_STREAMS = Gauge("event_streams", "Streams of events that are open here")

# Every process.
LOOP_DELAY = Histogram(
    "event_loop_delay_seconds",
    "How late the event loop comes to what is due, measured ten times a second",
    bounds=SECONDS,
)
LOOP_ERRORS = Counter("loop_errors", "Steps of background loops that failed, by loop", "loop")
STATEMENT_SECONDS = Histogram(
    "statement_seconds",
    "Time of each SQL statement, with the wait for a connection",
    "statement",
    bounds=STATEMENT_BOUNDS,
)
STATEMENT_ERRORS = Counter("statement_errors", "SQL statements that failed or timed out", "statement")
POOL = Gauge(
    "pool_connections",
    "Connections to the database, by pool and state: used, idle, or free to be opened",
    "pool",
    "state",
)
CLOCK_SKEW = Gauge(
    "clock_skew_seconds",
    "Difference between the clocks of this machine and of the database, by role; status: as the metrics port asked",
    "role",
    is_largest=True,
)

# The archive: janitors.
ARCHIVED_DAYS = Counter("archive_exports", "Days of the history that were archived and then dropped")
ARCHIVE_ERRORS = Counter("archive_errors", "Exports to the archive that failed")
ARCHIVE_DAYS_WAITING = Gauge(
    "archive_days_waiting",
    "Days that are older than history is kept and wait to be archived, as this process last saw",
    is_largest=True,
)

# The whole cluster, as the database has it: in all processes but workers, each with the same figures.
DATABASE_UP = Gauge("database_up", "Whether the database answered in time for the figures of the cluster: 1 or 0")
READY = Gauge("ready_attempts", "Attempts that wait for a worker, by queue", "queue")
OLDEST_READY = Gauge("oldest_ready_seconds", "How long ago the oldest attempt that waits was due, by queue", "queue")
OLDEST_DUE = Gauge("oldest_due_seconds", "How late the oldest timer that should have fired is")
LEASES = Gauge("leases", "Leases that workers hold")
STUCK_LEASES = Gauge("stuck_leases", "Leases that ran out over a minute ago and were not taken over")
OLDEST_SNAPSHOT = Gauge(
    "oldest_snapshot_seconds", "For how long the transaction that most keeps vacuum from its work is open"
)
SNAPSHOT_AGE = Gauge(
    "oldest_snapshot_transactions", "How many transactions back vacuum can remove nothing, for whatever reason"
)
DEAD_LETTERS = Gauge("dead_letters", "Runs whose attempts are used up, up to 10,000")
OPEN_CIRCUITS = Gauge(
    "open_circuits", "Target hosts of tenants whose deliveries are deferred, by state of their circuit", "state"
)
CATCH_UP = Gauge("catch_up_timers", "Timers left from an outage that have not fired, up to 1,000 of each partition")
FULL_QUEUES = Gauge("full_queues", "Queues whose timers wait, because as many attempts wait as may")
OPEN_ALERTS = Gauge("open_alerts", "Alerts of jobs and tenants that are open, up to 10,000")
FAILED_NOTICES = Gauge("failed_notices", "Alerts whose last notice could not be delivered")
FAILING_SINKS = Gauge("failing_event_sinks", "Sinks of events that do not accept them")
UNPLACED_EVENTS = Gauge(
    "unplaced_events_seconds", "How old the oldest event is that no janitor has put into its stream"
)
NODES = Gauge("nodes", "Schedulers that are alive")
UNHELD = Gauge("unheld_partitions", "Partitions that no live scheduler holds")
SUSPECTED = Gauge("database_suspected", "Whether the database may be a restored copy, so that nothing runs: 1 or 0")

ALL: tuple[Instrument, ...] = tuple(each for each in list(globals().values()) if isinstance(each, Instrument))

PROCESS = {
    "process_start_time_seconds": ("gauge", "When the process started, since 1970"),
    "process_cpu_seconds_total": ("counter", "Processor time of the process"),
    "process_resident_memory_bytes": ("gauge", "Memory of the process"),
    "process_open_fds": ("gauge", "Open files and connections of the process"),
}
"""Kind and text of what other programs tell under the same names."""
