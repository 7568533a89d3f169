"""Limits that the fields of requests have, and the code that obeys them.

Apart from that code, which takes long to import: the command line reads answers without it.
"""

from enum import StrEnum

RRULE_MAX_CHARACTERS = 8192
PREVIEW_MAX_ROWS = 1000
DEFAULT_MAX_MISSED = 100
MAX_MISSED = 10_000
SMEAR_JITTERS_S = (60, 120, 300, 600, 900, 1800, 3600)
NEVER_LABEL, NEVER_VALUE = "smear", "never"
"""The label of jobs that the smear advisor leaves alone."""
MAX_OUTPUT_BYTES = 65_536
"""Of what a handler returns, as JSON. A longer one is not kept, but for its beginning."""


class QuotaName(StrEnum):
    """Which limit was reached. The API names it beside `Retry-After`."""

    JOBS = "jobs"  # jobs that exist at once
    SUBMIT_RATE = "submit_rate"  # submissions per second, once the burst is used up
    SUBMIT_BURST = "submit_burst"  # submissions in one request
    RUNNING = "running"  # runs at once
    READY = "ready"  # attempts waiting in lanes
    OVERLOAD = "overload"  # attempts of all tenants waiting in lanes
    STORAGE = "storage"  # bytes of jobs, their versions and the audit log
    KEPT_ANSWERS = "kept_answers"  # bytes of answers that are kept for repeated requests
    API_KEYS = "api_keys"  # keys that have not ended
    QUEUES = "queues"  # queues that something refers to
    TARGET_HOSTS = "target_hosts"  # hosts that failed lately, or have a rate limit
    CONNECTIONS = "connections"  # connections to message brokers
    COMPUTATIONS = "computations"  # schedules that wait to be computed
    BATCHES = "batches"  # large batches at work or waiting
    BODY_BYTES = "body_bytes"  # memory for bodies of requests under way
    LONG_POLLS = "long_polls"  # lease requests that wait
    EVENT_STREAMS = "event_streams"  # open streams of events
    REQUESTS = "requests"  # requests under way, or waiting for these
    UNREAD_ANSWERS = "unread_answers"  # bytes of answers that clients have not read
