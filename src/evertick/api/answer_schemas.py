"""JSON Schemas of answers that are put together by hand."""

from evertick.api import patterns
from evertick.api.bodies.incoming import NDJSON
from evertick.api.schemas import Schema, array, instant, or_null, record, ref, text
from evertick.domain.admission import QuotaName
from evertick.domain.states import OpenAttempt, Outcome

_NUMBER = {"type": "number"}
_COUNT = {"type": "integer", "minimum": 0}
_STALE = array(text(patterns.FENCING))
_FAULT = record({"pointer": text(description="An RFC 6901 JSON pointer; empty for the whole."), "detail": text()})

PROBLEM = record(
    {
        "type": text(format="uri", examples=["urn:evertick:problem:not-found"]),
        "title": text(),
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "detail": text(),
        "instance": text(),
        "request_id": text(),
        "errors": array(_FAULT),
        "quota": text(description=f"Which quota stood in the way: {', '.join(QuotaName)}."),
    },
    "errors",
    "quota",
    text="What is wrong, as RFC 9457 has it.",
)


def answer_schemas() -> dict[str, Schema]:
    return {"Problem": PROBLEM, **_runs(), **_schedules(), **_batches(), **_workers(), **_operations(), **_access()}


def _runs() -> dict[str, Schema]:
    replaying = {
        "replayed": {**_COUNT, "description": "So many dead letters are runs now."},
        "run_ids": {**array(text(patterns.RUN_ID)), "description": "Of the first thousand."},
        "last_due_at": or_null(instant(description="When the last of them is due.")),
        "has_more": {"type": "boolean", "description": "More match than one request takes: ask again."},
    }
    return {
        "Runs": array(ref("Run")),
        "RunsAndGaps": array({"anyOf": [ref("Run"), ref("SkippedTicks")]}),
        "RunDetail": {"allOf": [ref("Run"), record({"attempts": array(_attempt())})]},
        "DeadLetters": array(ref("DeadLetter")),
        "Replaying": record(replaying),
    }


def _schedules() -> dict[str, Schema]:
    fire_time = record({"fire_at": instant(), "due_at": instant(), "local": text(), "notes": array(text())})
    lost = record({"at": instant(), "ticks": _COUNT, "first_local": text(), "last_local": text(), "note": text()})
    warning = record({"code": text(), "severity": text(), "message": text()})
    preview = {
        "schedule": text(),
        "timezone": text(),
        "tzdb": text(),
        "description": text(),
        "upcoming": array(fire_time),
        "dst_notes": array(lost),
        "warnings": array(warning),
    }
    return {"Upcoming": array(fire_time), "Preview": record(preview)}


def _batches() -> dict[str, Schema]:
    verdict: dict[str, Schema] = {
        "line": {"type": "integer", "minimum": 1},
        "status": {"enum": [201, 400, 422]},
        "job_id": text(patterns.JOB_ID),
        "errors": array(_FAULT),
    }
    return {
        "Verdict": record(verdict, "job_id", "errors"),
        "Verdicts": array(ref("Verdict")),
        "VerdictLines": text(description="A Verdict on each line.", contentMediaType=NDJSON),
    }


def _workers() -> dict[str, Schema]:
    return {
        "Lease": record({"lease_seconds": _NUMBER, "attempts": array(_leased())}),
        "Heartbeat": record({"cancel": _STALE}),
        "Recorded": record({"recorded": _COUNT, "stale": _STALE}),
    }


def _operations() -> dict[str, Schema]:
    cluster = {
        "version": text(),
        "tzdb": text(),
        "nodes": array(ref("Node")),
        "partitions": record({"total": _COUNT, "unheld": _COUNT}),
        "lag_seconds": _NUMBER,
    }
    node = {
        "node": text(),
        "region": text(),
        "version": text(),
        "started_at": instant(),
        "seen_at": instant(),
        "is_alive": {"type": "boolean"},
        "partitions": _COUNT,
    }
    return {
        "Cluster": record(cluster),
        "Node": record(node),
        "Alive": record({"status": {"const": "alive"}}),
        "Ready": record({"ready": {"type": "boolean"}, "faults": array(text())}),
        "Metrics": text(),
        "OpenApi": {"type": "object"},
    }


def _access() -> dict[str, Schema]:
    key = record({"api_key": text(description="The secret, shown this once.")})
    return {"NewTenant": {"allOf": [ref("TenantView"), key]}, "NewKey": {"allOf": [ref("Key"), key]}}


def _attempt() -> Schema:
    results = [str(result) for result in Outcome]
    return record(
        {
            "token": text(patterns.FENCING),
            "attempt": {"type": "integer", "minimum": 1},
            "status": {"enum": [*(str(status) for status in OpenAttempt), *results]},
            "result": {"enum": [*results, None]},
            "due_at": instant(),
            "started_at": or_null(instant()),
            "finished_at": or_null(instant()),
            "duration_ms": {"type": ["integer", "null"]},
            "worker_id": or_null(text()),
            "result_code": {"type": ["integer", "null"]},
            "error": or_null(text()),
            "excerpt": or_null(text(description="The beginning of what came back.")),
        }
    )


def _leased() -> Schema:
    return record(
        {
            "token": text(patterns.FENCING, description="The number after the dot grows with every attempt of a job."),
            "run_id": text(patterns.RUN_ID),
            "job_id": text(patterns.JOB_ID),
            "name": text(),
            "handler": or_null(text()),
            "payload": {},
            "scheduled_at": instant(),
            "attempt": {"type": "integer", "minimum": 1},
            "reason": text(),
            "idempotency_key": text(),
            "timeout_seconds": _COUNT,
            "deadline": instant(),
        }
    )
