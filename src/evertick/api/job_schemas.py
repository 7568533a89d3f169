"""JSON Schemas of jobs, whose fields the domain reads: what they may say, and what they are answered as."""

from evertick import tzdb
from evertick.api import patterns
from evertick.api.schemas import Schema, array, choice, instant, or_null, record, ref, seconds, text, whole
from evertick.domain.idempotency import DEFAULT_TEMPLATE, TEMPLATE_MAX_LENGTH
from evertick.domain.job.headers import MAX_HEADERS
from evertick.domain.job.limits import LONGEST_RETENTION_S, LONGEST_WAIT_S, MAX_CONCURRENT, MAX_RETRIES
from evertick.domain.job.payload import LABEL_VALUE_MAX_LENGTH, MAX_LABELS
from evertick.domain.job.target_fields import METHODS
from evertick.domain.job.url import URL_MAX_LENGTH
from evertick.domain.job.values import NAME_MAX_LENGTH
from evertick.domain.policies import Backoff, ConcurrentPolicy, DstGap, DstOverlap, MissedWindow, Priority
from evertick.domain.rule import MAX_MISSED
from evertick.usecases.jobs.views import JobStatus

_PAYLOAD_TEXT = {"type": "string", "pattern": patterns.STORABLE}


def schedule() -> Schema:
    return {
        "description": "When it fires: cron, `@daily`, `every 5m`, `R/…`, `RRULE:…`, an ISO 8601 instant, `now`,"
        " `in 90s` or `manual`. The patterns show what is always accepted; each form allows more.",
        "anyOf": [text(pattern, title=title) for title, pattern in patterns.SCHEDULES.items()],
        "examples": ["0 9 * * 1", "every 5m", "RRULE:FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=17", "in 90s"],
    }


def timing() -> dict[str, Schema]:
    """The fields that decide when, of jobs and previews alike."""
    window = "The pattern shows what is always accepted: any instant that leaves room to fire is."
    return {
        "timezone": {"anyOf": [ref("Timezone"), {"type": "null"}], "default": "UTC"},
        "dst_gap": or_null(choice(DstGap, DstGap.CATCH_UP)),
        "dst_overlap": or_null(choice(DstOverlap, DstOverlap.FIRST)),
        "start_at": or_null(text(patterns.START_AT, description=f"It never fires before. {window}")),
        "end_at": or_null(text(patterns.END_AT, description=f"It never fires after. {window}")),
    }


def _http_target() -> Schema:
    properties = {
        "type": {"const": "http"},
        "url": text(patterns.URL, maxLength=URL_MAX_LENGTH),
        "method": or_null({"type": "string", "enum": list(METHODS), "default": "POST"}),
        "headers": or_null(
            {
                "type": "object",
                "propertyNames": {"pattern": patterns.HEADER_NAME},
                "additionalProperties": text(patterns.HEADER_VALUE),
                "maxProperties": MAX_HEADERS,
            }
        ),
    }
    return {"type": "object", "properties": properties, "required": ["type", "url"], "additionalProperties": False}


def _worker_target() -> Schema:
    properties = {
        "type": {"const": "worker"},
        "queue": or_null(text(patterns.QUEUE, default="default", **{"not": {"const": "http"}})),
        "handler": text(patterns.HANDLER),
    }
    return {"type": "object", "properties": properties, "required": ["type", "handler"], "additionalProperties": False}


