"""JSON Schemas of bodies whose annotations do not say enough."""

import json

from evertick.api import patterns
from evertick.api.bodies.incoming import NDJSON
from evertick.api.job_schemas import EXAMPLE_JOB, schedule, timing
from evertick.api.schemas import Schema, array, instant, or_null, ref, seconds, text, whole
from evertick.domain.access import KeyRole
from evertick.domain.job.limits import LONGEST_WAIT_S
from evertick.domain.job.values import NAME_MAX_LENGTH
from evertick.domain.schedule.preview import MAX_ROWS


def request_schemas() -> dict[str, Schema]:
    return {
        "KeyRequest": {
            "type": "object",
            "properties": {
                "role": {"type": "string", "enum": [str(role) for role in KeyRole]},
                "name": text(patterns.STORABLE, maxLength=NAME_MAX_LENGTH, default=""),
                "expires_at": or_null(text(patterns.FUTURE, description="An instant in the future.")),
                "tenant_id": or_null(text(patterns.TENANT_ID, description="Another tenant's, for the host's admins.")),
            },
            "required": ["role"],
            "additionalProperties": False,
            "examples": [{"role": "viewer", "name": "the dashboard on the wall"}],
        },
        "TriggerRequest": {
            "type": "object",
            "properties": {"payload": ref("Payload")},
            "additionalProperties": False,
            "examples": [{}, {"payload": {"report_type": "daily"}}],
        },
        "PreviewRequest": {
            "type": "object",
            "properties": {
                "schedule": schedule(),
                **timing(),
                "jitter_seconds": or_null(seconds(LONGEST_WAIT_S, default=0)),
                "count": or_null(whole(1, MAX_ROWS, 10)),
                "after": or_null(text(patterns.START_AT)),
            },
            "required": ["schedule"],
            "additionalProperties": False,
            "examples": [{"schedule": "30 2 * * *", "timezone": "America/New_York", "count": 3}],
        },
        "OutcomesRequest": _outcomes_request(),
        # Whatever stands in it gets a verdict, so nothing in it makes the whole invalid.
        "Batch": {**array({"description": "A JobRequest."}), "maxItems": 10_000, "examples": [[EXAMPLE_JOB]]},
        "BatchLines": {
            "description": "A JobRequest on each line, at most 10,000 of them. Empty lines do not count.",
            "contentMediaType": NDJSON,
            "examples": [json.dumps(EXAMPLE_JOB) + "\n"],
        },
    }


def _outcomes_request() -> Schema:
    outcome = {
        "type": "object",
        "properties": {
            "token": text(patterns.FENCING),
            "result": {"type": "string", "enum": ["success", "failed", "timed_out", "deferred"]},
            "started_at": or_null(instant()),
            "finished_at": or_null(instant()),
            "error": or_null(text()),
            "retryable": {"type": ["boolean", "null"], "description": "False: trying again cannot help."},
            "retry_after_seconds": or_null(seconds(86_400, description="The next try must not come before.")),
            "output": {"description": "What it came to; the beginning is kept."},
        },
        "required": ["token", "result"],
        "additionalProperties": False,
    }
    return {
        "type": "object",
        "properties": {
            "worker_id": text(patterns.WORKER_ID),
            "outcomes": {**array(outcome), "maxItems": 10_000},
        },
        "required": ["worker_id", "outcomes"],
        "additionalProperties": False,
        "examples": [
            {"worker_id": "worker-1", "outcomes": [{"token": "412.1781532000000001", "result": "success"}]},
        ],
    }