def _job_fields() -> dict[str, Schema]:
    backoff, grace = choice(Backoff, Backoff.EXPONENTIAL), "As long as the interval, an hour at most, unless given."
    timeout = (
        "A webhook takes no longer than the tenant's `http_timeout_max_seconds` either: 300 unless it was changed."
    )
    return {
        "name": or_null(text(patterns.NAME, maxLength=NAME_MAX_LENGTH, description="Unique; generated if left out.")),
        "schedule": schedule(),
        **timing(),
        "target": {"oneOf": [ref("HttpTarget"), ref("WorkerTarget")]},
        "payload": ref("Payload"),
        "idempotency_key_template": or_null(
            text(patterns.KEY_TEMPLATE, maxLength=TEMPLATE_MAX_LENGTH, default=DEFAULT_TEMPLATE)
        ),
        "max_retries": or_null(whole(0, MAX_RETRIES, 3)),
        "retry_backoff": or_null(backoff),
        "retry_delay_seconds": or_null(seconds(LONGEST_WAIT_S, default=10)),
        "retry_max_delay_seconds": or_null(seconds(LONGEST_WAIT_S, default=3600)),
        "timeout_seconds": or_null({**whole(1, 86_400, 300), "description": timeout}),
        "missed_window": or_null(choice(MissedWindow, MissedWindow.RUN_ONCE)),
        "misfire_grace_seconds": or_null(seconds(LONGEST_WAIT_S, description=grace)),
        "max_missed": or_null(whole(1, MAX_MISSED, 100)),
        "concurrent_policy": or_null(choice(ConcurrentPolicy, ConcurrentPolicy.SKIP)),
        "max_concurrent": or_null(whole(1, MAX_CONCURRENT, 1)),
        "jitter_seconds": or_null(seconds(LONGEST_WAIT_S, default=0)),
        "priority": or_null(choice(Priority, Priority.NORMAL)),
        "labels": or_null(
            {
                "type": "object",
                "propertyNames": {"pattern": patterns.LABEL_KEY},
                "additionalProperties": text(patterns.STORABLE, maxLength=LABEL_VALUE_MAX_LENGTH),
                "maxProperties": MAX_LABELS,
            }
        ),
        "retain_seconds": or_null(whole(0, LONGEST_RETENTION_S, 86_400)),
    }


EXAMPLE_JOB: Schema = {
    "name": "send-weekly-report",
    "schedule": "0 9 * * 1",
    "timezone": "America/New_York",
    "target": {
        "type": "http",
        "url": "https://hooks.example.invalid/report",
        "method": "POST",
        "headers": {"X-Team": "growth"},
    },
    "payload": {"report_type": "weekly"},
    "idempotency_key_template": "report-{{week}}",
    "max_retries": 3,
    "retry_backoff": "exponential",
    "missed_window": "RUN_ONCE",
    "timeout_seconds": 120,
}


def _delays_in_order(*steps: int) -> Schema:
    """That the longest retry delay is none, or at least the delay, as far as JSON Schema can compare: by steps."""
    delay, longest = "retry_delay_seconds", "retry_max_delay_seconds"
    ordered = [{"properties": {delay: {"maximum": step}, longest: {"minimum": step}}} for step in steps]
    return {"anyOf": [{"properties": {longest: {"type": "null"}}}, *ordered]}


def job_schemas() -> dict[str, Schema]:
    """What a job may say, and what it is answered as."""
    fields = _job_fields()
    closed = {
        "type": "object",
        "properties": fields,
        "additionalProperties": False,
        **_delays_in_order(10, 60, 3600, 86_400, LONGEST_WAIT_S),
    }
    answered = {
        name: {key: value for key, value in field.items() if key == "description"} for name, field in fields.items()
    }
    return {
        "Timezone": {"type": "string", "enum": sorted(tzdb.names()), "description": "An IANA name."},
        "HttpTarget": _http_target(),
        "WorkerTarget": _worker_target(),
        "Payload": {
            "description": "Any JSON of up to 64 KB, without NUL characters.",
            "anyOf": [
                {"type": ["null", "boolean", "number"]},
                _PAYLOAD_TEXT,
                array(ref("Payload")),
                {"type": "object", "propertyNames": _PAYLOAD_TEXT, "additionalProperties": ref("Payload")},
            ],
        },
        "JobRequest": {**closed, "required": ["schedule", "target"], "examples": [EXAMPLE_JOB]},
        "JobReplacement": {
            **closed,
            "properties": {name: field for name, field in fields.items() if name != "name"},
            "required": ["schedule", "target"],
            "examples": [{name: value for name, value in EXAMPLE_JOB.items() if name != "name"}],
        },
        "JobPatch": {
            **closed,
            # What is not given stands in the job, where no schema can see it.
            "dependentRequired": {
                "retry_delay_seconds": ["retry_max_delay_seconds"],
                "retry_max_delay_seconds": ["retry_delay_seconds"],
            },
            "examples": [{"schedule": "0 10 * * 1", "max_retries": 5}],
        },
        "Job": record(
            {
                "job_id": text(patterns.JOB_ID),
                "name": text(),
                "status": {"type": "string", "enum": [str(status) for status in JobStatus]},
                "next_run_at": or_null(instant()),
                "spec_version": {"type": "integer", "minimum": 1},
                "created_at": instant(),
                "updated_at": instant(),
                "paused_at": or_null(instant()),
                "pause_reason": or_null(text()),
                **{name: field for name, field in answered.items() if name != "name"},
            },
            text="A job, every field with its value in force.",
        ),
        "Jobs": array(ref("Job")),
    }
